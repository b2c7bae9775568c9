"""The layout of one expert's tensors in its slab: plain arithmetic, shared by the budget and the store."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["SLAB_ALIGNMENT", "TENSOR_ALIGNMENT", "slab_layout"]

SLAB_ALIGNMENT = 4096  # a page, and the block of direct reads
TENSOR_ALIGNMENT = 64  # a cache line and a 512-bit register


def slab_layout(sizes: Iterable[int]) -> tuple[tuple[int, ...], int]:
    """Return where tensors of these byte sizes start in a slab, and the bytes of the whole slab."""
    offsets: list[int] = []
    end = 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
    return tuple(offsets), max(1, -(-end // SLAB_ALIGNMENT)) * SLAB_ALIGNMENT
