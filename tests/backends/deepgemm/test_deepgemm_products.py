"""The fast products of the DeepGEMM flavour: what our side hands to the kernel, and when it declines.

The kernel itself is played (stand_in/): its layouts are from DeepGEMM's own source, its tensor maps from the rules of
the driver's documentation. What is judged: rounding, scales, tensor maps, tiles, chunks, groups, places, refusals.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import cases
import native
import numpy as np
import pytest
from cuda_building import build_fake_cublas
from deepgemm_building import build_stand_in
from numpy.typing import NDArray

FLOATS = NDArray[np.float32]
CARD, ADA, HOPPER = 6, 0, 7  # devices of the shim: 12.0, 8.6, 9.0
SHAPE, PLACE, MEMORY, DEVICE = 2, 3, 4, 5
NAMES = {native.FP8: "fast_matmul_fp8", native.FP4: "fast_matmul_fp4"}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def e4m3_values() -> NDArray[np.float64]:
    """Return the values of the codes 0..126, from the definition of the format: 4 bits of exponent, bias 7."""
    codes = np.arange(127)
    exponent, mantissa = codes // 8, codes % 8
    return np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))


E4M3 = e4m3_values()


def rounded(x: FLOATS) -> NDArray[np.float64]:
    """Return the values that coli_slots.inc promises for one group's columns, by search in the table of all codes."""
    made = np.zeros(x.shape)
    for first in range(0, x.shape[1], 32):
        run = x[:, first : first + 32]
        amax = np.maximum(np.abs(run).max(axis=1), np.float32(1e-4))
        mantissa, exponent = np.frexp(amax * np.float32(1 / 448))  # float32: 0.5 <= mantissa < 1
        scale = 2.0 ** np.where(mantissa == 0.5, exponent - 1, exponent)[:, None]
        sizes = np.minimum(np.abs(run.astype(np.float64)) / scale, 448)
        upper = np.searchsorted(E4M3, sizes).clip(1, 126)
        low, high = E4M3[upper - 1], E4M3[upper]
        up = (sizes - low > high - sizes) | ((sizes - low == high - sizes) & (upper % 2 == 0))
        made[:, first : first + 32] = np.copysign(np.where(up, high, low), run) * scale
    return made


def weight_values(weight: cases.WeightSpec) -> NDArray[np.float64]:
    """Return the exact values of a weight."""
    assert weight.scales is not None
    scales = 2.0 ** (weight.scales.astype(np.float64) - 127)
    if weight.format == native.FP8:
        codes = weight.codes
        values = np.where(codes & 0x80, -1, 1) * E4M3[codes & 0x7F]
        scales = scales.repeat(128, 0)[: weight.rows].repeat(128, 1)[:, : weight.cols]
    else:
        codes = np.stack([weight.codes & 15, weight.codes >> 4], axis=2).reshape(weight.rows, weight.cols)
        values = np.where(codes & 8, -1, 1) * E2M1[codes & 7]
        scales = scales.repeat(32, 1)
    return values * scales


def judge(weight: cases.WeightSpec, x: FLOATS, groups: int, y: FLOATS) -> None:
    """Hold a result against sums in double of the promised values."""
    values, rows = weight_values(weight), weight.rows // groups
    for group in range(groups):
        part = rounded(x[:, group * weight.cols : (group + 1) * weight.cols])
        own = values[group * rows : (group + 1) * rows]
        wanted, size = part @ own.T, np.abs(part) @ np.abs(own).T
        assert np.all(np.abs(y[:, group * rows : (group + 1) * rows] - wanted) <= 2.0**-22 * size + 2.0**-149)


@pytest.fixture
def context(flavour: native.Library) -> Iterator[native.Context]:
    with native.Context(flavour, device=CARD) as made:
        yield made


def bind(context: native.Context, weight: cases.WeightSpec) -> native.Weight:
    return context.weight(weight.format, weight.rows, weight.cols, weight.codes, weight.scales)


def test_what_the_library_is(flavour: native.Library) -> None:
    assert flavour.name == "cuda-deepgemm-sm120"
    served = ("matmul_bf16", "matmul_fp8", "matmul_fp4", "fast_matmul_fp8", "fast_matmul_fp4")
    assert all(flavour.slots[name].function for name in served)
    for _, _, name, arguments in native.slot_list():
        assert flavour.slots[name].signature == native.signature(f"{name}({arguments})")


