"""Number formats bit for bit against vectors of an independent implementation (tests/oracle/reference_extra.npz)."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import native
import numpy as np
import pytest
from building import ROOT, Build
from numpy.typing import NDArray

from coli.backends.vectors import Case, Integer, Matrix, Weight, write_vectors

Floats = NDArray[np.float32]

LEVELS = ["portable", "neon"] if platform.machine() in ("aarch64", "arm64") else ["portable", "x86_64_v3", "x86_64_v4"]


@pytest.fixture(scope="module")
def units() -> dict[str, Floats]:
    with np.load(ROOT / "tests" / "oracle" / "reference_extra.npz", allow_pickle=False) as arrays:
        return {k.removeprefix("units."): arrays[k] for k in arrays.files if k.startswith("units.")}


@pytest.fixture(params=LEVELS)
def context(request: pytest.FixtureRequest, runnable: dict[str, Path]) -> Iterator[native.Context]:
    if request.param not in runnable:
        pytest.skip(f"not run: this processor does not run {request.param}")
    with native.Context(native.Library(runnable[request.param]), threads=2) as opened:
        yield opened


def dequantized(context: native.Context, format_: int, codes: Any, scales: Any, cols: int) -> Floats:
    """Return the values of one row of codes."""
    y = np.zeros((1, cols), np.float32)
    weight = context.weight(format_, 1, cols, np.asarray(codes, np.uint8), np.asarray(scales, np.uint8))
    context.stage("dequantize", weight, 0, y)
    return y[0]


def test_every_e4m3_code(context: native.Context, units: dict[str, Floats]) -> None:
    found = dequantized(context, native.FP8, np.arange(256), [127, 127], 256)
    finite = np.isfinite(units["e4m3_table"])
    assert np.flatnonzero(~finite).tolist() == [0x7F, 0xFF]
    assert found[finite].tobytes() == units["e4m3_table"][finite].tobytes()
    assert np.isnan(found[~finite]).all()


def test_every_e2m1_code(context: native.Context, units: dict[str, Floats]) -> None:
    codes = np.tile(np.arange(0, 16, 2) | np.arange(1, 16, 2) << 4, 2)  # the even element lies in the low half
    found = dequantized(context, native.FP4, codes, [127], 32)
    assert found.tobytes() == np.tile(units["e2m1_table"], 2).tobytes()


@pytest.mark.parametrize(
    ("format_", "group", "one", "legal"),
    [(native.FP4, 32, 0x22, 254), (native.FP8, 128, 0x38, 247)],
    ids=["fp4", "fp8"],
)
def test_every_legal_ue8m0_code(
    context: native.Context, units: dict[str, Floats], format_: int, group: int, one: int, legal: int
) -> None:
    cols = legal * group
    codes = np.full(cols // 2 if format_ == native.FP4 else cols, one, np.uint8)  # every weight is 1.0
    found = dequantized(context, format_, codes, np.arange(legal), cols)
    assert found.tobytes() == units["ue8m0_table"][:legal].repeat(group).tobytes()
    with pytest.raises(native.Refused, match=f"scale.*{legal}"):
        dequantized(context, format_, codes[: group // 2 if format_ == native.FP4 else group], [legal], group)


@pytest.mark.parametrize(
    ("stage", "group", "array"),
    [("round_fp8", 128, "fp8_group128"), ("round_fp8", 64, "fp8_group64"), ("round_fp4", 32, "fp4_group32")],
)
def test_rounding(context: native.Context, units: dict[str, Floats], stage: str, group: int, array: str) -> None:
    y = np.zeros_like(units["x"])
    context.stage(stage, units["x"], group, y)
    assert y.tobytes() == units[array].tobytes()


def test_hadamard_and_its_rounding(context: native.Context, units: dict[str, Floats]) -> None:
    turned, rounded = np.zeros_like(units["x"]), np.zeros_like(units["x"])
    context.stage("hadamard", units["x"], turned)
    assert turned.tobytes() == units["hadamard128"].tobytes()
    context.stage("round_fp4", turned, 32, rounded)
    assert rounded.tobytes() == units["hadamard128_fp4"].tobytes()


def test_neon_in_an_emulator(units: dict[str, Floats], neon_build: Build, tmp_path: Path) -> None:
    x = units["x"]

    def output(want: Floats) -> Matrix:
        rows, cols = np.atleast_2d(want).shape
        return Matrix(0, rows, cols, bytes(want.nbytes), want.tobytes())

    given = Matrix(0, *x.shape, x.tobytes())
    turned = Matrix(0, *x.shape, units["hadamard128"].tobytes())
    e2m1 = Weight(native.FP4, 1, 32, bytes(range(0x10, 0x100, 0x22)) * 2, b"\x7f")
    scales = Weight(native.FP4, 1, 254 * 32, b"\x22" * 254 * 16, bytes(range(254)))
    e4m3 = np.arange(256, dtype=np.uint8).reshape(2, 128)[:, :127].copy()  # without the two codes of NaN
    table = np.ascontiguousarray(units["e4m3_table"].reshape(2, 128)[:, :127])
    cases = [
        Case("round_fp8", (given, Integer(128), output(units["fp8_group128"]))),
        Case("round_fp8", (given, Integer(64), output(units["fp8_group64"]))),
        Case("round_fp4", (given, Integer(32), output(units["fp4_group32"]))),
        Case("hadamard", (given, output(units["hadamard128"]))),
        Case("round_fp4", (turned, Integer(32), output(units["hadamard128_fp4"]))),
        Case("dequantize", (e2m1, Integer(0), output(np.tile(units["e2m1_table"], 2)))),
        Case("dequantize", (scales, Integer(0), output(units["ue8m0_table"][:254].repeat(32)))),
        Case("dequantize", (Weight(native.FP8, 2, 127, e4m3.tobytes(), b"\x7f"), Integer(0), output(table))),
    ]
    path = tmp_path / "units.bin"
    path.write_bytes(write_vectors(cases))
    assert f"{len(cases)} of {len(cases)} calls equal" in neon_build.replay("neon", path, 1)
