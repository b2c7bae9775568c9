"""All levels give the same bytes; the portable one is held against the float64 reference and the written order."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import cases
import native
import numpy as np
import pytest
from building import ROOT, Build, build_backends
from numpy.typing import NDArray
from reference import ReferenceStages

from coli.backends.vectors import Case, Matrix, read_vectors, write_vectors

# Exact by contract: integers, copies, decoded weights, values on a grid.
EXACT = {"embed", "dequantize", "kv_append", "round_fp8", "round_fp4", "top_k", "add"}
CALLS = cases.all_calls(cases.SEED)


@pytest.mark.parametrize("index", range(len(CALLS)), ids=lambda index: f"{index}-{CALLS[index].stage}")
def test_portable_against_float64(native_build: Build, index: int) -> None:
    call = CALLS[index]
    with native.Context(native.Library(native_build.libraries["portable"]), threads=2) as context:
        found = cases.run_native(context, call)
    judge = ReferenceStages()

    def bound(value: Any) -> Any:
        if isinstance(value, cases.WeightSpec):
            return judge.bind("w", value.format, value.rows, value.cols, value.codes, value.scales)
        return [bound(item) for item in value] if isinstance(value, list) else value

    wanted = cases.copied(call)
    getattr(judge, call.stage)(*(bound(value) for value in wanted))
    for output in call.outputs:
        mine, right = found[output], wanted[output]
        if call.stage in EXACT or right.dtype == np.int32:
            np.testing.assert_array_equal(mine, right)
            continue
        finite = np.isfinite(right)
        np.testing.assert_array_equal(mine[~finite], right[~finite])
        scale = np.abs(right[finite]).max(initial=1e-30)
        assert np.abs(mine[finite].astype(np.float64) - right[finite]).max(initial=0) < 2e-6 * scale


def test_every_stage_has_a_call() -> None:
    assert {call.stage for call in CALLS} == native.exact_stages()


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_levels_equal(native_build: Build, runnable: dict[str, Path], recorded: Path, threads: int) -> None:
    ran = [native_build.replay(level, recorded, threads) for level in sorted(runnable)]
    print("".join(ran))
    assert len(ran) >= 1


def test_canary_equal(native_build: Build, runnable: dict[str, Path]) -> None:
    for level in sorted(runnable):
        assert "calls equal" in native_build.replay(level, ROOT / "backends" / "canary.bin", 2)


def test_driver_notices(native_build: Build, recorded: Path, tmp_path: Path) -> None:
    read = read_vectors(recorded.read_bytes())
    first = read[0].arguments
    output = first[3]
    assert isinstance(output, Matrix) and output.expected is not None
    wrong = bytes([output.expected[0] ^ 1]) + output.expected[1:]
    changed = Matrix(output.type, output.rows, output.cols, output.data, wrong)
    path = tmp_path / "wrong.bin"
    path.write_bytes(write_vectors([Case(read[0].stage, (*first[:3], changed))]))
    command = [*native_build.driver, str(native_build.libraries["portable"]), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "argument 3 differs in 1 places" in done.stdout


def test_neon_equal(recorded: Path, neon_build: Build) -> None:
    print(neon_build.replay("neon", recorded, 2))


@pytest.mark.full
def test_sanitizers(runnable: dict[str, Path], recorded: Path, tmp_path: Path) -> None:
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
    built = build_backends(tmp_path, "-DCOLI_CPU_SANITIZE=ON", flags=flags)
    for level in sorted(runnable):
        print(built.replay(level, recorded, 2))


# ---- The order of docs/numerics.md, written again in numpy -----------------------------------------------------------


def fma32(a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a*b+c rounded once: exact product, sum in extended precision with its error, rounded to odd."""
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64).copy()
    even = (error != 0) & (bits & 1 == 0)
    toward = np.where((error > 0) == (total > 0), 1, -1)
    bits[even] += toward[even]
    return bits.view(np.float64).astype(np.float32)


def dot_as_written(value: Any, factor: Any, x: NDArray[np.float32], piece: int) -> np.float32:
    """Return the dot product of one row: 32 lanes, pieces of ``piece`` columns, factor at the end of a piece, tree."""
    passes = -(-len(x) // (32 * piece))
    shape = (passes, 32, piece)
    padded = np.zeros((2, passes * 32 * piece), np.float32)
    padded[0, : len(x)], padded[1, : len(x)] = value, x
    weights, inputs = padded.reshape(2, *shape)
    factors = None
    if factor is not None:
        factors = np.ones(passes * 32 * piece, np.float32)
        factors[: len(x)] = factor
        factors = factors.reshape(shape)[:, :, 0]
    lanes = np.zeros(32, np.float32)
    for index in range(passes):
        total = lanes if factors is None else np.zeros(32, np.float32)
        for column in range(piece):
            total = fma32(weights[index, :, column], inputs[index, :, column], total)
        lanes = total if factors is None else fma32(factors[index], total, lanes)
    step = 16
    while step:
        lanes = lanes[:step] + lanes[step : 2 * step]
        step //= 2
    return np.float32(lanes[0])


def test_order_of_products(native_build: Build, runnable: dict[str, Path]) -> None:
    make = cases.Maker(11)
    library = native.Library(native_build.libraries["portable"])
    for format, piece, name in [(0, 4, "f32"), (1, 8, "bf16"), (2, 16, "fp8"), (3, 32, "fp4")]:
        rows, cols, tokens = 3, 2176, 5
        spec = make.weight(format, rows, cols, edge=True)
        x = make.floats(tokens, cols)
        y = np.zeros((tokens, rows), np.float32)
        with native.Context(library) as context:
            weight = context.weight(format, rows, cols, spec.codes, spec.scales)
            context.stage(f"matmul_{name}", weight, x, 1, y)
        judge = ReferenceStages().bind("w", format, rows, cols, spec.codes, spec.scales)
        for row in range(rows):
            value, factor = judge.values[row].astype(np.float32), None
            if format == native.FP8:
                scale = spec.scales[row // 128].repeat(128).astype(np.float64) - 127  # type: ignore[union-attr]
                value = (judge.values[row] * 2.0**-scale / 256).astype(np.float32)
                factor = (2.0 ** (scale + 8)).astype(np.float32)
            if format == native.FP4:
                scale = spec.scales[row].repeat(32).astype(np.float64) - 127  # type: ignore[union-attr]
                value = (judge.values[row] * 2.0**-scale / 2).astype(np.float32)
                factor = (2.0 ** (scale + 1)).astype(np.float32)
            for token in range(tokens):
                written = dot_as_written(value, factor, x[token], piece)
                assert written.tobytes() == y[token, row].tobytes(), (name, row, token)
