"""An open model: checkpoint, tokenizer, engine and backend behind one object."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coli.backends import _host
from coli.backends.abi.structs import workspace_bytes
from coli.backends.candidates import default_search
from coli.backends.dispatch import DeviceMemory, Dispatcher, Fallback
from coli.backends.loader import Loaded, load
from coli.engine.budget import basis_items, driver_item, vocabulary_of
from coli.engine.checkpoint import Checkpoint
from coli.engine.device_memory import vram_budget_bytes
from coli.engine.direct import decide_io
from coli.engine.generation import TextStream, TokenStream, eos_ids_of
from coli.engine.host_cpu import default_threads
from coli.engine.host_memory import decide_limit, probe_host_memory, resident_bytes
from coli.engine.ledger import Ledger
from coli.engine.location import child, find_snapshot
from coli.engine.run_record import Decoded, RunRecord, peak_resident_bytes, write_run_record
from coli.engine.sampling import Sampler, SamplingChoice, resolve_sampling
from coli.engine.store import READERS
from coli.engine.tokenizer import Tokenizer
from coli.errors import CheckpointError, UsageError
from coli.families.config_file import read_config
from coli.families.options import require_read
from coli.families.probe import load_engine
from coli.families.registry import Registry, Resolution
from coli.families.roles import RoleTable
from coli.paths import cache_folder, data_folder
from coli.settings.environment import Environment
from coli.units import parse_size

if TYPE_CHECKING:
    from coli.backends.candidates import Search

__all__ = ["Model", "open_model", "open_tokenizer", "tensor_bytes"]

Floats = npt.NDArray[np.float32]


class Model:
    """One model that holds one sequence at a time. A context manager; `close` is idempotent.

    Threads may share it: their passes take turns. An iterator whose sequence was replaced by another one refuses to go
    on, and every pass over a closed model raises ValueError.
    """

    def __init__(
        self,
        *,
        checkpoint: Checkpoint,
        resolution: Resolution,
        tokenizer: Tokenizer | CheckpointError,
        engine: Any,
        dispatcher: Dispatcher,
        loaded: Loaded,
        ledger: Ledger,
        threads: int,
        notes: tuple[str, ...],
        resources: ExitStack,
    ) -> None:
        self.checkpoint = checkpoint
        self.resolution = resolution
        self.engine = engine
        self.threads = threads
        self._tokenizer = tokenizer
        self._dispatcher = dispatcher
        self._loaded = loaded
        self._ledger = ledger
        self._notes = notes
        self._resources = resources
        self._decoded = Decoded()
        self._turn = threading.Lock()
        self._sequence: _Sequence | None = None
        self._closed = False

    # -- text

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text; special tokens are recognised, none is added."""
        return self._text().encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; bytes that are no UTF-8 become U+FFFD."""
        return self._text().decode(ids)

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the prompt text for chat messages, in the family's chat format and the checkpoint's revision of it."""
        rendered: str = self._chat().render(messages, revision=self.resolution.revision, **options)
        return rendered

    def _text(self) -> Tokenizer:
        if isinstance(self._tokenizer, CheckpointError):
            raise self._tokenizer
        return self._tokenizer

    def _chat(self) -> Any:
        # A family's chat format lies beside its engine.
        return importlib.import_module(".chat", type(self.engine).__module__.rpartition(".")[0])

    # -- numbers

    def logits(self, ids: Sequence[int], last: int | None = None) -> Floats:
        """Run `ids` as a new sequence; return float32 [n, vocab] of all positions, or of the last `last`.

        Raises UsageError for ids outside the vocabulary or more than the context holds.
        """
        tokens = _token_array(ids)
        return _Sequence(self._forward).forward(tokens, 0, len(tokens) if last is None else max(0, last))

    def generate(
        self,
        ids: Sequence[int],
        max_tokens: int = 32,
        temperature: float = 0.0,
        seed: int = 0,
        *,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        ignore_eos: bool = False,
    ) -> Iterator[int]:
        """Return an iterator over new token ids; greedy by default. An end token ends it and is not part of it."""
        given = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed}
        return self._tokens(ids, max_tokens, resolve_sampling(given, None), ignore_eos)

    def stream(
        self, ids: Sequence[int], max_tokens: int, sampling: Mapping[str, Any], stop: Sequence[str] = ()
    ) -> TextStream:
        """Return an iterator over pieces of text; its `result` holds ids, text, finish reason and timing.

        `sampling`: what the user gave; generation_config.json fills the rest. Without a tokenizer the text stays empty.
        """
        spelling = _Silence() if isinstance(self._tokenizer, CheckpointError) else self._tokenizer
        return TextStream(self._tokens(ids, max_tokens, self.sampling(sampling), False), spelling, stop)

    @property
    def has_text(self) -> bool:
        """Tell whether the checkpoint brings a tokenizer; without one a model takes and gives token ids only."""
        return not isinstance(self._tokenizer, CheckpointError)

    def sampling(self, given: Mapping[str, Any]) -> SamplingChoice:
        """Return the sampling values in force and where each comes from."""
        return resolve_sampling(given, self.checkpoint.generation_config)

    def _tokens(self, ids: Sequence[int], max_tokens: int, choice: SamplingChoice, ignore_eos: bool) -> TokenStream:
        eos = frozenset() if ignore_eos else eos_ids_of(self.checkpoint.generation_config, dict(self.resolution.text))
        return TokenStream(
            _Sequence(self._forward),
            _token_array(ids).tolist(),
            Sampler(choice.options, exp=_host.exp),
            max_tokens=max_tokens,
            context=self.engine.context,
            eos_ids=eos,
        )

    def _forward(self, sequence: _Sequence, ids: Sequence[int] | npt.NDArray[Any], position: int, want: int) -> Floats:
        with self._turn:
            self._require_open()
            if position == 0:
                self.engine.reset()
                self._sequence = sequence
            elif self._sequence is not sequence:
                # The caches hold the other sequence: going on would give an answer to its prompt.
                raise UsageError(
                    "this iterator",
                    "a model holds one sequence at a time, and another one was started",
                    fix="finish one answer before the next, or open the model twice",
                    code="usage.sequence",
                )
            started = time.perf_counter()
            rows: Floats = self.engine.forward(ids, position, want)
            self._decoded = self._decoded.plus(len(ids), position, time.perf_counter() - started)
            return rows

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self.checkpoint.path}: the model is closed")

    # -- what is going on

    def facts(self) -> dict[str, Any]:
        """Return family, backend (with why) and memory as plain data, sizes in bytes."""
        tiers = self._ledger.report()
        report, device = tiers["ram"], tiers.get("vram")
        experts = self.engine.store
        statistics = experts.statistics()
        return {
            "family": self.resolution.descriptor.id,
            "variant": self.resolution.name,
            "backend": {
                "name": self._loaded.name,
                "path": str(self._loaded.path),
                "device": self._loaded.device,
                "threads": self.threads,
                "numerics": "exact",
                "why": self._loaded.trace.why,
                "chain": [{"name": one.name, "stages": list(one.stages)} for one in self._loaded.chain],
            },
            "context": self.engine.context,
            "prefill_chunk": self.engine.prefill_chunk,
            "notes": list(self._notes),
            "io": self.checkpoint.io_mode,
            "memory": {
                "ram_limit_bytes": report["limit_bytes"],
                "ram_reserved_bytes": report["reserved_bytes"],
                "resident_bytes": resident_bytes(),
                "expert_slabs": experts.capacity,
                "experts": len(experts),
                "expert_hits": statistics.hits,
                "expert_misses": statistics.misses,
                "expert_read_bytes": statistics.bytes_read,
                "items": report["items"],
                "vram_limit_bytes": device and device["limit_bytes"],
                "vram_reserved_bytes": device and device["reserved_bytes"],
                "uploads": self._dispatcher.uploads(),
            },
        }

    def stage_rows(self) -> list[dict[str, Any]]:
        """Return, by stage and backend: calls, seconds, fallbacks with reasons."""
        return self._dispatcher.rows()

    def close(self) -> None:
        """Release memory, threads and files, after the pass that another thread may be in. Idempotent."""
        with self._turn:
            if not self._closed and self._decoded.passes:
                write_run_record(data_folder() / "runs", self._record())
            self._closed = True
            self._resources.close()

    def _record(self) -> RunRecord:
        memory = self.facts()["memory"]
        return RunRecord(
            model=str(self.checkpoint.path.resolve()),
            family=self.resolution.descriptor.id,
            context=self.engine.context,
            prefill_chunk=self.engine.prefill_chunk,
            threads=self.threads,
            io=self.checkpoint.io_mode,
            peak_resident_bytes=peak_resident_bytes(),
            tiers=self._ledger.report(),
            decoded=self._decoded,
            expert_slabs=memory["expert_slabs"],
            experts=memory["experts"],
            expert_hits=memory["expert_hits"],
            expert_misses=memory["expert_misses"],
        )

    def __enter__(self) -> Model:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Sequence:
    """One run of an engine from position 0 on; the model knows by it whether the caches are still its own."""

    def __init__(self, forward: Callable[[_Sequence, Sequence[int] | npt.NDArray[Any], int, int], Floats]) -> None:
        self._forward = forward

    def forward(self, ids: Sequence[int] | npt.NDArray[Any], position: int, want: int) -> Floats:
        return self._forward(self, ids, position, want)


