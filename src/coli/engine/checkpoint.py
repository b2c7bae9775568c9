"""A checkpoint on disk: its configuration, its tensors by name, and positional reads of their bytes."""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from coli.engine.direct import DirectReader
from coli.engine.location import child, find_snapshot, readable
from coli.engine.safetensors import Header, TensorInfo, read_header
from coli.errors import CheckpointError
from coli.families.config_file import read_config

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Checkpoint", "Note"]

INDEX_LIMIT_BYTES = 256 << 20
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_NUMBERED = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


class Note(NamedTuple):
    """Something odd that changes nothing: ``code`` is stable, ``subject`` a file or tensor."""

    code: str
    subject: str
    text: str


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: dict[str, Any] | None = None


class Checkpoint:
    """An open checkpoint. ``tensors``: names to places, those of the files until `rename`. ``notes``: oddities.

    A context manager. Reads may come from several threads; a file is opened at its first read, so at most one
    descriptor a shard is held. ``config`` and ``generation_config`` are the decoded files (None when there is no
    generation_config.json).
    """

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        generation_config: dict[str, Any] | None,
        tensors: dict[str, TensorInfo],
        shards: Sequence[Header],
        notes: Sequence[Note],
    ) -> None:
        self.path = path
        self.config = config
        self.generation_config = generation_config
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self.shards = tuple(shards)
        self.notes = tuple(notes)
        self._descriptors: dict[Path, int] = {}
        # A checkpoint that is dropped without close must not keep its files.
        weakref.finalize(self, _close_all, self._descriptors)
        self._direct: DirectReader | None = None
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def open(cls, path: Path | str) -> Checkpoint:
        """Open a folder, a Hugging Face cache (root, repository or snapshot); read all headers, no weights.

        Raises CheckpointError with every file that is missing or broken.
        """
        folder = find_snapshot(Path(path))
        with readable(folder):
            return cls._read(folder)

    @classmethod
    def _read(cls, folder: Path) -> Checkpoint:
        notes: list[Note] = []
        config = _read_config(folder, "config.json", notes)
        generation_config = None
        if os.path.lexists(folder / "generation_config.json"):
            generation_config = _read_config(folder, "generation_config.json", notes)
        index = _read_index(folder)
        names = sorted(set(index.weight_map.values())) if index else [_single_file(folder)]
        headers = _read_headers(folder, names)
        tensors = _join(folder, headers, index, notes)
        _note_strays(folder, set(names), notes)
        return cls(folder, config, generation_config, tensors, list(headers.values()), notes)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def rename(self, canonical: Callable[[str], str]) -> None:
        """Give every tensor its family's own name. Raises CheckpointError when two of them would share one."""
        tensors: dict[str, TensorInfo] = {}
        for name, info in self.tensors.items():
            own = canonical(name)
            other = tensors.setdefault(own, info if own == name else msgspec.structs.replace(info, name=own))
            if other.path != info.path or other.offset != info.offset:
                raise CheckpointError(
                    f"{self.path}: {own}",
                    "the checkpoint holds this tensor under two names",
                    observed=f"once in {other.path.name}, once as {name} in {info.path.name}",
                    fix="keep one of the two layouts",
                    code="checkpoint.two-spellings",
                )
        self.tensors = MappingProxyType(tensors)

    def __getitem__(self, name: str) -> TensorInfo:
        """Return the place of a tensor. Raises CheckpointError with the file that should hold it."""
        try:
            return self.tensors[name]
        except KeyError:
            raise CheckpointError(
                f"{self.path}: {name}",
                "the checkpoint has no tensor of this name",
                observed=f"{len(self.tensors)} tensors in {len(self.shards)} files",
                fix="the checkpoint is incomplete or of another model type than its config.json says",
                code="checkpoint.missing-tensor",
            ) from None

    def read_directly(self, tell: Callable[[str], None] | None = None) -> None:
        """Read large runs past the page cache from now on. Not while a read is running.

        A file system that does not take it is read as before; ``tell`` is told once for each, and a note is kept.
        """

        def lost(subject: str, reason: str) -> None:
            text = f"{reason}; {subject} is read through the page cache, which costs more of the processor"
            self.notes = (*self.notes, Note("io.buffered", subject, text))
            if tell is not None:
                tell(text)

        if self._direct is None:
            self._direct = DirectReader(lost)

    @property
    def io_mode(self) -> str:
        """Return how weights are read: `direct`, `buffered`, or `buffered-after-read-error`."""
        return "buffered" if self._direct is None else self._direct.mode

    def read_into(self, name: str, buffer: Any) -> None:
        """Read the raw bytes of a tensor into a writable contiguous buffer of exactly its size."""
        info = self[name]
        view = memoryview(buffer).cast("B")
        if view.nbytes != info.nbytes:
            raise ValueError(f"{name}: the buffer holds {view.nbytes} bytes, the tensor {info.nbytes}")
        self.read_run([info], [view])

    def read(self, name: str) -> NDArray[np.uint8]:
        """Return the raw bytes of a tensor: uint8 [nbytes]."""
        import numpy as np

        data = np.empty(self[name].nbytes, np.uint8)
        self.read_into(name, data)
        return data

    def read_run(self, infos: Sequence[TensorInfo], views: Sequence[memoryview]) -> None:
        """Read tensors that lie one after another in one file, each into its own view of exactly its size.

        Buffered, it is one system call, unless the system cuts it short. Raises CheckpointError naming the first tensor
        that came short.
        """
        path, offset = infos[0].path, infos[0].offset
        descriptor = self._descriptor(path)
        pending = [view for view in views if view.nbytes]
        done = 0
        if self._direct is not None:
            done = self._direct.read(path, offset, pending)
            _drop(pending, done)
        while pending:
            try:
                count = os.preadv(descriptor, pending, offset + done)
            except OSError as error:
                raise self._short(infos, done, error.strerror or str(error)) from error
            if count == 0:
                raise self._short(infos, done, "the file ends here")
            done += count
            _drop(pending, count)

    def _short(self, infos: Sequence[TensorInfo], done: int, reason: str) -> CheckpointError:
        end = infos[0].offset + done
        info = next(info for info in infos if info.offset + info.nbytes > end)
        return CheckpointError(
            f"{info.path}: {info.name}",
            "the tensor could not be read",
            observed=f"{reason}, at byte {end}",
            expected=f"{info.nbytes} bytes from byte {info.offset}",
            fix="check the disk and that nothing changes the file while the model runs",
            code="checkpoint.short-read",
        )

    def _descriptor(self, path: Path) -> int:
        descriptor = self._descriptors.get(path)
        if descriptor is not None:
            return descriptor
        with self._lock:
            if self._closed:
                raise ValueError(f"{self.path}: the checkpoint is closed")
            descriptor = self._descriptors.get(path)
            if descriptor is None:
                with readable(path):
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._descriptors[path] = descriptor
            return descriptor

    def close(self) -> None:
        """Close the files. No read may be running; later ones raise ValueError."""
        with self._lock:
            self._closed = True
            _close_all(self._descriptors)
            if self._direct is not None:
                self._direct.close()


