"""The expert store: whole experts, read from disk into aligned slabs, the least recently used ones given up first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

from coli.engine.ledger import Item, Ledger
from coli.engine.slab import SLAB_ALIGNMENT, slab_layout
from coli.errors import BudgetError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from coli.engine.checkpoint import Checkpoint
    from coli.engine.safetensors import TensorInfo

__all__ = ["READERS", "ExpertKey", "ExpertStore", "ExpertTensors", "HeldExpert", "StoreStatistics", "expert_sizes"]

READERS = 4
"""Threads that read misses: a fifth faster than two where it was measured; eight are no faster."""

ExpertKey = tuple[int, int]
"""Layer and expert id."""

ExpertTensors = Mapping[str, tuple[str, "str | None"]]
"""Part (`w1`) to the names of its codes and its scales; None for weights without scales."""


class HeldExpert(NamedTuple):
    """One pinned expert.

    ``slot`` says which slab holds it; ``generation`` changes whenever the bytes of that slab do, so a handle bound to
    the slab must be refilled when its generation is another. ``parts``: part to raw bytes of codes and scales, uint8
    [nbytes] each.
    """

    expert: int
    slot: int
    generation: int
    parts: Mapping[str, tuple[NDArray[np.uint8], NDArray[np.uint8] | None]]


class StoreStatistics(NamedTuple):
    """What the store did since it was made. ``bytes_read``: read from the files, without padding."""

    hits: int
    misses: int
    evictions: int
    bytes_read: int


class _Slot:
    __slots__ = ("generation", "parts", "pins", "shape")

    def __init__(self) -> None:
        self.generation = 0
        self.pins = 0
        self.shape: tuple[object, ...] = ()
        self.parts: dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8] | None]] = {}


def expert_sizes(checkpoint: Checkpoint, tensors: ExpertTensors) -> list[int]:
    """Return the byte sizes of an expert's tensors in the order of its slab: all codes, then all scales."""
    return [info.nbytes for info in _places(checkpoint, tensors)]


def _places(checkpoint: Checkpoint, tensors: ExpertTensors) -> list[TensorInfo]:
    codes = [checkpoint[codes] for codes, _ in tensors.values()]
    return codes + [checkpoint[scales] for _, scales in tensors.values() if scales is not None]