class _Silence:
    """The spelling of tokens that nobody can spell."""

    def token_bytes(self, token: int) -> bytes:
        return b""


def open_model(
    path: str | Path,
    *,
    threads: int | None = None,
    context: int | None = 4096,
    prefill_chunk: int = 128,
    ram: int | str | None = None,
    io: str = "auto",
    vram: int | str | None = None,
    backend: str | None = None,
    search: Search | None = None,
    plugins: Sequence[str] | None = None,
    text: bool = False,
    progress: Callable[[int, int], None] | None = None,
    tell: Callable[[Fallback], None] | None = None,
) -> Model:
    """Open a checkpoint folder.

    `threads`: None takes the physical cores that this process may use. `context`: positions that prompt and answer may
    fill; None takes what the model was made for. `prefill_chunk`: prompt tokens computed at once. `ram`: hard limit in
    bytes, or a size such as "12GiB"; `vram` the same for the copies of weights on a device. `io`: `direct` reads past
    the page cache, `buffered` through it, `auto` takes what is faster for files of this size on this machine.
    `backend`: a name or a library file. `search`: where backends are looked for. `plugins`: allow list of family
    plugins. `text`: refuse a model without a tokenizer before its weights are read. `progress` is told (bytes done,
    bytes in all) while resident weights are read, `tell` every new fallback once. None of these changes a bit of the
    result.

    Raises CheckpointError, FamilyError, BackendRefused, BudgetError, UsageError; nothing stays open after an error.
    """
    with ExitStack() as resources:
        # What costs nothing comes first: nobody should fetch the rest of 160 GB, or wait for the dense weights, to
        # learn that no engine runs this model or that its tokenizer is missing.
        folder = find_snapshot(Path(path))
        config = read_config(child(folder, "config.json"))
        resolution = Registry.load(None if plugins is None else tuple(plugins)).resolve(config.data, str(config.path))
        resolution.require_engine(str(config.path))
        gpu = None if search is None or search.gpu == "none" else search.gpu
        given = {"--ram": ram, "--vram": vram, "--gpu": gpu}
        require_read(resolution.descriptor, [name for name, value in given.items() if value is not None])
        engine_class = load_engine(resolution.family, cache_folder())
        tokenizer = open_tokenizer(folder)
        checkpoint = resources.enter_context(Checkpoint.open(folder))
        if text and isinstance(tokenizer, CheckpointError):
            raise tokenizer
        checkpoint.rename(RoleTable(resolution.descriptor).canonical)
        loaded = load(backend, search or default_search(environment=Environment().for_tools()))
        threads = default_threads() if threads is None else threads
        _require_count("--threads", threads)
        _require_count("--prefill-chunk", prefill_chunk)
        context = _context(context, resolution)
        workspace = workspace_bytes(threads)
        runtime, memory = resident_bytes(), probe_host_memory()
        limit, notes = decide_limit(ram, memory, runtime)
        ledger = Ledger({"ram": limit})
        direct = decide_io(io, tensor_bytes(checkpoint), memory.available_bytes.value, limit) == "direct"
        for item in basis_items(runtime, workspace, vocabulary_of(resolution.text), READERS if direct else None):
            ledger.charge(item)
        if direct:
            checkpoint.read_directly(None if tell is None else lambda reason: tell(Fallback("reads", "direct", reason)))
        dispatcher = resources.enter_context(Dispatcher(loaded.chain, threads, workspace, tell, loaded.fast_library))
        device = dispatcher.device_memory()
        if device is not None:
            # The workspace is there by now, and counted already.
            ledger.charge(driver_item(max(0, resident_bytes() - runtime - workspace)))
            if not device.integrated:  # there a copy would only take from the memory that holds the original
                ledger.limit("vram", _vram_limit(vram, device, loaded))
        engine = engine_class(
            checkpoint,
            dict(resolution.text),
            dispatcher,
            ledger,
            context=context,
            prefill_chunk=prefill_chunk,
            progress=progress,
        )
        resources.callback(engine.close)
        return Model(
            checkpoint=checkpoint,
            resolution=resolution,
            tokenizer=tokenizer,
            engine=engine,
            dispatcher=dispatcher,
            loaded=loaded,
            ledger=ledger,
            threads=threads,
            notes=notes,
            resources=resources.pop_all(),
        )


