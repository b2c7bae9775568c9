"""Reads past the page cache (O_DIRECT), and what a file system wants of them. Whatever it refuses is read buffered."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from coli.engine.ledger import Item
from coli.engine.mounts import mount_of, probe_mounts
from coli.engine.small_files import read_whole_number

__all__ = [
    "CHUNK_BYTES",
    "Alignment",
    "DirectReader",
    "DirectSupport",
    "decide_io",
    "direct_item",
    "open_direct",
    "page_aligned",
    "probe_direct",
]

# Of one read. The copy out of it is then made from the processor's cache.
CHUNK_BYTES = 2 << 20
# Below this a read is not worth the bytes that alignment adds.
_LEAST_BYTES = 256 << 10
_MOST_ALIGNMENT = 1 << 20
# A page. What reads need less, they take as well: blocks of 512 bytes are what old programs assumed.
_LEAST_ALIGNMENT = 4096

_STATX_DIOALIGN = 0x2000
_AT_EMPTY_PATH = 0x1000
_O_DIRECT = getattr(os, "O_DIRECT", 0)


@dataclass(frozen=True)
class DirectSupport:
    """Whether direct reads of a file work. ``alignment_bytes``: of offset, size and address, from ``source``.

    ``reason``: why they do not, or why it is not known which alignment they need; else empty.
    """

    works: bool
    alignment_bytes: int | None
    source: str
    reason: str


def probe_direct(path: Path) -> DirectSupport:
    """Open ``path`` for direct reads and read one block: an open that succeeds is no promise. Nothing is raised."""
    try:
        descriptor, alignment = open_direct(path)
    except OSError as error:
        return DirectSupport(False, None, "open", f"open with O_DIRECT: {error.strerror or error}")
    try:
        os.preadv(descriptor, [page_aligned(alignment.nbytes, alignment.nbytes)], 0)
    except OSError as error:
        return DirectSupport(False, alignment.nbytes, alignment.source, f"direct read: {error.strerror or error}")
    finally:
        os.close(descriptor)
    return DirectSupport(True, alignment.nbytes, alignment.source, "")


def decide_io(
    wanted: str, files_bytes: int, available_bytes: int | None, budget_bytes: int
) -> Literal["direct", "buffered"]:
    """Choose how weights are read; ``wanted``: `auto`, `direct` or `buffered`. Pure.

    A read that the page cache answers is three to five times as fast as the disk. One that it does not answer is a
    tenth faster past it, and takes 0.26 instead of 0.40 seconds of a processor for a GB (two cores, a virtual disk of
    0.75 GB/s). So the cache is used where, beside what the engine fills of ``available_bytes`` (up to
    ``budget_bytes``), it could hold half of the files.
    """
    if wanted != "auto":
        return "direct" if wanted == "direct" else "buffered"
    if not _O_DIRECT or available_bytes is None:
        return "buffered"
    left = available_bytes - min(budget_bytes, files_bytes)
    return "buffered" if left >= files_bytes // 2 else "direct"


def direct_item(readers: int) -> Item:
    """Return what direct reads hold in RAM: the memory of each reader, and of the thread that opens the model."""
    return Item("direct reads", "ram", CHUNK_BYTES, count=readers + 1)


class Alignment(NamedTuple):
    """Bytes, and who says so: `statx`, `logical_block_size` or `page size`."""

    nbytes: int
    source: str


def open_direct(path: Path) -> tuple[int, Alignment]:
    """Open for direct reads; return the descriptor and what its reads must be multiples of.

    Raises OSError where the system or the file system has none.
    """
    if not _O_DIRECT:
        raise OSError(errno.ENOTSUP, "this system has no O_DIRECT")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | _O_DIRECT)
    try:
        return descriptor, _alignment(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _alignment(descriptor: int) -> Alignment:
    """Return what direct reads of a file must be multiples of: statx says it from Linux 6.1 on, else the disk's block.

    Raises OSError when the kernel says that this file has none.
    """
    told = _statx_alignment(descriptor)
    if told is not None:
        if told == 0:
            raise OSError(errno.EINVAL, "statx: no direct reads of this file")
        return Alignment(max(told, _LEAST_ALIGNMENT), "statx")
    number = os.fstat(descriptor).st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for folder in (device, device / ".."):  # a partition's queue is its disk's
        size = read_whole_number(folder / "queue/logical_block_size")
        if size and size & (size - 1) == 0 and size <= _MOST_ALIGNMENT:
            return Alignment(max(size, _LEAST_ALIGNMENT), "logical_block_size")
    return Alignment(_LEAST_ALIGNMENT, "page size")


def _statx_alignment(descriptor: int) -> int | None:
    """Ask statx for STATX_DIOALIGN; None where kernel or file system do not tell."""
    function: Any = getattr(_libc(), "statx", None)
    if function is None:
        return None
    answer = (ctypes.c_uint32 * 64)()  # struct statx: 256 bytes
    if function(descriptor, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, answer) != 0 or not answer[0] & _STATX_DIOALIGN:
        return None
    memory, offset = answer[38], answer[39]  # stx_dio_mem_align, stx_dio_offset_align, bytes 152 and 156
    if not memory or not offset:
        return 0
    alignment = max(memory, offset)
    return alignment if alignment <= _MOST_ALIGNMENT and alignment & (alignment - 1) == 0 else None


def _libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):  # Windows has no such handle
        return None


class _File(NamedTuple):
    descriptor: int
    alignment: int
    file_system: int


class DirectReader:
    """Direct reads of files, for several threads. What a file system refuses is left to the caller, and told once.

    ``tell(file system, reason)`` is called once for each one that loses direct reads. Each thread that reads keeps
    CHUNK_BYTES of memory. ``mode``: how the last file went: `direct`, `buffered` where opening was refused,
    `buffered-after-read-error`; `buffered` before the first read.
    """

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self.mode = "buffered"
        self._tell = tell
        self._lock = threading.Lock()
        self._files: dict[Path, _File | None] = {}  # None: read another way
        self._descriptors: list[int] = []
        self._refusing: set[int] = set()
        self._memory = threading.local()
        # Who drops a reader without close must not keep its files.
        weakref.finalize(self, _close_all, self._descriptors)

    def read(self, path: Path, offset: int, views: Sequence[memoryview]) -> int:
        """Read from ``offset`` of ``path`` into ``views``, one after the other; return how many bytes were read.

        Fewer than asked for, and 0, mean that the rest is to be read another way: the file ends, the file system does
        not take it, or the disk fails, which the other way will find out. Raises OSError when the file cannot be opened
        either way.
        """
        wanted = sum(view.nbytes for view in views)
        file = self._file(path) if wanted >= _LEAST_BYTES else None
        done = 0
        while file is not None and done < wanted:
            position = offset + done
            start = position - position % file.alignment
            length = min(-(-(offset + wanted - start) // file.alignment) * file.alignment, CHUNK_BYTES)
            chunk = self._chunk(file.alignment)[:length]
            try:
                count = os.preadv(file.descriptor, [chunk], start) - (position - start)
            except OSError as error:
                with self._lock:
                    self._files[path] = None  # the descriptor stays open: another thread may be reading through it
                    reason = f"direct read: {error.strerror or error}"
                    self._refuse(path, file.file_system, "buffered-after-read-error", reason)
                break
            if count <= 0:
                break  # the end of the file
            count = min(count, wanted - done)
            _scatter(chunk[position - start :][:count], views, done)
            done += count
        return done

    def close(self) -> None:
        """Close the files. No read may be running."""
        with self._lock:
            self._files.clear()
            _close_all(self._descriptors)

    def _file(self, path: Path) -> _File | None:
        if path in self._files:
            return self._files[path]
        with self._lock:
            if path not in self._files:
                self._files[path] = self._opened(path)
            return self._files[path]

    def _opened(self, path: Path) -> _File | None:
        file_system = path.stat().st_dev
        if file_system in self._refusing:
            return None
        try:
            descriptor, alignment = open_direct(path)
        except OSError as error:
            self._refuse(path, file_system, "buffered", f"open with O_DIRECT: {error.strerror or error}")
            return None
        self.mode = "direct"
        self._descriptors.append(descriptor)
        return _File(descriptor, alignment.nbytes, file_system)

    def _refuse(self, path: Path, file_system: int, mode: str, reason: str) -> None:
        self.mode = mode
        if file_system not in self._refusing:
            self._refusing.add(file_system)
            mount = mount_of(str(path.resolve()), probe_mounts(Path("/")))
            self._tell(f"{mount.fs_type} at {mount.point}" if mount else str(path.parent), reason)

    def _chunk(self, alignment: int) -> memoryview:
        """Return this thread's aligned memory."""
        chunk: memoryview | None = getattr(self._memory, "chunk", None)
        if chunk is None:
            chunk = page_aligned(CHUNK_BYTES, alignment)
            self._memory.chunk = chunk
        return chunk


def page_aligned(nbytes: int, alignment: int = mmap.PAGESIZE) -> memoryview:
    """Return memory whose address is a multiple of ``alignment``. An anonymous map begins at a page."""
    memory = memoryview(mmap.mmap(-1, nbytes + max(0, alignment - mmap.PAGESIZE)))
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % alignment
    return memory[start : start + nbytes]


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _scatter(data: memoryview, views: Sequence[memoryview], skip: int) -> None:
    """Copy ``data`` into ``views`` from byte ``skip`` of all of them on."""
    import numpy as np  # its copy lets other threads run, a memoryview's does not

    for view in views:
        if skip >= view.nbytes:
            skip -= view.nbytes
            continue
        count = min(view.nbytes - skip, data.nbytes)
        if not count:
            break
        np.copyto(np.frombuffer(view, np.uint8)[skip : skip + count], np.frombuffer(data[:count], np.uint8))
        data, skip = data[count:], 0