class ExpertStore:
    """Keep as many experts in memory as the ledger grants; the bytes are the same for every capacity.

    ``experts``: the tensors of every expert. ``item``: its unit is one slab, ``minimum`` the experts of one token.
    ``readers``: threads that read misses. One caller at a time. Raises BudgetError when the minimum does not fit,
    CheckpointError for a missing tensor or a failed read. The files stay the checkpoint's: close the store first.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        experts: Mapping[ExpertKey, ExpertTensors],
        ledger: Ledger,
        item: Item,
        *,
        readers: int = READERS,
    ) -> None:
        self._checkpoint = checkpoint
        self._experts = experts
        self._ledger = ledger
        slab = max((slab_layout(expert_sizes(checkpoint, tensors))[1] for tensors in experts.values()), default=0)
        if item.nbytes < slab:
            raise ValueError(f"{item.name}: a unit of {item.nbytes} bytes is smaller than a slab of {slab} bytes")
        self._slab_bytes = item.nbytes
        self._grant = ledger.reserve(item)
        self.capacity = min(self._grant.count, len(experts))
        from coli.engine.memory import aligned_bytes  # numpy: a budget imports this module and must not need it

        try:
            self._arena = aligned_bytes(self.capacity * self._slab_bytes, SLAB_ALIGNMENT)
        except MemoryError as error:
            ledger.release(self._grant)
            raise BudgetError(
                item.name,
                "the system refuses this much memory",
                observed=f"{self.capacity * self._slab_bytes} bytes",
                fix="give a smaller --ram",
                code="budget.ram",
            ) from error
        self._slots = [_Slot() for _ in range(self.capacity)]
        self._unused = list(range(self.capacity - 1, -1, -1))
        self._recent: OrderedDict[ExpertKey, int] = OrderedDict()  # oldest first
        self._pinned = 0
        self._readers = readers
        self._reads: list[Future[None]] = []  # given to the pool and perhaps not done
        self._pool: ThreadPoolExecutor | None = None
        self._hits = self._misses = self._evictions = self._bytes_read = 0
        self._closed = False

    def acquire(self, layer: int, ids: Iterable[int]) -> list[HeldExpert]:
        """Return the distinct experts ``ids`` of a layer by ascending id, in memory and pinned until released.

        At most ``capacity`` experts can be pinned at once; more raise ValueError. After an error nothing new is pinned.
        """
        if self._closed:
            raise ValueError("the expert store is closed")
        keys = [(layer, expert) for expert in sorted(set(ids))]
        misses = [key for key in keys if key not in self._recent]
        found = [self._recent[key] for key in keys if key in self._recent]
        pinned = self._pinned + sum(1 for slot in found if not self._slots[slot].pins)
        if pinned + len(misses) > self.capacity:
            raise ValueError(
                f"{pinned + len(misses)} experts cannot be held at once: the store has {self.capacity} slabs"
            )
        for slot in found:
            self._pin(slot)
        filled: dict[ExpertKey, int] = {}
        try:
            for key in misses:
                filled[key] = self._vacate(key)
            self._fill(filled)
        except BaseException:
            for slot in found:
                self._unpin(slot)
            self._unused.extend(filled.values())
            raise
        self._hits += len(found)
        self._misses += len(misses)
        for key, slot in filled.items():
            self._pin(slot)
            self._recent[key] = slot
        held = []
        for key in keys:
            self._recent.move_to_end(key)
            index = self._recent[key]
            state = self._slots[index]
            held.append(HeldExpert(key[1], index, state.generation, state.parts))
        return held

    def release(self, held: Iterable[HeldExpert]) -> None:
        """Unpin experts that `acquire` returned; their bytes stay until the slab is needed."""
        for expert in held:
            self._unpin(expert.slot)

    def unpin_all(self) -> None:
        """Unpin everything: the caller begins anew, and Ctrl-C may have cut its last call anywhere."""
        for slot in self._slots:
            slot.pins = 0
        self._pinned = 0
        used = set(self._recent.values())
        self._unused = [slot for slot in range(self.capacity - 1, -1, -1) if slot not in used]

    def groups(self, layer: int, ids: Iterable[int]) -> Iterator[list[HeldExpert]]:
        """Yield the distinct ``ids`` ascending in groups that fit, each held until the next is asked for."""
        ordered = sorted(set(ids))
        for start in range(0, len(ordered), max(1, self.capacity)):
            held = self.acquire(layer, ordered[start : start + self.capacity])
            try:
                yield held
            finally:
                self.release(held)

    def __len__(self) -> int:
        """Return how many experts there are to hold."""
        return len(self._experts)

    def statistics(self) -> StoreStatistics:
        """Return the counters."""
        return StoreStatistics(self._hits, self._misses, self._evictions, self._bytes_read)

    def close(self) -> None:
        """Stop the readers and give the memory back to the ledger. Views of the slabs keep the memory itself alive."""
        if self._closed:
            return
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown()
        self._slots.clear()
        self._recent.clear()
        del self._arena
        self._ledger.release(self._grant)

    def _pin(self, slot: int) -> None:
        self._pinned += self._slots[slot].pins == 0
        self._slots[slot].pins += 1

    def _unpin(self, slot: int) -> None:
        self._slots[slot].pins -= 1
        self._pinned -= self._slots[slot].pins == 0

    def _vacate(self, key: ExpertKey) -> int:
        """Return a slab that nothing uses; what it held is forgotten before its bytes change."""
        if key not in self._experts:
            raise ValueError(f"layer {key[0]} has no expert {key[1]}")
        if self._unused:
            return self._unused.pop()
        victim, slot = next((key, slot) for key, slot in self._recent.items() if not self._slots[slot].pins)
        del self._recent[victim]
        self._evictions += 1
        return slot

    def _fill(self, filled: Mapping[ExpertKey, int]) -> None:
        jobs: list[tuple[list[TensorInfo], list[memoryview]]] = []
        for key, slot in filled.items():
            infos = _places(self._checkpoint, self._experts[key])
            self._shape(slot, self._experts[key], infos)
            jobs.extend(self._runs(slot, infos))
        if self._readers > 1 and len(jobs) > 1:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._readers, thread_name_prefix="coli-read")
            # A slab must not change behind its next owner: whatever ended the last call, even a second Ctrl-C while it
            # waited below, its reads end before the next ones begin.
            wait(self._reads)
            self._reads.clear()
            try:
                for job in jobs:
                    self._reads.append(self._pool.submit(self._checkpoint.read_run, *job))
                wait(self._reads)
            finally:
                for future in self._reads:
                    future.cancel()
                wait(self._reads)
            for future in self._reads:
                future.result()
        else:
            for job in jobs:
                self._checkpoint.read_run(*job)
        self._bytes_read += sum(info.nbytes for run, _ in jobs for info in run)

    def _shape(self, slot: int, tensors: ExpertTensors, infos: Sequence[TensorInfo]) -> None:
        """Make the views of a slab; they are kept while its experts have the same sizes."""
        state = self._slots[slot]
        state.generation += 1
        shape = (tuple(tensors), tuple(info.nbytes for info in infos))
        if state.shape == shape:
            return
        offsets, _ = slab_layout(info.nbytes for info in infos)
        slab = self._slab(slot)
        views = [slab[offset : offset + info.nbytes] for offset, info in zip(offsets, infos, strict=True)]
        scales = iter(views[len(tensors) :])
        state.parts = {
            part: (views[i], None if names[1] is None else next(scales))
            for i, (part, names) in enumerate(tensors.items())
        }
        state.shape = shape

    def _runs(self, slot: int, infos: Sequence[TensorInfo]) -> Iterator[tuple[list[TensorInfo], list[memoryview]]]:
        """Yield the reads that fill a slab: tensors that follow one another in a file are one read."""
        offsets, _ = slab_layout(info.nbytes for info in infos)
        slab = memoryview(self._slab(slot))  # type: ignore[arg-type]
        ordered = sorted(zip(infos, offsets, strict=True), key=lambda pair: (str(pair[0].path), pair[0].offset))
        run: list[TensorInfo] = []
        views: list[memoryview] = []
        for info, offset in ordered:
            if run and (info.path != run[-1].path or info.offset != run[-1].offset + run[-1].nbytes):
                yield run, views
                run, views = [], []
            run.append(info)
            views.append(slab[offset : offset + info.nbytes])
        if run:
            yield run, views

    def _slab(self, slot: int) -> NDArray[np.uint8]:
        return self._arena[slot * self._slab_bytes : (slot + 1) * self._slab_bytes]
