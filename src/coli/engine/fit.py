"""Choose the prefill chunk: the largest one with which everything else still fits. A smaller chunk costs speed only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coli.engine.ledger import Item, Ledger

__all__ = ["fit_chunk"]


def fit_chunk(ledger: Ledger, items: Callable[[int], Sequence[Item]], most: int, tier: str = "ram") -> int:
    """Return a chunk of at most `most` tokens whose items fit what is free in `tier`; 1 when nothing does.

    `items(chunk)` lists what an engine would reserve. The refusal itself is left to the reservation, which knows the
    numbers.
    """
    free = ledger.free(tier)
    chunk = max(1, most)
    while free is not None and chunk > 1 and sum(i.least_bytes() for i in items(chunk) if i.tier == tier) > free:
        chunk //= 2
    return chunk