# (rows, cols, tokens, groups): one of each; ends inside a tile, a run and a line of scales; both tiles; odd groups.
SHAPES = {
    native.FP8: [
        (1, 1, 1, 1),
        (64, 128, 64, 1),
        (67, 130, 3, 1),
        (131, 513, 65, 1),
        (260, 129, 2, 4),
        (9, 4111, 1, 3),
        (3, 40, 130, 1),
    ],
    native.FP4: [(1, 128, 1, 1), (70, 256, 66, 1), (9, 384, 2, 3), (128, 1152, 5, 1)],
}


@pytest.mark.parametrize(
    ("format", "shape"), [(format, shape) for format, shapes in SHAPES.items() for shape in shapes]
)
def test_products(context: native.Context, format: int, shape: tuple[int, int, int, int]) -> None:
    rows, cols, tokens, groups = shape
    make = cases.Maker(rows * cols + tokens)
    weight = make.weight(format, rows, cols, edge=True)
    x = make.floats(tokens, groups * cols, scale=30.0)
    x[:, ::5] *= np.float32(1e-3)
    x[:, ::7] = -0.0
    x[-1] *= np.float32(1e-7)  # below what the scale follows
    y = np.full((tokens, rows), np.nan, np.float32)
    context.stage(NAMES[format], bind(context, weight), x, groups, y)
    judge(weight, x, groups, y)


