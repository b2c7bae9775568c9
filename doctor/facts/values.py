"""The weights read through: stretches of zeros that a half copy leaves, codes that are no number.

Every byte is read, once and in order. Scale codes and small tensors are looked at completely; of larger ones the first
64 KiB of each MiB, so that the same places are looked at each time and the disk stays the limit.
"""

from __future__ import annotations

import bisect
import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from coli.doctor.facts.problem import Problem, Status
from coli.engine.safetensors import Header, TensorInfo

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Bad = Callable[[Bytes], int]

__all__ = ["Values", "read_values"]

BLOCK_BYTES = 8 << 20
READERS = 2
_PAGE_BYTES = 4096
_ZEROS_LEAST_BYTES = 64 << 10
_SAMPLE_BYTES, _SAMPLE_EVERY_BYTES = 64 << 10, 1 << 20
_CODES = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F4", "I8", "U8")
# The highest scale code that decodes to a finite factor, by the dtype of the weight (docs/numerics.md).
_HIGHEST_SCALE = {"I8": 253, "F8_E4M3": 246}
_SHOWN = 10


@dataclass(frozen=True)
class Values:
    """What reading found. ``data_bytes`` is what there was to read, ``checked_tensors`` those whose codes were seen."""

    read_bytes: int
    data_bytes: int
    checked_tensors: int
    problems: tuple[Problem, ...]


@dataclass
class _Shard:
    """One file and what was found in it: runs of zeros, and wrong codes of each tensor."""

    header: Header
    read_bytes: int = 0
    zeros: list[tuple[int, int]] = field(default_factory=list)
    wrong: dict[str, int] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)
    error: str | None = None


def read_values(headers: Sequence[Header], progress: Callable[[int, int], None] | None = None) -> Values:
    """Read all data of weight files; never raises for what a file holds or a disk says.

    ``progress`` is called from this thread with the bytes done and the bytes to do. Memory: 8 MiB a reader.
    """
    total = sum(_end(header) - _start(header) for header in headers)
    stop = threading.Event()
    shards = [_Shard(header) for header in headers]
    with ThreadPoolExecutor(READERS, "deep") as pool:
        pending: set[Future[None]] = {pool.submit(_read_shard, shard, stop) for shard in shards}
        try:
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                if progress is not None:
                    progress(sum(shard.read_bytes for shard in shards), total)
        finally:
            stop.set()
            for future in pending:
                future.cancel()
    problems = [problem for shard in shards for problem in _problems(shard)]
    checked = sum(len(shard.checked) for shard in shards)
    return Values(sum(shard.read_bytes for shard in shards), total, checked, tuple(problems))


def _start(header: Header) -> int:
    return 8 + header.header_bytes


def _end(header: Header) -> int:
    """Return where the data ends: the file may be cut off."""
    ends = [info.offset + info.nbytes for info in header.tensors.values()]
    return max(_start(header), min(max(ends, default=0), header.file_bytes))


def _read_shard(shard: _Shard, stop: threading.Event) -> None:
    import numpy as np

    header = shard.header
    tensors = sorted(header.tensors.values(), key=lambda info: info.offset)
    offsets = [info.offset for info in tensors]
    checks = {info.name: check for info in tensors if (check := _check(info, header)) is not None}
    buffer = np.empty(BLOCK_BYTES, np.uint8)
    run: int | None = None  # where the zeros that are going on began
    at, end = _start(header), _end(header)
    try:
        descriptor = os.open(header.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, at, end - at, os.POSIX_FADV_SEQUENTIAL)
            while at < end and not stop.is_set():
                data = _next_data(descriptor, at, end)
                if data > at:  # a hole of a sparse file: zeros that need no reading
                    run = at if run is None else run
                    shard.read_bytes += data - at
                    at = data
                    continue
                count = os.preadv(descriptor, [buffer.data[: min(BLOCK_BYTES, end - at)]], at)
                if count == 0:
                    shard.error = f"the file ends at byte {at}"
                    break
                cut = _cut_element(tensors, offsets, at + count)
                count -= cut if at + count < end and cut < count else 0
                block = buffer[:count]
                run = _find_zeros(block, at, run, shard.zeros)
                for info in _tensors_in(tensors, offsets, at, at + count):
                    if info.name in checks:
                        shard.checked.add(info.name)
                        wrong = sum(checks[info.name](part) for part in _samples(info, block, at))
                        if wrong:
                            shard.wrong[info.name] = shard.wrong.get(info.name, 0) + wrong
                at += count
                shard.read_bytes += count
        finally:
            os.close(descriptor)
    except OSError as error:
        shard.error = f"{error.strerror or error} at byte {at}"
    if run is not None and at - run >= _ZEROS_LEAST_BYTES:
        shard.zeros.append((run, at))


