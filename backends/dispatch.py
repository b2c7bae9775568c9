"""Stage calls over a chain of backends: the first that accepts serves, and every call and fallback is counted.

A backend whose table lacks a stage is never asked for it. A device serves products with the weights that were uploaded
to it; the memory of the host stays canonical.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from coli.backends import _host
from coli.backends.abi import SLOTS, Slot
from coli.errors import StageError

__all__ = ["DeviceMemory", "Dispatcher", "Fallback", "Format", "Weight"]


class Format(IntEnum):
    """Storage formats of a weight, as in the ABI."""

    F32 = _host.FORMAT_F32
    BF16 = _host.FORMAT_BF16
    FP8_BLOCK = _host.FORMAT_FP8_BLOCK
    FP4_GROUP = _host.FORMAT_FP4_GROUP


_FAST = "fast_"  # what the names of the fast mode's stages begin with

# Sites of FAILED that say something about the backend, not about the call: the next backend may still serve it. The
# others (arguments, non-finite values, scale codes) would be the same everywhere.
_BACKEND_SITES = frozenset({_host.SITE_MEMORY, _host.SITE_DEVICE})
_SITE_NAMES = {
    _host.SITE_ARGUMENT: "argument",
    _host.SITE_NONFINITE: "nonfinite",
    _host.SITE_SCALE: "scale",
    _host.SITE_MEMORY: "memory",
    _host.SITE_DEVICE: "device",
}


class Verified(Protocol):
    """What the loader returns: a name, and the address of a table that passed every gate."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> int: ...


@dataclass(frozen=True)
class Fallback:
    """One reason for which a backend did not serve a stage, told once."""

    stage: str
    backend: str
    reason: str


class DeviceMemory(NamedTuple):
    """Bytes of the first device of a chain. ``integrated``: it is the machine's own memory."""

    total_bytes: int
    free_bytes: int
    integrated: bool


@dataclass
class _Served:
    """Calls of one stage that one backend served; reasons why backends before it did not, by (backend, code)."""

    calls: int = 0
    nanoseconds: int = 0
    fallbacks: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)


class Weight:
    """A weight for every backend of the chain.

    Bound where it is used first, released with `close` or the dispatcher. ``uploaded``: the devices of the chain that
    hold a copy, by their place in it.
    """

    __slots__ = ("_bound", "_codes", "_contexts", "_scales", "cols", "format", "name", "rows", "uploaded")

    def __init__(
        self,
        contexts: Sequence[_host.Context],
        name: str,
        format: int,
        rows: int,
        cols: int,
        codes: object,
        scales: object | None,
    ) -> None:
        self._contexts = contexts
        self._bound: list[_host.Weight | None] = [None] * len(contexts)
        self._codes = codes
        self._scales = scales
        self.name = name
        self.format = format
        self.rows = rows
        self.cols = cols
        self.uploaded: frozenset[int] = frozenset()

    def on(self, index: int) -> _host.Weight:
        """Return the handle in backend ``index``, bound now if it was not. Raises Declined or Failed."""
        bound = self._bound[index]
        if bound is None:
            bound = _host.Weight(self._contexts[index], self.format, self.rows, self.cols, self._codes, self._scales)
            self._bound[index] = bound
        return bound

    def refill(self, codes: object, scales: object | None = None) -> None:
        """Point it at other memory of the same format and shape. Raises StageError with the tensor's name.

        A device that fails at it has no copy any more: the host's serves.
        """
        for index, bound in enumerate(self._bound):
            if bound is not None:
                try:
                    bound.refill(codes, scales)
                except (_host.Declined, _host.Failed) as error:
                    lost = isinstance(error, _host.Failed) and error.code in _BACKEND_SITES
                    if not lost or index not in self.uploaded:
                        raise _refused_weight(self.name, error) from None
                    self.uploaded -= {index}
                    self._bound[index] = None
                    bound.close()
        self._codes = codes
        self._scales = scales

    def close(self) -> None:
        """Release every handle and the memory. Idempotent."""
        for bound in self._bound:
            if bound is not None:
                bound.close()
        self._bound = [None] * len(self._bound)
        self._codes = self._scales = None
        self.uploaded = frozenset()


