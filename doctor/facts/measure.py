"""Bandwidths measured on this machine, kept in the cache folder for the plan. What is measured is only read."""

from __future__ import annotations

import ctypes
import datetime
import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from coli.atomic_file import write_atomically
from coli.backends.devices.facts import UNKNOWN, Fact
from coli.doctor.facts.storage import StorageFacts
from coli.engine.direct import open_direct, page_aligned
from coli.engine.host_memory import probe_host_memory
from coli.engine.small_files import read_small

__all__ = ["EXPERT_RECORD_BYTES", "DiskRead", "Measured", "probe_bandwidth", "read_measured", "write_measured"]

EXPERT_RECORD_BYTES = 13_369_344  # of the released Flash
_READERS = (2, 4, 8)
_DISK_S = 1.3  # for each number of readers
_SILENCE_S = 3.0  # a disk that has not answered by then is not waited for
_FEWEST_RECORDS = 16
_MEMORY_S = 0.6
# All arrays together: more than processors have of cache. Less where that is a quarter of what is available.
_MEMORY_BYTES = 2 << 30
_ARRAY_BYTES = 128 << 20
_PATTERN_BYTES = 1 << 20
_ANSWER_LIMIT_BYTES = 64 << 10


class DiskRead(msgspec.Struct, frozen=True):
    """Reading whole expert records with ``readers`` threads. ``how``: `direct` or `buffered`."""

    readers: int
    record_bytes: int
    read_bytes: int
    seconds: float
    how: str

    @property
    def bytes_per_s(self) -> float:
        """Return the rate."""
        return self.read_bytes / self.seconds


class Measured(msgspec.Struct, frozen=True):
    """``storage``: mount and device that were measured. ``date``: ISO 8601, UTC. Rates in bytes per second.

    ``disk_bytes_per_s``: the best of ``disk_reads``. ``pcie_bytes_per_s`` is not known without a CUDA backend.
    ``not_kept``: why it could not be written to the cache folder.
    """

    storage: str
    date: str
    disk_bytes_per_s: Fact[float] = UNKNOWN
    disk_reads: tuple[DiskRead, ...] = ()
    memory_bytes_per_s: Fact[float] = UNKNOWN
    pcie_bytes_per_s: Fact[float] = UNKNOWN
    not_kept: str | None = None


def probe_bandwidth(storage: StorageFacts, files: Sequence[Path], threads: int) -> Measured:
    """Measure the disk by reading expert records of ``files``, and memory with ``threads`` threads: about 6 s.

    ``files``: weight files on ``storage``; they are only read. Nothing is raised: what cannot be measured is unknown.
    """
    reads, reason = _measure_disk(files)
    disk: Fact[float] = Fact.unknown(reason)
    if reads:
        best = max(reads, key=lambda read: read.bytes_per_s)
        disk = Fact.of(best.bytes_per_s, f"{best.how} reads of expert records, {best.readers} at once")
    return Measured(
        _name(storage),
        datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        disk,
        reads,
        _measure_memory(threads),
        Fact.unknown("only a CUDA backend can measure the bus: `coli build` makes one where there is a device"),
    )


def read_measured(folder: Path, storage: StorageFacts) -> Measured | None:
    """Return what was measured for a mount before; None when nothing was, or the file is not ours."""
    text = read_small(_file(folder, storage), _ANSWER_LIMIT_BYTES)
    try:
        found = msgspec.json.decode(text or "", type=Measured)
    except (msgspec.DecodeError, RecursionError):
        return None
    rates = (found.disk_bytes_per_s, found.memory_bytes_per_s, found.pcie_bytes_per_s)
    sane = all(rate.value is None or 0 < rate.value < 1e14 for rate in rates)
    sane = sane and all(read.seconds > 0 for read in found.disk_reads)
    return found if sane and found.storage == _name(storage) else None


def write_measured(folder: Path, storage: StorageFacts, measured: Measured) -> None:
    """Keep ``measured`` in the cache folder. Raises OSError when it cannot be written."""
    path = _file(folder, storage)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(measured), indent=2).decode() + "\n")


def _name(storage: StorageFacts) -> str:
    return f"{storage.mount_point.value or storage.path} ({storage.mount_source.value or 'unknown'})"


def _file(folder: Path, storage: StorageFacts) -> Path:
    return folder / "measured" / f"{hashlib.sha256(_name(storage).encode()).hexdigest()[:24]}.json"


