"""What may be taken of a device's memory, and what a weight takes there. Pure."""

from __future__ import annotations

__all__ = ["DEVICE_RESERVE_BYTES", "SHARED_DEVICE_RESERVE_BYTES", "device_bytes", "vram_budget_bytes"]

# Left free: the desktop and other programs grow. Windows takes memory back whenever it likes, also in WSL.
DEVICE_RESERVE_BYTES = 1 << 30
SHARED_DEVICE_RESERVE_BYTES = 3 << 29

_ROW_ALIGNMENT = 16
_ALLOCATION = 512  # the granularity of the driver's allocator


def device_bytes(rows: int, row_bytes: int, scale_bytes: int = 0) -> int:
    """Return the bytes of a weight on a device: rows at multiples of 16 bytes, scales behind them, one allocation."""
    pitch = -(-row_bytes // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
    return -(-(rows * pitch + scale_bytes) // _ALLOCATION) * _ALLOCATION


def vram_budget_bytes(free_bytes: int, *, shared_with_windows: bool = False, asked_bytes: int | None = None) -> int:
    """Return how much of a device's free memory weights may take; never more than is free.

    ``asked_bytes``: the user's limit, which replaces the reserve. Start from free, not from total: what is missing
    between them is somebody's.
    """
    if asked_bytes is not None:
        return max(0, min(asked_bytes, free_bytes))
    reserve = SHARED_DEVICE_RESERVE_BYTES if shared_with_windows else DEVICE_RESERVE_BYTES
    return max(0, free_bytes - reserve)
