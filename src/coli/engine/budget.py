"""The order in which a model takes its memory, written once: an engine runs it and allocates, a plan runs it dry.

Pure Python: no numpy, no extension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coli.engine.direct import direct_item
from coli.engine.fit import fit_chunk
from coli.engine.ledger import Grant, Item, Ledger

__all__ = [
    "Demand",
    "DeviceGroup",
    "Product",
    "Traffic",
    "basis_items",
    "driver_item",
    "fill",
    "fit_items",
    "reserve_all",
    "reserve_resident",
    "vocabulary_of",
]

# Logits in float32 and what sampling makes of them in float64 (values, order, probabilities, sums), per vocabulary
# entry.
_BYTES_PER_LOGIT = 4 + 6 * 8


@dataclass(frozen=True)
class Traffic:
    """What a decoded token costs: ``dense_bytes`` of resident weights, ``experts`` records of one size, stage calls."""

    dense_bytes: int
    experts: int
    expert_bytes: int
    calls: int = 0

    @property
    def routed_bytes(self) -> int:
        """Return the bytes of all routed experts of a token."""
        return self.experts * self.expert_bytes


@dataclass(frozen=True)
class Product:
    """A resident weight, and the stage that multiplies by it.

    ``copy``: the item of its copy on a device, None where no device serves such a weight.
    """

    name: str
    stage: str
    copy: Item | None


@dataclass(frozen=True)
class DeviceGroup:
    """Items that may lie in device memory for one purpose.

    ``role``: ``dense`` (copies of weights that every token reads), ``bank`` (a layer's experts, for prompts),
    ``experts`` (copies of single experts), ``kv``.
    """

    name: str
    role: Literal["dense", "bank", "experts", "kv"]
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Demand:
    """What a model of a family asks for.

    ``items(context, chunk)``: what the engine reserves in RAM, in its order, the elastic expert cache last.
    ``device``: what may lie in device memory, in order of preference: the engine fills group after group.
    ``products``: every resident weight that a stage multiplies by. ``idle_stages``: those of the family's stages that
    this geometry never calls.
    """

    items: Callable[[int, int], Sequence[Item]]
    traffic: Traffic
    device: tuple[DeviceGroup, ...] = ()
    products: tuple[Product, ...] = ()
    idle_stages: frozenset[str] = frozenset()

    @property
    def device_bytes(self) -> int:
        """Return the bytes of everything that may lie in device memory."""
        return sum(item.total_bytes() for group in self.device for item in group.items)


def basis_items(
    runtime_bytes: int, workspace_bytes: int, vocabulary: int, direct_readers: int | None = None
) -> list[Item]:
    """Return what every model holds before its family asks for anything.

    ``runtime_bytes``: the resident set of the process with everything imported, measured at start. ``direct_readers``:
    threads that read past the page cache, None when reads go through it.
    """
    return [
        Item("runtime", "ram", runtime_bytes),
        Item("backend workspace", "ram", workspace_bytes),
        Item("logits and sampling", "ram", vocabulary * _BYTES_PER_LOGIT),
        *([] if direct_readers is None else [direct_item(direct_readers)]),
    ]


def vocabulary_of(config: Mapping[str, object]) -> int:
    """Return the width of the logits from a text config; 0 for a value that the engine is going to refuse."""
    value = config.get("vocab_size")
    return value if isinstance(value, int) and 0 < value < 2**31 else 0


def fit_items(ledger: Ledger, items: Callable[[int], Sequence[Item]], most: int) -> tuple[int, list[Item]]:
    """Return the prefill chunk of at most ``most`` tokens that fits, and its items.

    Raises BudgetError, before anything is reserved, when they do not fit together.
    """
    chunk = fit_chunk(ledger, items, most)
    wanted = list(items(chunk))
    ledger.require(wanted)
    return chunk, wanted


def reserve_resident(ledger: Ledger, items: Callable[[int], Sequence[Item]], most: int) -> tuple[int, Item]:
    """Reserve all of a family's items but the last; return the chunk and that one, the expert cache.

    The store of the experts reserves it itself: it takes what is left.
    """
    chunk, (*resident, experts) = fit_items(ledger, items, most)
    for item in resident:
        ledger.reserve(item)
    return chunk, experts


def driver_item(nbytes: int) -> Item:
    """Return what a device's driver takes of the machine's own memory, measured once it is there."""
    return Item("device driver and staging", "ram", nbytes)


def fill(ledger: Ledger, items: Iterable[Item]) -> list[Grant]:
    """Reserve the items that fit, in their order: what is left out is only slower."""
    grants = []
    for item in items:
        free = ledger.free(item.tier)
        if free is None or item.least_bytes() <= free:
            grants.append(ledger.reserve(item))
    return grants


def reserve_all(
    ledger: Ledger, basis: Iterable[Item], demand: Demand, *, context: int, most_chunk: int, groups: Iterable[str] = ()
) -> int:
    """Reserve everything as opening a model does, device memory by the ``groups`` named; return the prefill chunk.

    Raises BudgetError when the model cannot run.
    """
    for item in basis:
        ledger.charge(item)
    chunk, experts = reserve_resident(ledger, lambda chunk: demand.items(context, chunk), min(most_chunk, context))
    ledger.reserve(experts)
    wanted = set(groups)
    for group in demand.device:
        if group.name in wanted:
            fill(ledger, group.items)
    return chunk