class _Source:
    """Records of files in a random order, each once: the second read of one would come from some cache."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.descriptors: list[int] = []
        self.direct = True
        self.reason = "no weight files"
        self._lock = threading.Lock()
        self._records: list[tuple[int, int]] = []
        for file in files:
            try:
                # A record is a multiple of a page, and so is its place: any alignment but the rarest.
                count = file.stat().st_size // EXPERT_RECORD_BYTES
                descriptor = self._open(file)
            except OSError as error:
                self.reason = f"{file.name}: {error.strerror or error}"
                continue
            self.descriptors.append(descriptor)
            self._records += [(descriptor, number * EXPERT_RECORD_BYTES) for number in range(count)]
        if self.descriptors:
            self.reason = (
                f"its weight files hold {len(self._records)} records of {EXPERT_RECORD_BYTES} bytes, "
                f"and {_FEWEST_RECORDS} are needed"
            )
        random.shuffle(self._records)

    def _open(self, file: Path) -> int:
        if self.direct:
            try:
                return open_direct(file)[0]
            except OSError:
                self.direct = False
        return os.open(file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def __len__(self) -> int:
        return len(self._records)

    def take(self) -> tuple[int, int] | None:
        with self._lock:
            return self._records.pop() if self._records else None

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


def _measure_disk(files: Sequence[Path]) -> tuple[tuple[DiskRead, ...], str]:
    source = _Source(files)
    reads: list[DiskRead] = []
    reason = source.reason
    silent = False
    if len(source) >= _FEWEST_RECORDS:
        share = len(source) // len(_READERS)  # so that the last number of readers has records, too
        for readers in _READERS:
            read = _read_records(source, readers, len(source) - share if readers != _READERS[-1] else 0)
            if isinstance(read, str):
                reason, silent = read, True
                break
            if read.read_bytes:
                reads.append(read)
    if not silent:  # a thread that hangs in a read still uses them
        source.close()
    return tuple(reads), reason


def _read_records(source: _Source, readers: int, leave: int) -> DiskRead | str:
    """Read records with ``readers`` threads for a while, until ``leave`` of them are left."""
    done: list[int] = []
    failed: list[str] = []
    started = time.perf_counter()

    def work() -> None:
        memory = page_aligned(EXPERT_RECORD_BYTES)
        first = True  # one read at least, however late a busy machine starts the thread
        while (first or time.perf_counter() - started < _DISK_S) and len(source) > leave and (record := source.take()):
            first = False
            descriptor, offset = record
            try:
                if not source.direct and hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(descriptor, offset, EXPERT_RECORD_BYTES, os.POSIX_FADV_DONTNEED)
                done.append(os.preadv(descriptor, [memory], offset))
            except OSError as error:
                failed.append(error.strerror or str(error))
                return

    if not _all_ended(work, readers, started + _DISK_S + _SILENCE_S):
        return f"the disk did not answer within {_SILENCE_S:g} s"
    if failed:
        return f"reading: {failed[0]}"
    seconds = time.perf_counter() - started
    return DiskRead(readers, EXPERT_RECORD_BYTES, sum(done), seconds, "direct" if source.direct else "buffered")


def _measure_memory(threads: int) -> Fact[float]:
    """Read arrays larger than any cache with the C library's memchr, which looks for a byte that is not there."""
    try:
        search = ctypes.CDLL(None).memchr
    except (OSError, TypeError, AttributeError):
        return Fact.unknown("this system's C library is not at hand")
    search.argtypes, search.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), ctypes.c_void_p
    share = min(_MEMORY_BYTES, (probe_host_memory().available_bytes.value or 0) // 4) // max(1, threads)
    size = min(_ARRAY_BYTES, share - share % _PATTERN_BYTES)
    if not size:
        return Fact.unknown("too little memory is available")
    try:
        arrays = [page_aligned(size) for _ in range(threads)]
        for array in arrays:
            for start in range(0, size, _PATTERN_BYTES):  # a page that nobody wrote is the one page of zeros
                array[start : start + _PATTERN_BYTES] = b"\1" * _PATTERN_BYTES
    except (OSError, MemoryError):
        return Fact.unknown(f"no {threads * size >> 20} MiB to read")
    waiting = list(arrays)
    read: list[int] = []
    started = time.perf_counter()

    def work() -> None:
        array = waiting.pop()
        address = ctypes.addressof(ctypes.c_char.from_buffer(array))
        while True:
            search(address, 2, size)
            read.append(size)
            if time.perf_counter() - started >= _MEMORY_S:
                return

    if not _all_ended(work, threads, started + _MEMORY_S + _SILENCE_S):
        return Fact.unknown("the threads did not end")
    rate = sum(read) / (time.perf_counter() - started)
    return Fact.of(rate, f"memchr over {size >> 20} MiB in each of {threads} threads")


def _all_ended(work: Callable[[], None], count: int, deadline: float) -> bool:
    """Run ``work`` in threads; False when one of them has not ended by ``deadline``. Nobody can end it then."""
    threads = [threading.Thread(target=work, daemon=True, name="coli-measure") for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.perf_counter()))
    return not any(thread.is_alive() for thread in threads)