def open_tokenizer(folder: Path) -> Tokenizer | CheckpointError:
    """Open the tokenizer, or keep the reason for the first use of text: token ids work without one."""
    try:
        return Tokenizer.open(folder)
    except CheckpointError as error:
        return error


def _require_count(option: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(
            option, "it must be a whole number, 1 or more", observed=repr(value), code=f"usage.{option.strip('-')}"
        )


def _context(context: int | None, resolution: Resolution) -> int:
    most = resolution.context
    if context is None:
        context = most or 4096
    _require_count("--ctx", context)
    if most is not None and context > most:
        raise UsageError(
            "--ctx",
            "it must fit the model",
            observed=str(context),
            expected=f"1 to {most}",
            code="usage.context",
        )
    return context


def tensor_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of all tensors in the files."""
    return sum(info.nbytes for info in checkpoint.tensors.values())


def _vram_limit(vram: int | str | None, device: DeviceMemory, loaded: Loaded) -> int:
    facts = loaded.trace.devices
    return vram_budget_bytes(
        device.free_bytes,
        shared_with_windows=facts is not None and facts.platform in ("wsl2", "windows"),
        asked_bytes=parse_size(vram) if isinstance(vram, str) else vram,
    )


def _token_array(ids: Sequence[int]) -> npt.NDArray[np.int32]:
    """Return int32 ids; one beyond 32 bits is outside every vocabulary, and is kept as -1 for the engine's message."""
    try:
        tokens = np.asarray(ids).reshape(-1)
    except ValueError:  # lists of different lengths
        tokens = np.asarray([None])
    if not tokens.size:
        return np.empty(0, np.int32)
    if tokens.dtype.kind not in "iu":  # 1.5 would become 1, and "5" 5
        raise UsageError("token ids", "they must be whole numbers", observed=repr(ids)[:80], code="usage.token-id")
    return np.where((tokens >= 0) & (tokens < 2**31), tokens, -1).astype(np.int32)