def _next_data(descriptor: int, at: int, end: int) -> int:
    """Return where the next bytes that a sparse file really has begin; ``at`` when the system does not tell."""
    if not hasattr(os, "SEEK_DATA"):
        return at
    try:
        return min(end, os.lseek(descriptor, at, os.SEEK_DATA))
    except OSError as error:
        # No data behind `at`: a hole up to the end of the file, or the file is not as long any more.
        return max(at, min(end, os.fstat(descriptor).st_size)) if error.errno == errno.ENXIO else at


def _find_zeros(block: Bytes, at: int, run: int | None, zeros: list[tuple[int, int]]) -> int | None:
    """Add the finished runs of zero pages to ``zeros``; return where one that goes on began."""
    import numpy as np

    whole = block.size - block.size % _PAGE_BYTES
    pages = block[:whole].view(np.uint64).reshape(-1, _PAGE_BYTES // 8)
    # A cache line of each page rules nearly all of them out.
    likely = np.flatnonzero(pages[:, :8].any(axis=1) == 0)
    empty = np.zeros(len(pages), np.bool_)
    empty[likely] = pages[likely].any(axis=1) == 0
    if whole < block.size:
        empty = np.append(empty, not block[whole:].any())
    turns = np.flatnonzero(np.diff(empty.astype(np.int8), prepend=np.int8(run is not None)))
    for page in turns.tolist():
        place = at + page * _PAGE_BYTES
        if run is None:
            run = place
        else:
            if place - run >= _ZEROS_LEAST_BYTES:
                zeros.append((run, place))
            run = None
    return run


def _tensors_in(tensors: Sequence[TensorInfo], offsets: Sequence[int], first: int, last: int) -> Iterator[TensorInfo]:
    number = max(0, bisect.bisect_right(offsets, first) - 1)
    while number < len(tensors) and tensors[number].offset < last:
        yield tensors[number]
        number += 1


def _cut_element(tensors: Sequence[TensorInfo], offsets: Sequence[int], end: int) -> int:
    """Return how many bytes before ``end`` begin an element that goes on behind it (the widest have 8 bytes)."""
    info = tensors[max(0, bisect.bisect_right(offsets, end) - 1)]
    return (end - info.offset) % 8 if info.offset < end < info.offset + info.nbytes else 0


def _samples(info: TensorInfo, block: Bytes, at: int) -> Iterator[Bytes]:
    """Yield the parts of a tensor in a block that are looked at, in whole elements."""
    width = _WIDTHS[info.dtype]
    first, last = max(info.offset, at), min(info.offset + info.nbytes, at + block.size)
    every, size = _SAMPLE_EVERY_BYTES, _SAMPLE_BYTES
    if info.dtype == "F8_E8M0" or info.nbytes <= every:
        every = size = info.nbytes
    if last <= first:
        return
    for number in range((first - info.offset) // every, (last - 1 - info.offset) // every + 1):
        begin = info.offset + number * every
        low, high = max(first, begin), min(last, begin + size)
        low += -(low - info.offset) % width
        high -= (high - info.offset) % width
        if high > low:
            yield block[low - at : high - at]


_WIDTHS = {
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1,
    "F16": 2,
    "BF16": 2,
    "F32": 4,
    "F64": 8,
}


def _check(info: TensorInfo, header: Header) -> Bad | None:
    """Return what counts the codes of a tensor that are no finite number, None for dtypes that have none."""
    import numpy as np

    if info.dtype == "F8_E8M0":
        weight = header.tensors.get(info.name.removesuffix(".scale") + ".weight")
        highest = _HIGHEST_SCALE.get(weight.dtype if weight else "", 254)
        return lambda part: int(np.count_nonzero(part > highest))
    if info.dtype == "F8_E4M3":
        return lambda part: int(np.count_nonzero((part & 0x7F) == 0x7F))
    if info.dtype == "F8_E5M2":
        return lambda part: int(np.count_nonzero((part & 0x7F) >= 0x7C))
    if info.dtype in ("F8_E4M3FNUZ", "F8_E5M2FNUZ"):
        return lambda part: int(np.count_nonzero(part == 0x80))
    if info.dtype == "BF16":
        return lambda part: int(np.count_nonzero((part.view(np.uint16) & 0x7F80) == 0x7F80))
    floats = {"F16": np.float16, "F32": np.float32, "F64": np.float64}.get(info.dtype)
    if floats is None:
        return None
    return lambda part: part.size // np.dtype(floats).itemsize - int(np.count_nonzero(np.isfinite(part.view(floats))))


def _problems(shard: _Shard) -> Iterator[Problem]:
    path = shard.header.path
    if shard.error is not None:
        yield Problem(
            "checkpoint.unreadable",
            "fail",
            "values",
            str(path),
            "the weights cannot be read to the end",
            shard.error,
            "check the disk and its cable, then download this file again",
        )
    if shard.wrong:
        yield _wrong_codes(path, shard)
    for first, last in shard.zeros[:_SHOWN]:
        yield _zeros(path, shard.header, first, last)
    if len(shard.zeros) > _SHOWN:
        text = f"{len(shard.zeros) - _SHOWN} more stretches are filled with zeros"
        yield Problem("checkpoint.zero-stretch", "note", "values", str(path), text)


def _wrong_codes(path: Path, shard: _Shard) -> Problem:
    scales = [name for name in shard.wrong if shard.header.tensors[name].dtype == "F8_E8M0"]
    first = (scales or list(shard.wrong))[0]
    what = "scale codes that decode to no finite factor" if scales else "values that are no finite number"
    shown = ", ".join(f"{name} ({count})" for name, count in list(shard.wrong.items())[:_SHOWN])
    more = f" and {len(shard.wrong) - _SHOWN} more tensors" if len(shard.wrong) > _SHOWN else ""
    return Problem(
        "checkpoint.scale-code" if scales else "checkpoint.not-finite-weight",
        "fail",
        "values",
        f"{path}: {first}",
        f"{len(shard.wrong)} tensors have {what}",
        f"number of them: {shown}{more}",
        "download this file again; if it stays, the conversion of this release is broken",
        {"tensors": dict(shard.wrong), "file": path.name},
    )


def _zeros(path: Path, header: Header, first: int, last: int) -> Problem:
    """Judge a run of zeros: padding rows of a vocabulary are zeros too, a whole matrix of them is none."""
    touched = [
        info
        for info in header.tensors.values()
        if min(last, info.offset + info.nbytes) - max(first, info.offset) >= _PAGE_BYTES
    ]
    whole = [
        info
        for info in touched
        if info.nbytes >= _ZEROS_LEAST_BYTES
        and first <= info.offset + _PAGE_BYTES
        and last >= info.offset + info.nbytes - _PAGE_BYTES
    ]
    codes = [info for info in touched if info.dtype in _CODES]
    status: Status = "note"
    if whole or (codes and (len(touched) > 1 or last >= _end(header))):
        status = "fail"
    elif codes:
        status = "warn"
    named = ", ".join(info.name for info in touched[:_SHOWN])
    return Problem(
        "checkpoint.zero-stretch",
        status,
        "values",
        str(path),
        f"{last - first} bytes in a row are zeros, as a half-copied or sparse file has them",
        f"bytes {first} to {last}, in {named or 'no tensor'}"
        + (f" and {len(touched) - _SHOWN} more" if len(touched) > _SHOWN else ""),
        "download or copy this file again" if status != "note" else None,
        {"first": first, "last": last, "tensors": tuple(info.name for info in touched[:_SHOWN])},
    )
