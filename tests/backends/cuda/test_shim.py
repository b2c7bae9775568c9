"""The shim finds what it promises to find: kernels with one mistake each."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest
from cuda_building import build_faults
from numpy.typing import NDArray

SOUND, MISSING_BARRIER, UNWRITTEN = 99, 6, 5


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return ctypes.CDLL(str(build_faults(tmp_path_factory.mktemp("faults"))))


def run(faults: ctypes.CDLL, fault: int, device: int) -> tuple[str | None, NDArray[np.float32]]:
    """Return what the device says (None: success) and what the kernel wrote."""
    y, text = np.zeros(64, np.float32), ctypes.c_char_p()
    status = faults.run_fault(fault, device, y.ctypes.data_as(ctypes.c_void_p), ctypes.byref(text))
    assert status in (0, 719)
    return (text.value or b"").decode() if status else None, y


@pytest.mark.parametrize("device", [0, 1, 2])
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (0, "63 threads wait at a barrier"),
        (1, "threads wait at a barrier and"),
        (2, "names a lane that has ended|in a shuffle for others that never come"),
        (3, "leaves its own lane out|with different masks|never come"),
        (4, "leaves its own lane out|from a lane that its mask leaves out"),
        (7, "a selector above 7"),
    ],
)
def test_mistake_is_named(faults: ctypes.CDLL, fault: int, text: str, device: int) -> None:
    said, _ = run(faults, fault, device)
    assert said is not None and re.search(text, said) and "(block 0, 0)" in said


def test_unwritten_memory_is_nan(faults: ctypes.CDLL) -> None:
    assert np.isnan(run(faults, UNWRITTEN, 0)[1]).all()


def test_missing_barrier_shows_in_an_order(faults: ctypes.CDLL) -> None:
    results = [run(faults, MISSING_BARRIER, device)[1] for device in (0, 1, 2)]
    assert results[0].tobytes() != results[1].tobytes()


def test_sound_kernel(faults: ctypes.CDLL) -> None:
    lane = np.arange(64)
    want = (lane + 1) % 64 + np.where(lane % 32 < 30, lane + 2, lane)
    for device in (0, 1, 2):
        said, y = run(faults, SOUND, device)
        assert said is None
        np.testing.assert_array_equal(y, want.astype(np.float32))
