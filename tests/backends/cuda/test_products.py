"""The kernels of the CUDA backend, run by the CPU in three orders, equal the CPU backend byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cases
import native
import numpy as np
import pytest
from building import Build

from coli.backends.vectors import write_vectors

ORDERS = {0: "forward", 1: "backward", 2: "random"}
NAMES = {native.BF16: "bf16", native.FP8: "fp8", native.FP4: "fp4"}
SERVED = {f"matmul_{name}" for name in NAMES.values()}


def odd_products(make: cases.Maker) -> Iterator[cases.Call]:
    """Yield shapes at the seams of the kernels, with edge codes of the scales.

    Rows around 16 a block and 128 a block of scales; columns around a piece, a pass and a chunk of 4096; no column, no
    row, no token; groups.
    """
    # (rows, cols, tokens, groups)
    shapes = {
        native.BF16: [
            (1, 1, 1, 1),
            (16, 255, 1, 1),
            (17, 257, 2, 1),
            (33, 4097, 1, 1),
            (6, 4351, 1, 3),
            (4, 8193, 2, 2),
        ],
        native.FP8: [
            (1, 1, 1, 1),
            (15, 511, 1, 1),
            (129, 513, 1, 1),
            (31, 4095, 2, 1),
            (6, 4111, 1, 2),
            (260, 129, 1, 4),
        ],
        native.FP4: [
            (1, 32, 1, 1),
            (16, 992, 1, 1),
            (17, 1056, 2, 1),
            (33, 4128, 1, 1),
            (6, 4096, 1, 3),
            (4, 8224, 2, 2),
        ],
    }
    for format, name in NAMES.items():
        for rows, cols, tokens, groups in [*shapes[format], (3, 0, 2, 1), (0, 64, 2, 1), (5, 64, 0, 1)]:
            weight = make.weight(format, rows, cols, edge=True)
            x = make.floats(tokens, groups * cols, scale=1e3)
            x[:, ::7] = -0.0
            yield cases.Call(f"matmul_{name}", [weight, x, groups, np.zeros((tokens, rows), np.float32)], (3,))
    for format, cols in [(native.FP8, 2100), (native.FP4, 4096)]:  # products with the factor that are subnormal
        weight = make.weight(format, 7, cols)
        assert weight.scales is not None
        weight.scales[:] = 0
        x = make.floats(1, cols, scale=2.0**-10)
        yield cases.Call(f"matmul_{NAMES[format]}", [weight, x, 1, np.zeros((1, 7), np.float32)], (3,))


CALLS = [
    *(call for call in cases.products(cases.Maker(7), False) if call.stage in SERVED),
    *odd_products(cases.Maker(8)),
]


@pytest.fixture(scope="session")
def products(native_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vector file of all calls with the outputs of the portable CPU library."""
    made = []
    with native.Context(native.Library(native_build.libraries["portable"])) as context:
        for call in CALLS:
            made.append(cases.to_case(call, cases.run_native(context, call)))
    path = tmp_path_factory.mktemp("products") / "products.bin"
    path.write_bytes(write_vectors(made))
    return path


@pytest.mark.parametrize("device", ORDERS, ids=ORDERS.values())
def test_equal_to_cpu(native_build: Build, shim_path: Path, products: Path, device: int) -> None:
    said = Build({"shim": shim_path}, native_build.driver).replay("shim", products, 1, device)
    assert said == f"cuda-shim: {len(CALLS)} of {len(CALLS)} calls equal with 1 threads\n"


def test_nan_codes(native_build: Build, shim: native.Library) -> None:
    make = cases.Maker(9)
    codes = make.weight(native.FP8, 9, 600).codes
    for row, col, code in [(2, 0, 0x7F), (5, 599, 0xFF), (6, 130, 0x7F)]:
        codes[row, col] = code
    scales, x = np.full((1, 5), 120, np.uint8), make.floats(2, 600)
    found = []
    for library in (native.Library(native_build.libraries["portable"]), shim):
        y = np.zeros((2, 9), np.float32)
        with native.Context(library) as context:
            context.stage("matmul_fp8", context.weight(native.FP8, 9, 600, codes, scales), x, 1, y)
        found.append(y)
    assert np.isnan(found[1][:, [2, 5, 6]]).all()
    np.testing.assert_array_equal(found[1], found[0])


def test_every_code_decodes(shim: native.Library) -> None:
    """One code at a time against a column of ones: the value itself, from the tables of the formats."""
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    fp4 = np.array(magnitudes + [-m for m in magnitudes], np.float32)
    codes = np.zeros((16, 16), np.uint8)
    codes[:, 7] = np.arange(16) << 4  # column 15
    x = np.zeros((1, 32), np.float32)
    x[0, 15] = 1
    y = np.zeros((1, 16), np.float32)
    with native.Context(shim) as context:
        weight = context.weight(native.FP4, 16, 32, codes, np.full((16, 1), 127, np.uint8))
        context.stage("matmul_fp4", weight, x, 1, y)
        np.testing.assert_array_equal(y[0], fp4)

        every = np.arange(256)
        exponent, mantissa = (every >> 3) & 15, every & 7
        value = np.where(exponent == 0, mantissa / 512, (8 + mantissa) * 2.0 ** (exponent - 10.0))
        value = np.where(every & 0x80, -value, value)
        value[(every & 0x7F) == 0x7F] = 0
        codes = np.zeros((256, 21), np.uint8)
        codes[:, 18] = np.where((every & 0x7F) == 0x7F, 0, every)
        x, y = np.zeros((1, 21), np.float32), np.zeros((1, 256), np.float32)
        x[0, 18] = 1
        weight = context.weight(native.FP8, 256, 21, codes, np.full((2, 1), 127, np.uint8))
        context.stage("matmul_fp8", weight, x, 1, y)
        np.testing.assert_array_equal(y[0], value.astype(np.float32))


def test_tokens_in_parts(native_build: Build, shim: native.Library) -> None:
    """Three tokens of 2^20 columns are 12 MiB, the workspace has 10: two parts, the same bytes."""
    make = cases.Maker(10)
    weight, x = make.weight(native.BF16, 1, 1 << 20), make.floats(3, 1 << 20)
    found = []
    for library in (native.Library(native_build.libraries["portable"]), shim):
        y = np.zeros((3, 1), np.float32)
        with native.Context(library) as context:
            context.stage("matmul_bf16", context.weight(native.BF16, 1, 1 << 20, weight.codes), x, 1, y)
        found.append(y.tobytes())
    assert found[0] == found[1]
