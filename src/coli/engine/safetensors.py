"""Header of one safetensors file: parsed under hard limits, checked by the rules of the reference library.

The rules are those of `safetensors` 0.8. Four things that its JSON parser lets pass are refused here, because the
format description forbids them or no writer makes them: a header that does not start with `{`, a tensor name that
occurs twice, and a tensor written as an array or its dtype as an object. Two are let pass: `-0` reads as 0, and values
of unknown fields of a tensor are skipped without a look at their depth or range.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from coli.engine.foreign import SNIFF_BYTES, foreign_content
from coli.engine.location import readable
from coli.errors import CheckpointError

__all__ = ["DTYPE_BITS", "HEADER_LIMIT_BYTES", "Header", "TensorInfo", "examine_header", "read_header"]

HEADER_LIMIT_BYTES = 100_000_000
_LENGTH_BYTES = 8
_MOST_PROBLEMS = 20  # of one file, each with a text of its own; the rest is a number
_U64_MAX = 2**64 - 1
_METADATA = "__metadata__"

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class TensorInfo(msgspec.Struct, frozen=True, gc=False):
    """Where one tensor lies. ``offset``: first byte, counted from the start of the file ``path``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int


class Header(msgspec.Struct, frozen=True):
    """What one file declares. ``tensors`` is in the order of the offsets."""

    path: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    header_bytes: int
    file_bytes: int


class _Entry(msgspec.Struct, gc=False):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_decode_table = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_entry = msgspec.json.Decoder(_Entry).decode
_decode_metadata = msgspec.json.Decoder(dict[str, str] | None).decode


def read_header(path: Path | str) -> Header:
    """Read and check the header of a safetensors file; no weight is read.

    Allocates in proportion to the header, which is at most 100 MB and never longer than the file. Raises
    CheckpointError, with the file and the tensor, for every file that the reference library refuses.
    """
    header, problems = examine_header(path)
    if header is None or problems:
        raise problems[0]
    return header


def examine_header(path: Path | str) -> tuple[Header | None, tuple[CheckpointError, ...]]:
    """Read a header as `read_header` does, and return every reason to refuse the file instead of raising the first.

    A header with problems holds the tensors as they are declared; it is None when it cannot be parsed.
    """
    path = Path(path)
    problems: list[CheckpointError] = []
    try:
        length, file_bytes, entries, metadata = _read(path)
    except CheckpointError as error:
        return None, (error,)
    tensors, end = _place(path, entries, _LENGTH_BYTES + length, problems)
    if not any(error.code in ("checkpoint.offsets", "checkpoint.hole") for error in problems):
        # A wild offset would count as missing bytes.
        _check_size(path, tensors, _LENGTH_BYTES + length + end, file_bytes, problems)
    return Header(path, tensors, metadata, length, file_bytes), tuple(problems)


def _read(path: Path) -> tuple[int, int, dict[str, _Entry], dict[str, str]]:
    """Return the length of the header, that of the file, and what the header says."""
    if path.name.endswith(".incomplete"):
        raise CheckpointError(
            str(path),
            "this is an unfinished download, not a weight file",
            fix="download the model again; the download resumes where it stopped",
            code="checkpoint.incomplete-download",
        )
    with readable(path):
        if not stat.S_ISREG(path.stat().st_mode):  # before open: opening a FIFO would wait for a writer
            raise CheckpointError(str(path), "a weight file must be a regular file", code="checkpoint.not-a-file")
        with path.open("rb", buffering=0) as file:
            file_bytes = os.fstat(file.fileno()).st_size
            start = file.read(SNIFF_BYTES)
            length = _header_length(path, start, file_bytes)
            file.seek(_LENGTH_BYTES)
            raw = _read_exactly(path, file, length)
    entries, metadata = _parse(path, raw)
    return length, file_bytes, entries, metadata


def _header_length(path: Path, start: bytes, file_bytes: int) -> int:
    if file_bytes < _LENGTH_BYTES or len(start) < _LENGTH_BYTES:
        raise CheckpointError(
            str(path),
            "the file is empty" if file_bytes == 0 else "the file is too short to hold a safetensors header",
            observed=f"{file_bytes} bytes",
            expected=f"at least {_LENGTH_BYTES} bytes and a header",
            fix="download this file again",
            code="checkpoint.too-short",
            data={"file_bytes": file_bytes},
        )
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if 0 < length <= min(HEADER_LIMIT_BYTES, file_bytes - _LENGTH_BYTES):
        return length
    other = foreign_content(path, start, file_bytes)
    if other is not None:
        raise other
    if length == 0:
        zeros = len(start) > _LENGTH_BYTES and not start.strip(b"\0")
        raise CheckpointError(
            str(path),
            "the header is empty",
            observed="the file starts with zeros, as an unfinished download leaves it" if zeros else "header length 0",
            fix="download this file again",
            code="checkpoint.empty-header",
        )
    if length > HEADER_LIMIT_BYTES:
        rule, expected = "the header length is over the limit", f"at most {HEADER_LIMIT_BYTES} bytes"
    else:
        rule, expected = "the header is longer than the file", f"at most {file_bytes - _LENGTH_BYTES} bytes"
    raise CheckpointError(
        str(path),
        rule,
        observed=f"{length} bytes in a file of {file_bytes} bytes",
        expected=expected,
        fix="download this file again: it is cut off or not a safetensors file",
        code="checkpoint.header-length",
        data={"header_bytes": length, "file_bytes": file_bytes},
    )


