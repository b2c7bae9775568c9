"""Read and write stage vectors: calls of stages with their expected outputs, for the replay driver and the canary gate.

The format is little endian and made of 8-byte words; blobs are filled up with zeros to whole words.

    file      b"COLIVEC1", number of cases, cases
    case      stage name (32 bytes, NUL-filled), number of arguments, arguments in the order of the slot
    argument  kind, then
      0 null
      1 integer     value (signed)
      2 float       bits of the float32
      3 input       type (0 F32, 1 I32), rows, cols, rows*cols*4 bytes
      4 output      as input, holding what is there before the call; then the expected bytes, as many
      5 weight      format, rows, cols, bytes of codes, bytes of scales, codes, scales
      6 weights     count, then as many weights without their kind
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Case", "Floating", "Integer", "Matrix", "Weight", "Weights", "read_vectors", "write_vectors"]

MAGIC = b"COLIVEC1"
MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class Integer:
    """An int64 argument."""

    value: int


@dataclass(frozen=True)
class Floating:
    """A float argument, by its bits."""

    bits: int


@dataclass(frozen=True)
class Matrix:
    """A dense matrix: type 0 F32, 1 I32. ``expected`` is None for an input."""

    type: int
    rows: int
    cols: int
    data: bytes
    expected: bytes | None = None


@dataclass(frozen=True)
class Weight:
    """A weight as it would be bound."""

    format: int
    rows: int
    cols: int
    codes: bytes
    scales: bytes


@dataclass(frozen=True)
class Weights:
    """A list of weights."""

    items: tuple[Weight, ...]


Argument = Integer | Floating | Matrix | Weight | Weights | None


@dataclass(frozen=True)
class Case:
    """One call: stage name and arguments in the order of the slot."""

    stage: str
    arguments: tuple[Argument, ...]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def word(self) -> int:
        (value,) = struct.unpack_from("<q", self.blob(8))
        return int(value)

    def blob(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.at:
            raise ValueError(f"vectors end at byte {len(self.data)}, but {count} bytes are needed at {self.at}")
        found = self.data[self.at : self.at + count]
        self.at += count + -count % 8
        return found

    def matrix(self, output: bool) -> Matrix:
        kind, rows, cols = self.word(), self.word(), self.word()
        if kind not in (0, 1) or not 0 <= rows <= MAX_BYTES or not 0 <= cols <= MAX_BYTES:
            raise ValueError(f"vectors hold a matrix of type {kind}, {rows} x {cols}")
        data = self.blob(rows * cols * 4)
        return Matrix(kind, rows, cols, data, self.blob(rows * cols * 4) if output else None)

    def weight(self) -> Weight:
        format_, rows, cols, codes, scales = (self.word() for _ in range(5))
        return Weight(format_, rows, cols, self.blob(codes), self.blob(scales))

    def argument(self) -> Argument:
        kind = self.word()
        if kind == 0:
            return None
        if kind == 1:
            return Integer(self.word())
        if kind == 2:
            return Floating(self.word())
        if kind in (3, 4):
            return self.matrix(kind == 4)
        if kind == 5:
            return self.weight()
        if kind == 6:
            return Weights(tuple(self.weight() for _ in range(self.word())))
        raise ValueError(f"vectors hold an argument of kind {kind}")


def read_vectors(data: bytes) -> list[Case]:
    """Return the cases of a vector file; ValueError says what is wrong with it."""
    reader = _Reader(data)
    if reader.blob(8) != MAGIC:
        raise ValueError("not a vector file: it does not begin with COLIVEC1")
    cases = []
    for _ in range(reader.word()):
        stage = reader.blob(32).rstrip(b"\0").decode("ascii")
        cases.append(Case(stage, tuple(reader.argument() for _ in range(reader.word()))))
    if reader.at != len(data):
        raise ValueError(f"vectors: {len(data) - reader.at} bytes after the last case")
    return cases


def _words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _weight(weight: Weight) -> bytes:
    sizes = _words(weight.format, weight.rows, weight.cols, len(weight.codes), len(weight.scales))
    return sizes + _padded(weight.codes) + _padded(weight.scales)


def _argument(argument: Argument) -> bytes:
    if argument is None:
        return _words(0)
    if isinstance(argument, Integer):
        return _words(1, argument.value)
    if isinstance(argument, Floating):
        return _words(2, argument.bits)
    if isinstance(argument, Matrix):
        head = _words(3 if argument.expected is None else 4, argument.type, argument.rows, argument.cols)
        return head + _padded(argument.data) + (b"" if argument.expected is None else _padded(argument.expected))
    if isinstance(argument, Weight):
        return _words(5) + _weight(argument)
    return _words(6, len(argument.items)) + b"".join(_weight(item) for item in argument.items)


def write_vectors(cases: Sequence[Case]) -> bytes:
    """Return the bytes of a vector file."""
    parts = [MAGIC, _words(len(cases))]
    for case in cases:
        parts += [case.stage.encode("ascii").ljust(32, b"\0"), _words(len(case.arguments))]
        parts += [_argument(argument) for argument in case.arguments]
    return b"".join(parts)
