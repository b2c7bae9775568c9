"""Contexts, weights and refusals of the CPU backends, through the table."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import cases
import native
import numpy as np
import pytest
from building import Build

PROC = Path("/proc/self")


@pytest.fixture(scope="session")
def library(native_build: Build) -> native.Library:
    return native.Library(native_build.libraries["portable"])


def test_signatures(library: native.Library) -> None:
    for _, need, name, arguments in native.slot_list():
        slot = library.slots[name]
        assert slot.signature == native.signature(f"{name}({arguments})")
        assert bool(slot.function) == (name in native.exact_stages() or need == "MANDATORY")


@pytest.mark.skipif(not PROC.exists(), reason="not run: needs /proc")
def test_nothing_is_left_behind(library: native.Library) -> None:
    def left() -> tuple[int, int]:
        return len(list((PROC / "task").iterdir())), len(list((PROC / "fd").iterdir()))

    y = np.zeros((1, 64), np.float32)
    spec = cases.Maker(1).weight(native.FP4, 64, 64)
    x = np.ones((1, 64), np.float32)
    before = left()
    pages = []
    for _ in range(100):
        with native.Context(library, threads=7) as context:
            context.stage("matmul_fp4", context.weight(native.FP4, 64, 64, spec.codes, spec.scales), x, 1, y)
        pages.append(int((PROC / "statm").read_text().split()[1]))
    assert left() == before
    assert pages[-1] - pages[9] < 256  # 1 MiB, where one leaked workspace would be 22


def test_two_contexts_at_once(library: native.Library) -> None:
    make = cases.Maker(2)
    spec, x = make.weight(native.FP8, 256, 512), make.floats(5, 512)
    results: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = []

    def run() -> None:
        with native.Context(library, threads=3) as context:
            weight = context.weight(native.FP8, 256, 512, spec.codes, spec.scales)
            for _ in range(20):
                y = np.zeros((5, 256), np.float32)
                context.stage("matmul_fp8", weight, x, 1, y)
                results.append(y)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 40 and all(result.tobytes() == results[0].tobytes() for result in results)


def test_workspace_too_small(library: native.Library) -> None:
    with pytest.raises(native.Refused, match="workspace_bytes is"):
        native.Context(library, threads=2, workspace=native.workspace_bytes(2) - 1)


@pytest.mark.parametrize(("format", "highest"), [(native.FP8, 246), (native.FP4, 253)])
def test_scale_codes(library: native.Library, format: int, highest: int) -> None:
    codes = np.zeros((2, 128 if format == native.FP8 else 64), np.uint8)
    shape = (1, 1) if format == native.FP8 else (2, 4)
    with native.Context(library) as context:
        context.weight(format, 2, 128, codes, np.full(shape, highest, np.uint8))
        scales = np.full(shape, 7, np.uint8)
        scales[-1, -1] = highest + 1
        place = f"row {shape[0] - 1}, col {shape[1] - 1}"
        with pytest.raises(native.Refused, match=f"scale code {highest + 1} at {place}") as refused:
            context.weight(format, 2, 128, codes, scales)
        assert refused.value.code == 103


def test_nan_code_reaches_the_result(library: native.Library) -> None:
    codes = np.full((8, 512), 0x38, np.uint8)  # 1.0
    codes[3, 500] = 0xFF
    x, y = np.ones((5, 512), np.float32), np.zeros((5, 8), np.float32)
    with native.Context(library) as context:
        weight = context.weight(native.FP8, 8, 512, codes, np.full((1, 4), 127, np.uint8))
        context.stage("matmul_fp8", weight, x, 1, y)
    assert np.isnan(y[:, 3]).all()
    np.testing.assert_array_equal(np.delete(y, 3, 1), 512)


def refused(library: native.Library, stage: str, *values: object) -> native.Refused:
    """Make a call that must fail, and see that it left its arrays alone."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    before = [array.tobytes() for array in arrays]
    with native.Context(library, threads=2) as context, pytest.raises(native.Refused) as caught:
        context.stage(stage, *values)
    assert [array.tobytes() for array in arrays] == before
    return caught.value


def test_nonfinite_is_named(library: native.Library) -> None:
    make = cases.Maker(3)
    ring, q, y = make.floats(8, 32), make.floats(3, 64), make.floats(3, 64)
    ring[6, 5] = np.nan
    assert "token 2" in refused(library, "attention", q, 2, ring, 4, 5, None, 0, None, make.floats(1, 2), 1.0, y).text
    ring[6, 5] = 1e38
    q *= 1e3
    assert refused(library, "attention", q, 2, ring, 4, 5, None, 0, None, make.floats(1, 2), 1.0, y).code == 102
    logits = make.floats(2, 6)
    logits[1, 4] = np.inf
    picks, weights = np.zeros((2, 2), np.int32), np.zeros((2, 2), np.float32)
    assert "logits[1, 4]" in refused(library, "router", logits, make.floats(1, 6), None, 1.0, picks, weights).text
    logits[:] = -200
    assert "add up to zero" in refused(library, "router", logits, make.floats(1, 6), None, 1.0, picks, weights).text
    scores = make.floats(2, 9)
    scores[1, 3] = np.nan
    assert "scores[1, 3]" in refused(library, "top_k", scores, np.zeros((2, 3), np.int32)).text


def test_shapes_are_checked(library: native.Library) -> None:
    x = np.zeros((2, 8), np.float32)
    assert "y has 7 cols, expected 8" in refused(library, "rms_norm", x, None, 1e-6, np.zeros((2, 7), np.float32)).text
    assert "type" in refused(library, "add", np.zeros((2, 8), np.int32), x).text
    assert "kv.rows is 3" in refused(library, "kv_append", np.zeros((3, 8), np.float32), 0, x).text
    table = native.Matrix(x.ctypes.data, 2, 8, 4, 0, 0)
    assert "stride" in refused(library, "add", table, x).text
    assert "no data" in refused(library, "add", native.Matrix(None, 2, 8, 8, 0, 0), x).text
    huge = native.Matrix(x.ctypes.data, 1 << 62, 8, 8, 0, 0)
    assert "larger than any memory" in refused(library, "add", huge, x).text


def test_memory_info(library: native.Library) -> None:
    info = native.MemoryInfo(ctypes.sizeof(native.MemoryInfo))
    with native.Context(library, threads=3) as context:
        context.service("memory_info", ctypes.byref(info))
    assert info.context_bytes == native.workspace_bytes(3)
