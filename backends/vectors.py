"""Recorded stage calls in a file: the canary, and the vectors that the tests replay.

The format, little-endian: magic ``COLIVEC1``, u32 count of cases; a case is u16 length and name of the stage, u16
count of arguments, then the arguments in the order of the slot list, each with a tag byte:

    0  null
    1  integer      i64
    2  float        f32
    3  input        matrix: u32 type (0 float32, 1 int32), u64 rows, u64 cols, then 4 * rows * cols bytes
    4  output       matrix as in 3 with the content before the call, then as many bytes of the content after it
    5  weight       u32 format, u64 rows, u64 cols, u64 bytes of codes, u64 bytes of scales, codes, scales
    6  weights      u32 count, then the fields of 5 for each
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from coli.backends.abi import SLOTS
from coli.backends.canary import Case, MatrixData, Scalar, Value, WeightData

__all__ = ["MAGIC", "VectorError", "pack_cases", "parse_cases"]

MAGIC = b"COLIVEC1"
_MAX_CASES = 100_000
_ARGUMENTS = {slot.name: len(slot.arguments) for slot in SLOTS if slot.kind == "stage"}


class VectorError(ValueError):
    """The file is not a vector file or is damaged."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def bytes(self, count: int) -> bytes:
        if count < 0 or count > len(self._data) - self._at:
            raise VectorError(f"{count} bytes at {self._at} pass the end of the file at {len(self._data)}")
        self._at += count
        return self._data[self._at - count : self._at]

    def one(self, code: str) -> int:
        value: int = struct.unpack("<" + code, self.bytes(struct.calcsize("<" + code)))[0]
        return value

    @property
    def done(self) -> bool:
        return self._at == len(self._data)


def _parse_matrix(reader: _Reader, output: bool) -> MatrixData:
    kind, rows, cols = reader.one("I"), reader.one("Q"), reader.one("Q")
    if kind not in (0, 1):
        raise VectorError(f"matrix type {kind}")
    data = reader.bytes(4 * rows * cols)
    return MatrixData(rows, cols, kind, data, reader.bytes(len(data)) if output else None)


def _parse_weight(reader: _Reader) -> WeightData:
    kind, rows, cols = reader.one("I"), reader.one("Q"), reader.one("Q")
    codes, scales = reader.one("Q"), reader.one("Q")
    return WeightData(kind, rows, cols, reader.bytes(codes), reader.bytes(scales))


def _parse_value(reader: _Reader) -> Value:
    tag = reader.one("B")
    if tag == 0:
        return None
    if tag == 1:
        return Scalar(reader.one("q"))
    if tag == 2:
        return Scalar(reader.one("f"))
    if tag in (3, 4):
        return _parse_matrix(reader, tag == 4)
    if tag == 5:
        return _parse_weight(reader)
    if tag == 6:
        return tuple(_parse_weight(reader) for _ in range(reader.one("I")))
    raise VectorError(f"argument tag {tag}")


def parse_cases(data: bytes) -> tuple[Case, ...]:
    """Return the cases of a vector file. Raises VectorError."""
    reader = _Reader(data)
    if reader.bytes(len(MAGIC)) != MAGIC:
        raise VectorError("the magic is not COLIVEC1")
    count = reader.one("I")
    if count > _MAX_CASES:
        raise VectorError(f"{count} cases")
    cases: list[Case] = []
    for _ in range(count):
        stage = reader.bytes(reader.one("H")).decode("utf-8", "replace")
        arguments = reader.one("H")
        if _ARGUMENTS.get(stage) != arguments:
            raise VectorError(f"stage {stage!r} with {arguments} arguments is not in the slot list")
        cases.append(Case(stage, tuple(_parse_value(reader) for _ in range(arguments))))
    if not reader.done:
        raise VectorError("bytes follow the last case")
    return tuple(cases)


def _pack_weight(weight: WeightData) -> bytes:
    sizes = struct.pack("<IQQQQ", weight.format, weight.rows, weight.cols, len(weight.codes), len(weight.scales))
    return sizes + weight.codes + weight.scales


def _pack_value(value: Value) -> bytes:
    if value is None:
        return b"\0"
    if isinstance(value, Scalar):
        return (
            struct.pack("<Bq", 1, value.value) if isinstance(value.value, int) else struct.pack("<Bf", 2, value.value)
        )
    if isinstance(value, MatrixData):
        tag, after = (3, b"") if value.expected is None else (4, value.expected)
        return struct.pack("<BIQQ", tag, value.type, value.rows, value.cols) + value.data + after
    if isinstance(value, WeightData):
        return b"\5" + _pack_weight(value)
    return struct.pack("<BI", 6, len(value)) + b"".join(_pack_weight(weight) for weight in value)


def pack_cases(cases: Sequence[Case]) -> bytes:
    """Return the vector file that holds ``cases``."""
    parts = [MAGIC, struct.pack("<I", len(cases))]
    for case in cases:
        name = case.stage.encode()
        parts += [struct.pack("<H", len(name)), name, struct.pack("<H", len(case.values))]
        parts += [_pack_value(value) for value in case.values]
    return b"".join(parts)