def _read_exactly(path: Path, file: Any, length: int) -> bytes:
    parts: list[bytes] = []
    missing = length
    while missing:
        part = file.read(missing)
        if not part:
            raise CheckpointError(
                str(path),
                "the file ended while its header was read",
                observed=f"{length - missing} of {length} bytes",
                fix="check that nothing is still writing this file",
                code="checkpoint.truncated",
            )
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _bad_header(path: Path, rule: str, observed: str, tensor: str | None = None) -> CheckpointError:
    subject = str(path) if tensor is None else f"{path}: {_shown(tensor)}"
    return CheckpointError(subject, rule, observed=observed, code="checkpoint.header", fix="download this file again")


def _shown(name: str) -> str:
    """Return a tensor name for an error text: quoted when it holds control characters, cut when absurdly long."""
    text = name if name.isprintable() and name else repr(name)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(name)} characters)"


def _parse(path: Path, raw: bytes) -> tuple[dict[str, _Entry], dict[str, str]]:
    if not raw.startswith(b"{"):
        raise _bad_header(path, "the header must start with `{`", repr(raw[:16]))
    metadata: dict[str, str] | None = None
    entries: dict[str, _Entry] = {}
    name: str | None = None
    try:
        for name, value in _decode_table(raw).items():
            if name == _METADATA:
                metadata = _decode_metadata(value)
            else:
                entries[name] = _decode_entry(value)
    except msgspec.ValidationError as error:
        rule = (
            "__metadata__ must be an object of strings"
            if name == _METADATA
            else "a tensor needs dtype, shape and data_offsets"
        )
        raise _bad_header(path, rule, str(error), name) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise _bad_header(path, "the header must be a JSON object in UTF-8", str(error)) from error
    _refuse_duplicates(path, raw, len(entries))
    return entries, metadata or {}


def _refuse_duplicates(path: Path, raw: bytes, tensors: int) -> None:
    """Refuse a key that occurs twice: a decoder keeps the last one silently.

    Without escapes each key occurs in the raw text at least as often as it is used, so equal counts prove that nothing
    is doubled. Only a header where they differ (a doubled key, an escape, a tensor named like a key) is parsed a second
    time.
    """
    keys = (b'"data_offsets"', b'"dtype"', b'"shape"')
    if b"\\" not in raw and all(raw.count(key) == tensors for key in keys) and raw.count(b'"__metadata__"') <= 1:
        return
    table = json.loads(raw, object_pairs_hook=list, parse_float=str, parse_constant=str)
    _refuse_double_key(path, [key for key, _ in table], "a name may occur only once in a header")
    for name, value in table:
        if name != _METADATA:
            fields = [key for key, _ in value if key in ("dtype", "shape", "data_offsets")]
            _refuse_double_key(path, fields, f"a field may occur only once in tensor {_shown(name)}")


def _refuse_double_key(path: Path, keys: list[str], rule: str) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise CheckpointError(
                f"{path}: {_shown(key)}", rule, observed="it occurs twice", code="checkpoint.duplicate-tensor"
            )
        seen.add(key)


def _place(
    path: Path, entries: dict[str, _Entry], data_start: int, problems: list[CheckpointError]
) -> tuple[dict[str, TensorInfo], int]:
    """Check types, sizes and offsets; return the tensors by offset and the bytes that they cover."""
    tensors: dict[str, TensorInfo] = {}
    end = wrong = 0
    previous = ""
    bits_of = DTYPE_BITS
    for name, entry in sorted(entries.items(), key=_by_offsets):
        first, last = entry.data_offsets
        problem = None
        if first != end or last < first or last > _U64_MAX:
            problem = _misplaced(path, name, entry, end, previous)
        bits = bits_of.get(entry.dtype)
        count = 1
        for size in entry.shape:
            count *= size
            if size < 0 or size > _U64_MAX or count > _U64_MAX:
                count = -1
                break
        if problem is None and (
            bits is None or count < 0 or (last - first) * 8 != count * bits or count * bits > _U64_MAX
        ):
            problem = _wrong_tensor(path, name, entry, bits, count)
        if problem is not None:
            wrong += 1
            if wrong <= _MOST_PROBLEMS:
                problems.append(problem)
            if problem.code == "checkpoint.offsets":
                continue
        tensors[name] = TensorInfo(name, entry.dtype, tuple(entry.shape), path, data_start + first, last - first)
        if last >= end:
            end, previous = last, name
    if wrong > _MOST_PROBLEMS:
        problems.append(_bad_header(path, f"{wrong} tensors are wrong", f"{_MOST_PROBLEMS} of them are named"))
    return tensors, end