class Dispatcher:
    """The stages as methods, each with the positional arguments of ``coli_slots.inc`` without context and stream.

    Matrices are numpy float32 or int32 arrays (1-D is one row), weights come from `bind`. ``where`` is what the
    caller is doing (``"layer 3"``); it is named in errors. ``tell`` receives each new fallback once. ``fast_library``:
    opened before the first product of the fast mode, which asks for it by name. ``insist``: the first backend was asked
    for, so that it is not left out when its device cannot be used any more (memory that another program took since the
    gates looked); else that is a fallback of everything, told once. Raises StageError.
    """

    def __init__(
        self,
        chain: Sequence[Verified],
        threads: int,
        workspace_bytes: int,
        tell: Callable[[Fallback], None] | None = None,
        fast_library: Path | None = None,
        insist: bool = False,
    ) -> None:
        if not chain:
            raise ValueError("a dispatcher needs at least one backend")
        self.where = ""
        self._tell = tell
        self._fast_library = fast_library
        self._told: set[tuple[str, int, int]] = set()
        self._contexts: list[_host.Context] = []
        libraries: list[_host.Library] = []
        names: list[str] = []
        for place, backend in enumerate(chain):
            library = _host.Library(backend.address)
            try:
                self._contexts.append(_host.Context(library, threads, workspace_bytes))
            except (_host.Declined, _host.Failed) as error:
                others = place + 1 < len(chain) and (isinstance(error, _host.Declined) or error.code in _BACKEND_SITES)
                if others and not (insist and place == 0):
                    if tell is not None:
                        tell(Fallback("every stage", backend.name, error.text))
                    continue
                self.close()
                raise StageError(
                    f"backend {backend.name}",
                    "cannot create its context",
                    observed=f"{error.text} (site {error.code})",
                    expected=f"{threads} threads and {workspace_bytes} bytes of workspace",
                    fix="use fewer threads or free memory",
                    code="stage.context",
                ) from None
            libraries.append(library)
            names.append(backend.name)
        self.backends = tuple(names)
        memory = [context.memory_info() for context in self._contexts]
        # A CPU backend says 0: the host knows its memory better.
        self._devices = tuple(index for index, info in enumerate(memory) if info["total_bytes"])
        self._uploads: list[tuple[int, int]] = [(0, 0) for _ in names]
        self._stages: dict[str, list[_Served]] = {}
        self._asked: dict[str, list[int]] = {}
        for slot in SLOTS:
            if slot.kind == "stage":
                self._stages[slot.name] = [_Served() for _ in names]
                asked = [index for index, library in enumerate(libraries) if library.serves(slot.name)]
                self._asked[slot.name] = asked
                stage = self._make(slot, asked)
                opens = fast_library is not None and slot.name.startswith(_FAST)
                setattr(self, slot.name, self._opening(slot.name, stage) if opens else stage)

    def __getattr__(self, name: str) -> Callable[..., None]:
        # Stages are set on the instance; this is reached for unknown names only, and tells type checkers what a stage
        # is.
        raise AttributeError(f"{name}: no such stage in the ABI")

    def _make(self, slot: Slot, asked: Sequence[int]) -> Callable[..., None]:
        """Return the method of one stage, which asks the backends ``asked``, places in the chain, in turn.

        The first backend's path costs two clock readings and the translation of weights.
        """
        name = slot.name
        if not asked:

            def unserved(*args: Any) -> None:
                raise self._unserved(name, [])

            return unserved
        weights = frozenset(i for i, a in enumerate(slot.arguments) if a.type == "const coli_weight *")
        lists = frozenset(i for i, a in enumerate(slot.arguments) if a.type == "const coli_weight_list *")
        methods = [getattr(context, name) for context in self._contexts]
        at = asked[0]
        first = methods[at]
        served = self._stages[name]
        served_first = served[at]
        devices = self._devices

        def translate(args: tuple[Any, ...], index: int) -> list[Any]:
            taken = list(args)
            for i in weights:
                if i < len(taken) and isinstance(taken[i], Weight):
                    if index in devices and index not in taken[i].uploaded:
                        raise _not_uploaded()
                    taken[i] = taken[i].on(index)
            for i in lists:
                if i < len(taken):
                    if index in devices and any(index not in weight.uploaded for weight in taken[i]):
                        raise _not_uploaded()
                    taken[i] = [weight.on(index) for weight in taken[i]]
            return taken

        has_weights = bool(weights or lists)

        def fall(args: tuple[Any, ...], error: _host.Declined | _host.Failed) -> None:
            reasons: list[tuple[int, _host.Declined | _host.Failed]] = []
            for index in asked:
                if index != at:
                    start = perf_counter_ns()
                    try:
                        methods[index](*(translate(args, index) if has_weights else args))
                    except (_host.Declined, _host.Failed) as caught:
                        error = caught
                    else:
                        self._count(name, served[index], perf_counter_ns() - start, reasons)
                        return
                if isinstance(error, _host.Failed) and error.code not in _BACKEND_SITES:
                    raise self._failed(name, index, error) from None
                reasons.append((index, error))
            raise self._unserved(name, reasons) from None

        def stage(*args: Any) -> None:
            start = perf_counter_ns()
            try:
                if has_weights:
                    first(*translate(args, at))
                else:
                    first(*args)
            except (_host.Declined, _host.Failed) as error:
                fall(args, error)
                return
            served_first.nanoseconds += perf_counter_ns() - start
            served_first.calls += 1

        stage.__name__ = name
        return stage

    def _opening(self, name: str, stage: Callable[..., None]) -> Callable[..., None]:
        """Return a stage of the fast mode that opens its library before the first call of any of them."""

        def fast(*args: Any) -> None:
            library, self._fast_library = self._fast_library, None
            if library is not None:
                from coli.backends._probe import open_library

                try:
                    open_library(library)
                except OSError as error:  # the stage then declines, and says less about the reason
                    if self._tell is not None:
                        self._tell(Fallback(name, str(library), str(error)))
            stage(*args)

        fast.__name__ = name
        return fast

    def _count(
        self,
        stage: str,
        served: _Served,
        nanoseconds: int,
        reasons: list[tuple[int, _host.Declined | _host.Failed]],
    ) -> None:
        served.calls += 1
        served.nanoseconds += nanoseconds
        for index, error in reasons:
            # The text may hold sizes that differ from call to call: the code is the key, the first text is kept.
            text, count = served.fallbacks.get((index, error.code), (error.text, 0))
            served.fallbacks[index, error.code] = (text, count + 1)
            self._tell_once(stage, index, error)

    def _tell_once(self, stage: str, index: int, error: _host.Declined | _host.Failed) -> None:
        key = (stage, index, error.code)
        if key not in self._told:
            self._told.add(key)
            if self._tell is not None:
                self._tell(Fallback(stage, self.backends[index], error.text))

    def _subject(self, stage: str) -> str:
        return f"stage {stage}" + (f" ({self.where})" if self.where else "")

    def _failed(self, stage: str, index: int, error: _host.Failed) -> StageError:
        return StageError(
            self._subject(stage),
            f"failed in backend {self.backends[index]}",
            observed=f"{error.text} (site {error.code})",
            code=f"stage.{_SITE_NAMES.get(error.code, 'failed')}",
        )

    def _unserved(self, stage: str, reasons: list[tuple[int, _host.Declined | _host.Failed]]) -> StageError:
        said = {index: f"{error.text} (code {error.code})" for index, error in reasons}
        what = "; ".join(
            f"{name}: {said.get(index, 'its library leaves the stage out')}" for index, name in enumerate(self.backends)
        )
        return StageError(
            self._subject(stage),
            "no backend of the chain served it",
            observed=what,
            fix="run `coli backends` to see which backends this machine can use",
            code="stage.unserved",
        )

    def bind(self, name: str, format: int, rows: int, cols: int, codes: object, scales: object | None = None) -> Weight:
        """Bind host memory under a tensor's name, in the first backend on the CPU that takes the format.

        ``codes`` and ``scales`` are contiguous buffers (numpy arrays, mappings) that stay in place until
        `Weight.close` or `Weight.refill`. Raises StageError with the tensor's name, for example for a scale code
        outside the legal range.
        """
        weight = Weight(self._contexts, name, format, rows, cols, codes, scales)
        refusal: _host.Declined | _host.Failed | None = None
        on_host = [index for index in range(len(self._contexts)) if index not in self._devices]
        for index in on_host or self._devices:
            try:
                weight.on(index)
                return weight
            except _host.Declined as error:
                refusal = error
            except _host.Failed as error:
                refusal = error
                if error.code not in _BACKEND_SITES:
                    break
        assert refusal is not None  # noqa: S101  the chain is not empty
        raise _refused_weight(name, refusal)

    def device_memory(self) -> DeviceMemory | None:
        """Return the memory of the chain's first device as it is now; None without one."""
        if not self._devices:
            return None
        context = self._contexts[self._devices[0]]
        memory = context.memory_info()
        return DeviceMemory(memory["total_bytes"], memory["free_bytes"], bool(context.device_info()["integrated"]))

    def upload(self, weight: Weight) -> bool:
        """Copy a weight to the chain's first device, so that it serves products with it; say whether it is there.

        A device that cannot take it is a fallback, told once: the copy on the host serves.
        """
        if not self._devices:
            return False
        index = self._devices[0]
        context = self._contexts[index]
        before = context.memory_info()["context_bytes"]
        try:
            weight.on(index).upload()
        except (_host.Declined, _host.Failed) as error:
            if isinstance(error, _host.Failed) and error.code not in _BACKEND_SITES:
                raise _refused_weight(weight.name, error) from None
            self._tell_once("upload", index, error)
            return False
        weight.uploaded |= {index}
        count, nbytes = self._uploads[index]
        self._uploads[index] = (count + 1, nbytes + context.memory_info()["context_bytes"] - before)
        return True

    def uploads(self) -> list[dict[str, Any]]:
        """Return, for each device of the chain: backend, how many weights it holds, their bytes there."""
        return [
            {"backend": self.backends[index], "weights": self._uploads[index][0], "bytes": self._uploads[index][1]}
            for index in self._devices
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each stage and backend that served it: stage, backend, calls, seconds, fallbacks.

        ``absent_in``: the backends before it in the chain whose libraries leave the stage out.
        """
        table: list[dict[str, Any]] = []
        for stage, backends in self._stages.items():
            for index, served in enumerate(backends):
                if served.calls:
                    table.append(
                        {
                            "stage": stage,
                            "backend": self.backends[index],
                            "calls": served.calls,
                            "seconds": served.nanoseconds / 1e9,
                            "absent_in": [self.backends[i] for i in range(index) if i not in self._asked[stage]],
                            "fallbacks": [
                                {"backend": self.backends[before], "reason": reason, "count": count}
                                for (before, _), (reason, count) in served.fallbacks.items()
                            ],
                        }
                    )
        return table

    def context_bytes(self) -> dict[str, int]:
        """Return the bytes that each backend's context holds now, workspace included."""
        return {
            name: context.memory_info()["context_bytes"]
            for name, context in zip(self.backends, self._contexts, strict=True)
        }

    def close(self) -> None:
        """Release all weights and contexts. Idempotent."""
        for context in self._contexts:
            context.close()

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _not_uploaded() -> _host.Declined:
    """Return what a device's backend would say; to bind the weight there only to hear it would cost a reading of it."""
    text = "the weight is not in the device's memory"
    error = _host.Declined(_host.REASON_PLACE, text)
    error.code, error.text = _host.REASON_PLACE, text
    return error


def _refused_weight(name: str, error: _host.Declined | _host.Failed) -> StageError:
    return StageError(
        name,
        "the weight cannot be bound",
        observed=f"{error.text} (code {error.code})",
        fix="the checkpoint may be damaged: compare its checksums with the publisher's",
        code=f"stage.bind-{_SITE_NAMES.get(error.code, 'declined')}",
    )
