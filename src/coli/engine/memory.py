"""Aligned host memory for weights and activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["aligned_bytes", "aligned_matrix"]

Bytes = npt.NDArray[np.uint8]


def aligned_bytes(nbytes: int, alignment: int = 64) -> Bytes:
    """Return `nbytes` uninitialised bytes whose address is a multiple of `alignment`."""
    raw = np.empty(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    aligned: Bytes = raw[start : start + nbytes]
    return aligned


def aligned_matrix(rows: int, cols: int, dtype: type[Any] = np.float32) -> npt.NDArray[Any]:
    """Return an uninitialised [rows, cols] matrix aligned to 64 bytes."""
    matrix: npt.NDArray[Any] = aligned_bytes(rows * cols * np.dtype(dtype).itemsize).view(dtype).reshape(rows, cols)
    return matrix
