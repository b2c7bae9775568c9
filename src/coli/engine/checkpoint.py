"""A checkpoint on disk: its configuration, its tensors by name, and positional reads of their bytes."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from coli.engine.contents import Note, combined, read_contents
from coli.engine.direct import DirectReader
from coli.engine.location import find_snapshot, readable
from coli.engine.safetensors import Header, TensorInfo
from coli.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Checkpoint", "Note"]


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
        contents = read_contents(folder)
        if contents.config is None or contents.problems:
            raise combined(folder, contents.problems)
        shards = list(contents.headers.values())
        return cls(folder, contents.config, contents.generation_config, contents.tensors, shards, tuple(contents.notes))

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