def _drop(views: list[memoryview], count: int) -> None:
    """Drop the first ``count`` bytes of ``views``."""
    while views and count >= views[0].nbytes:
        count -= views.pop(0).nbytes
    if count:
        views[0] = views[0][count:]


def _close_all(descriptors: dict[Path, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def _read_config(folder: Path, name: str, notes: list[Note]) -> dict[str, Any]:
    file = read_config(child(folder, name))
    notes.extend(Note("checkpoint.config", name, text) for text in file.notes)
    return file.data


def _read_index(folder: Path) -> _Index | None:
    if not os.path.lexists(folder / _INDEX):
        return None
    path = child(folder, _INDEX)
    try:
        with path.open("rb") as file:
            raw = file.read(min(path.stat().st_size, INDEX_LIMIT_BYTES) + 1)
        if len(raw) > INDEX_LIMIT_BYTES:
            raise ValueError(f"larger than {INDEX_LIMIT_BYTES} bytes")
        index = msgspec.json.decode(raw, type=_Index)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise CheckpointError(
            str(path),
            "the index must be a JSON object whose weight_map gives the file of each tensor",
            observed=str(error),
            fix="download this file again",
            code="checkpoint.index",
        ) from error
    if not index.weight_map:
        raise CheckpointError(
            str(path), "the weight_map is empty", fix="download this file again", code="checkpoint.index"
        )
    for name in set(index.weight_map.values()):
        # An index is untrusted: it must not make the program open files outside of the folder.
        if Path(name).name != name or "\\" in name or "\0" in name or not name.endswith(".safetensors"):
            raise CheckpointError(
                str(path),
                "the index must name .safetensors files in its own folder",
                observed=repr(name[:200]),
                code="checkpoint.index",
            )
    return index


def _single_file(folder: Path) -> str:
    if os.path.lexists(folder / _SINGLE):
        return _SINGLE
    present = sorted(entry.name for entry in folder.iterdir())
    numbered = [name for name in present if _NUMBERED.fullmatch(name)]
    if numbered:
        raise CheckpointError(
            str(folder / _INDEX),
            "the index of the weight files is missing",
            observed=f"{len(numbered)} weight files, {numbered[0]} to {numbered[-1]}",
            fix="download model.safetensors.index.json from the same place",
            code="checkpoint.missing-index",
        )
    others = [
        name for name in present if name.endswith((".safetensors", ".bin", ".pt", ".pth", ".gguf", ".incomplete"))
    ]
    raise CheckpointError(
        str(folder),
        "the folder holds no weights",
        observed=", ".join(others[:8]) or "no weight files of any kind",
        expected=f"{_INDEX} with its files, or {_SINGLE}",
        fix="download the safetensors files of the model",
        code="checkpoint.no-weights",
    )


def _read_headers(folder: Path, names: Sequence[str]) -> dict[str, Header]:
    headers: dict[str, Header] = {}
    problems: list[CheckpointError] = []
    missing: list[str] = []
    for name in names:
        try:
            if os.path.lexists(folder / name):
                headers[name] = read_header(child(folder, name))
            elif any(folder.glob(f"{name}*.incomplete")):
                headers[name] = read_header(next(folder.glob(f"{name}*.incomplete")))
            else:
                missing.append(name)
        except CheckpointError as error:
            problems.append(error)
    if missing:
        problems.append(
            CheckpointError(
                str(folder),
                f"{len(missing)} of {len(names)} weight files are missing",
                observed=f"not there: {', '.join(missing[:20])}"
                + (f" and {len(missing) - 20} more" if len(missing) > 20 else ""),
                fix=_how_to_fetch(folder, missing),
                code="checkpoint.missing-shard",
            )
        )
    if problems:
        raise _combined(folder, problems)
    return headers


def _how_to_fetch(folder: Path, missing: Sequence[str]) -> str:
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        # In a cache the hub's own tool knows the place; files copied beside its links would be a second truth.
        name = repository.removeprefix("models--").replace("--", "/", 1)
        return f"`hf download {name}` fetches what is missing; what is there is kept"
    return (
        f"download just {'that file' if len(missing) == 1 else 'those files'}, for example "
        f"`hf download REPOSITORY {missing[0]} --local-dir {folder}`"
    )


def _combined(folder: Path, problems: Sequence[CheckpointError]) -> CheckpointError:
    """Return one error for all: a user who must fetch ten files should learn it at once."""
    first = problems[0]
    if len(problems) == 1:
        return first
    lines = [f"{Path(p.subject).name}: {p.rule}" + (f" ({p.observed})" if p.observed else "") for p in problems[:20]]
    if len(problems) > 20:
        lines.append(f"and {len(problems) - 20} more")
    return CheckpointError(
        str(folder),
        f"{len(problems)} problems with the weight files",
        observed="\n            ".join(lines),
        fix=first.fix,
        code=first.code,
    )


def _join(
    folder: Path, headers: Mapping[str, Header], index: _Index | None, notes: list[Note]
) -> dict[str, TensorInfo]:
    """Join the headers into one table; where the index says something else, the headers are right."""
    weight_map: Mapping[str, str] = index.weight_map if index else {}
    found: dict[str, str] = {}
    tensors: dict[str, TensorInfo] = {}
    unlisted = 0
    for file, header in headers.items():
        for name, info in header.tensors.items():
            claimed = weight_map.get(name)
            if name in found:  # two files hold it: only the index can tell which one counts
                if claimed not in (file, found[name]):
                    raise _twice(folder, name, found[name], file)
                notes.append(
                    Note("checkpoint.tensor-twice", name, f"in {found[name]} and {file}; the index names {claimed}")
                )
                if claimed != file:
                    continue
            unlisted += index is not None and claimed is None
            found[name] = file
            tensors[name] = info
    if unlisted:
        notes.append(
            Note("checkpoint.unlisted-tensors", _INDEX, f"{unlisted} tensors in the files are not in the index")
        )
    if index is not None:
        _compare(folder, index, found, tensors, notes)
    return tensors


def _twice(folder: Path, name: str, first: str, second: str) -> CheckpointError:
    return CheckpointError(
        f"{folder}: {name}",
        "two weight files hold this tensor and the index names neither",
        observed=f"{first} and {second}",
        fix="remove the files of the other release from the folder",
        code="checkpoint.tensor-twice",
    )


def _compare(
    folder: Path, index: _Index, found: Mapping[str, str], tensors: Mapping[str, TensorInfo], notes: list[Note]
) -> None:
    absent = [name for name in index.weight_map if name not in found]
    misplaced = [name for name, file in index.weight_map.items() if found.get(name, file) != file]
    if absent:
        shown = ", ".join(f"{name} ({index.weight_map[name]})" for name in absent[:10])
        raise CheckpointError(
            str(folder / _INDEX),
            f"{len(absent)} tensors of the index are in none of the weight files",
            observed=shown
            + (f" and {len(absent) - 10} more" if len(absent) > 10 else "")
            + (
                f"; {len(misplaced)} others are in another file than it says, first {misplaced[0]}" if misplaced else ""
            ),
            fix="index and weight files are of different releases: download both again",
            code="checkpoint.absent-tensor",
        )
    for name in misplaced:
        text = f"the index says {index.weight_map[name]}, it is in {found[name]}"
        notes.append(Note("checkpoint.misplaced-tensor", name, text))
    claimed = (index.metadata or {}).get("total_size")
    total = sum(info.nbytes for info in tensors.values())
    if isinstance(claimed, int) and claimed != total:
        notes.append(Note("checkpoint.total-size", _INDEX, f"the index says {claimed} bytes, the tensors have {total}"))


def _note_strays(folder: Path, used: set[str], notes: list[Note]) -> None:
    for entry in sorted(folder.iterdir()):
        if entry.name not in used and entry.name.endswith((".safetensors", ".incomplete")):
            notes.append(Note("checkpoint.ignored-file", entry.name, "not part of the model, ignored"))