def test_every_code_of_the_rounding(context: native.Context) -> None:
    """Values on, beside and halfway between the codes, both signs, with the scale held at one by a 448 in each run."""
    middles = (E4M3[:-1] + E4M3[1:]) / 2
    values = np.concatenate([E4M3, middles, np.nextafter(middles, 0), np.nextafter(middles, 500)]).astype(np.float32)
    values = np.concatenate([values, -values])
    values = np.pad(values, (0, -len(values) % 31))
    x = np.concatenate([np.full((len(values) // 31, 1), 448, np.float32), values.reshape(-1, 31)], axis=1)
    weight = cases.WeightSpec(native.FP8, 32, 32, np.diag(np.full(32, 0x38, np.uint8)), np.full((1, 1), 127, np.uint8))
    y = np.zeros_like(x)
    context.stage(NAMES[native.FP8], bind(context, weight), x, 1, y)
    assert np.array_equal(y, rounded(x).astype(np.float32))


@pytest.mark.full
def test_more_tokens_than_fit_at_once(context: native.Context) -> None:
    make = cases.Maker(3)
    weight, x = make.weight(native.FP8, 2, 1024), make.floats(2300, 1024)  # 5152 bytes each
    y = np.zeros((2300, 2), np.float32)
    context.stage(NAMES[native.FP8], bind(context, weight), x, 1, y)
    judge(weight, x, 1, y)


@pytest.mark.parametrize("gap", [0, 1])
def test_matrices_on_the_device(context: native.Context, gap: int) -> None:
    """Rows that end on odd places are stored one by one."""
    make = cases.Maker(5)
    weight, x = make.weight(native.FP8, 66, 70), make.floats(3, 70)
    places = []
    for rows, cols in ((3, 70), (3, 66)):
        data = ctypes.c_void_p()
        context.service("buffer_create", ctypes.c_uint64(rows * (cols + gap) * 4), ctypes.byref(data))
        places.append(native.Matrix(data.value, rows, cols, cols + gap, 0, 1))
    y = np.zeros((3, 66), np.float32)
    on_host = native.matrix(x), native.matrix(y)
    copy = lambda a, b: context._call("buffer_copy", context.handle, None, ctypes.byref(a), ctypes.byref(b))  # noqa: E731
    copy(on_host[0], places[0])
    context.stage(NAMES[native.FP8], bind(context, weight), places[0], 1, places[1])
    copy(places[1], on_host[1])
    judge(weight, x, 1, y)


def test_what_is_not_finite_stays_in_its_row(context: native.Context) -> None:
    make = cases.Maker(6)
    weight, x = make.weight(native.FP8, 5, 96), make.floats(4, 96)
    x[1, 40], x[2, 90] = np.inf, np.nan
    y = np.zeros((4, 5), np.float32)
    context.stage(NAMES[native.FP8], bind(context, weight), x, 1, y)
    assert np.isnan(y[1:3]).all() and np.isfinite(y[[0, 3]]).all()


def test_empty_products_are_done(context: native.Context) -> None:
    make = cases.Maker(7)
    for format, name in NAMES.items():
        for rows, tokens in ((0, 2), (3, 0)):
            y = np.zeros((tokens, rows), np.float32)
            context.stage(name, bind(context, make.weight(format, rows, 128)), make.floats(tokens, 128), 1, y)


def declined(context: native.Context, weight: native.Weight, cols: int, tokens: int = 1) -> native.Refused:
    """Ask for a product that is not served; the output stays as it was."""
    y = np.full((tokens, weight.rows), 7, np.float32)
    with pytest.raises(native.Refused) as caught:
        context.stage(NAMES[weight.format], weight, np.ones((tokens, cols), np.float32), 1, y)
    assert (y == 7).all()
    return caught.value


@pytest.mark.parametrize(("device", "shown"), [(ADA, "8.6"), (HOPPER, "9.0")])
def test_other_devices_are_declined(flavour: native.Library, device: int, shown: str) -> None:
    with native.Context(flavour, device=device) as context:
        said = declined(context, bind(context, cases.Maker(8).weight(native.FP8, 4, 64)), 64)
    assert (said.status, said.code) == (native.DECLINED, DEVICE)
    assert said.text == f"device {device} has compute capability {shown}; DeepGEMM's kernels are for 12.0"


def test_shapes_and_places_that_are_not_served(context: native.Context) -> None:
    make = cases.Maker(9)
    said = declined(context, bind(context, make.weight(native.FP4, 4, 96)), 96)
    assert (said.code, said.text) == (SHAPE, "96 columns of FP4, expected a multiple of 128")
    said = declined(context, bind(context, make.weight(native.FP8, 4, 0)), 0)
    assert said.code == SHAPE
    spec = make.weight(native.FP8, 4, 64)
    bound = native.Weight(context, spec.format, spec.rows, spec.cols, spec.codes, spec.scales)
    context.weights.append(bound)
    assert declined(context, bound, 64).code == PLACE
    said = declined(context, bind(context, make.weight(native.FP8, 4096, 32)), 32, tokens=700)  # results of 11 MB
    assert said.code == MEMORY and "700 tokens need" in said.text


@pytest.mark.full
def test_what_deepgemm_declines_cublaslt_may_take(tmp_path: Path) -> None:
    """In a library with both, cuBLASLt played: 96 columns of FP4 are served; else the reason is DeepGEMM's."""
    ctypes.CDLL(str(build_fake_cublas(tmp_path)))
    library = native.Library(build_stand_in(tmp_path, block_scale=True))
    make = cases.Maker(11)
    weight, x = make.weight(native.FP4, 32, 96), make.floats(5, 96)
    y = np.zeros((5, 32), np.float32)
    with native.Context(library, device=CARD) as context:
        context.stage(NAMES[native.FP4], bind(context, weight), x, 1, y)
        judge(weight, x, 1, y)
        assert declined(context, bind(context, make.weight(native.FP8, 4, 0)), 0).text == "a product without columns"
    with native.Context(library, device=HOPPER) as context:
        said = declined(context, bind(context, weight), 96)
    assert said.text == "device 7 has compute capability 9.0; DeepGEMM's kernels are for 12.0"


@pytest.mark.parametrize(
    ("told", "format", "status", "code", "text"),
    [
        ("an old driver", native.FP8, native.DECLINED, DEVICE, "the driver has no cuTensorMapEncodeTiled"),
        ("no tensor map of nibbles", native.FP4, native.FAILED, 105, "tensor map of the weight (4 x 128, 64 bytes"),
    ],
)
def test_a_driver_that_is_too_old(
    context: native.Context, monkeypatch: pytest.MonkeyPatch, told: str, format: int, status: int, code: int, text: str
) -> None:
    weight = bind(context, cases.Maker(10).weight(format, 4, 128))
    monkeypatch.setenv("COLI_STAND_IN", told)
    said = declined(context, weight, 128)
    assert (said.status, said.code) == (status, code) and text in said.text