def _wrong_tensor(path: Path, name: str, entry: _Entry, bits: int | None, count: int) -> CheckpointError:
    """Say what is wrong with a tensor whose span is not its dtype times its shape."""
    if bits is None:
        return CheckpointError(
            f"{path}: {_shown(name)}",
            "the dtype is not one of the safetensors format",
            observed=_shown(entry.dtype),
            expected=", ".join(DTYPE_BITS),
            code="checkpoint.unknown-dtype",
            data={"tensor": name, "dtype": entry.dtype},
        )
    if count < 0:
        return _wrong_size(path, name, entry, "sizes must be 0 or more and their product below 2^64")
    if count * bits > _U64_MAX:
        return _wrong_size(path, name, entry, "the size in bits must be below 2^64")
    if (count * bits) % 8:
        return _wrong_size(path, name, entry, f"{count} elements of {bits} bits do not fill whole bytes")
    return _wrong_size(path, name, entry, "the span must equal dtype times shape", f"{count * bits // 8} bytes")


def _by_offsets(item: tuple[str, _Entry]) -> tuple[int, int]:
    return item[1].data_offsets


def _wrong_size(path: Path, name: str, entry: _Entry, rule: str, expected: str | None = None) -> CheckpointError:
    first, last = entry.data_offsets
    shape = ", ".join(map(str, entry.shape[:16])) + (", …" if len(entry.shape) > 16 else "")
    return CheckpointError(
        f"{path}: {_shown(name)}",
        rule,
        observed=f"{entry.dtype} [{shape}] in {last - first} bytes",
        expected=expected,
        fix="the writer of this file has a fault: convert or download it again",
        code="checkpoint.tensor-size",
        data={"tensor": name},
    )


def _misplaced(path: Path, name: str, entry: _Entry, end: int, previous: str) -> CheckpointError:
    first, last = entry.data_offsets
    subject, other = f"{path}: {_shown(name)}", None
    if first < 0 or last < first or last > _U64_MAX:
        rule, code, expected = "offsets must be ascending and below 2^64", "checkpoint.offsets", None
    elif first < end:
        rule, code, expected, other = (
            "two tensors share the same bytes",
            "checkpoint.overlap",
            f"a start at {end}",
            previous,
        )
    else:
        rule, code, expected = "bytes before this tensor belong to none", "checkpoint.hole", f"a start at {end}"
    return CheckpointError(
        subject,
        rule if other is None else f"{rule}: it overlaps {_shown(other)}",
        observed=f"data_offsets [{first}, {last}]",
        expected=expected,
        fix="the writer of this file has a fault: convert or download it again",
        code=code,
        data={"tensors": (name,) if other is None else (other, name)},
    )


def _check_size(
    path: Path, tensors: dict[str, TensorInfo], expected: int, observed: int, problems: list[CheckpointError]
) -> None:
    if observed == expected:
        return
    if observed > expected:
        problems.append(
            CheckpointError(
                str(path),
                f"{observed - expected} bytes after the last tensor belong to none",
                observed=f"{observed} bytes",
                expected=f"{expected} bytes",
                fix="download this file again, or write it anew with a current safetensors library",
                code="checkpoint.trailing-bytes",
                data={"extra_bytes": observed - expected, "expected_bytes": expected, "file_bytes": observed},
            )
        )
        return
    beyond = [tensor for tensor in tensors.values() if tensor.offset + tensor.nbytes > observed]
    problems.append(
        CheckpointError(
            str(path),
            f"the file is cut off: {expected - observed} bytes are missing, "
            f"{len(beyond)} of {len(tensors)} tensors end beyond the end of the file (first: {_shown(beyond[0].name)})",
            observed=f"{observed} bytes",
            expected=f"{expected} bytes",
            fix="download this file again; the download may still be running",
            code="checkpoint.truncated",
            data={
                "missing_bytes": expected - observed,
                "expected_bytes": expected,
                "file_bytes": observed,
                "tensors_beyond": len(beyond),
            },
        )
    )
