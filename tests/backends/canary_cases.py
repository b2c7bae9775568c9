"""The calls of the packaged canary, with results computed here from docs/numerics.md in exact rational arithmetic.

``python tests/backends/canary_cases.py`` writes ``backends/canary.bin``. No backend takes part in making it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from random import Random

from coli.backends.vectors import Case, Floating, Integer, Matrix, write_vectors
from coli.backends.vectors import Weight as Stored

TARGET = Path(__file__).resolve().parents[2] / "backends" / "canary.bin"
F32, BF16, FP8, FP4 = range(4)
PIECE = {F32: 4, BF16: 8, FP8: 16, FP4: 32}
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]

Row = list[Fraction]


def round32(value: Fraction) -> Fraction:
    """Round to the nearest float32, ties to even (normal range and subnormals)."""
    if value == 0:
        return value
    sign, size = (-1 if value < 0 else 1), abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, -126) - 23)
    return sign * round(size / step) * step  # round() of a Fraction goes to even


def root32(value: Fraction) -> Fraction:
    """Round the square root to float32: 80 bits of it are enough to be on the right side of every tie here."""
    scale = 1 << 160
    return round32(Fraction(math.isqrt(value.numerator * scale // value.denominator), 1 << 80))


def fma(a: Fraction, b: Fraction, c: Fraction) -> Fraction:
    return round32(a * b + c)


def e2m1(code: int) -> Fraction:
    return Fraction(E2M1[code & 7]) * (-1 if code & 8 else 1)


def e4m3(code: int) -> Fraction:
    exponent, mantissa = (code >> 3) & 15, code & 7
    size = (
        Fraction(mantissa, 8) * Fraction(2) ** -6
        if exponent == 0
        else Fraction(8 + mantissa, 8) * Fraction(2) ** (exponent - 7)
    )
    return -size if code & 0x80 else size


def dot(values: Row, x: Row, piece: int, factors: Sequence[Fraction] | None = None) -> Fraction:
    """The 32 lanes, pieces in order, and the tree. ``factors``: one for each piece (fp4, fp8), None: none."""
    lanes = [Fraction(0)] * 32
    for start in range(0, len(values), piece):
        lane = (start // piece) % 32
        columns = range(start, min(start + piece, len(values)))
        if factors is None:
            for c in columns:
                lanes[lane] = fma(values[c], x[c], lanes[lane])
        else:
            total = Fraction(0)
            for c in columns:
                total = fma(values[c], x[c], total)
            lanes[lane] = fma(factors[start // piece], total, lanes[lane])
    for step in (16, 8, 4, 2, 1):
        for lane in range(step):
            lanes[lane] = round32(lanes[lane] + lanes[lane + step])
    return lanes[0]


class Weight:
    """A random weight: its stored form, and each row as values and factors."""

    def __init__(self, random: Random, kind: int, rows: int, cols: int) -> None:
        self.kind, self.rows, self.cols = kind, rows, cols
        self.values: list[Row] = []
        self.factors: list[list[Fraction]] = []
        self.negative: list[list[bool]] = []  # a Fraction has no -0
        codes, scales = bytearray(), bytearray()
        if kind == FP8:
            scales = bytearray(random.randrange(118, 128) for _ in range(-(-rows // 128) * -(-cols // 128)))
        for row in range(rows):
            if kind in (F32, BF16):
                words = [random_word(random) & (0xFFFF0000 if kind == BF16 else 0xFFFFFFFF) for _ in range(cols)]
                codes += b"".join(
                    struct.pack("<I" if kind == F32 else "<H", w if kind == F32 else w >> 16) for w in words
                )
                self.values.append([from_word(w) for w in words])
                self.negative.append([w >> 31 == 1 for w in words])
            elif kind == FP8:
                row_codes = [random.randrange(256) & (0xFE if random.random() < 0.01 else 0xF7) for _ in range(cols)]
                row_codes = [0x30 if c & 0x7F == 0x7F else c for c in row_codes]
                codes += bytes(row_codes)
                self.values.append([e4m3(c) / 256 for c in row_codes])
                self.negative.append([c & 0x80 != 0 for c in row_codes])
                per_row = -(-cols // 128)
                blocks = [scales[(row // 128) * per_row + c // 128] for c in range(0, cols, 16)]
                self.factors.append([256 * Fraction(2) ** (s - 127) for s in blocks])
            else:
                nibbles = [random.randrange(16) for _ in range(cols)]
                codes += bytes(nibbles[i] | nibbles[i + 1] << 4 for i in range(0, cols, 2))
                groups = [random.randrange(118, 128) for _ in range(cols // 32)]
                scales += bytes(groups)
                self.values.append([e2m1(n) / 2 for n in nibbles])
                self.negative.append([n & 8 != 0 for n in nibbles])
                self.factors.append([2 * Fraction(2) ** (s - 127) for s in groups])
        self.data = Stored(kind, rows, cols, bytes(codes), bytes(scales))

    def dot(self, row: int, x: Row) -> Fraction:
        return dot(self.values[row], x, PIECE[self.kind], self.factors[row] if self.factors else None)

    def exact(self, row: int) -> list[Fraction | float]:
        piece = PIECE[self.kind]
        factors = self.factors[row] if self.factors else [Fraction(1)] * self.cols
        exact = [value * factors[c // piece] for c, value in enumerate(self.values[row])]
        return [-0.0 if v == 0 and negative else v for v, negative in zip(exact, self.negative[row], strict=True)]


def random_word(random: Random) -> int:
    """A float32 of either sign between 2^-6 and 2^2, as bits."""
    return random.getrandbits(1) << 31 | random.randrange(121, 129) << 23 | random.getrandbits(23)


def from_word(word: int) -> Fraction:
    return Fraction(struct.unpack("<f", struct.pack("<I", word))[0])


def floating(value: Fraction) -> Floating:
    return Floating(struct.unpack("<I", struct.pack("<f", value))[0])


def random_rows(random: Random, rows: int, cols: int) -> list[Row]:
    return [[from_word(random_word(random)) for _ in range(cols)] for _ in range(rows)]


def pack(rows: Sequence[Sequence[Fraction | float]]) -> bytes:
    return b"".join(struct.pack("<f", value) for row in rows for value in row)


def matrix(rows: Sequence[Sequence[Fraction | float]], before: bytes | None = None) -> Matrix:
    """An input, or with ``before`` an output that becomes ``rows``."""
    data = pack(rows)
    return Matrix(0, len(rows), len(rows[0]), data if before is None else before, None if before is None else data)


def integers(values: list[list[int]], before: bytes | None = None) -> Matrix:
    data = b"".join(struct.pack("<i", value) for row in values for value in row)
    return Matrix(1, len(values), len(values[0]), data if before is None else before, None if before is None else data)


def junk(rows: int, cols: int) -> bytes:
    """Content that a stage must overwrite: a NaN with a payload."""
    return struct.pack("<I", 0x7FC0BEEF) * (rows * cols)


def output(rows: Sequence[Sequence[Fraction | float]]) -> Matrix:
    return matrix(rows, junk(len(rows), len(rows[0])))


def matmul_cases(random: Random) -> list[Case]:
    cases = []
    for kind, name, rows, cols, groups, batches in (
        (F32, "matmul_f32", 3, 131, 1, (1, 3)),
        (BF16, "matmul_bf16", 5, 523, 1, (1, 3)),  # 65 pieces and a short one: the lanes go round twice
        (BF16, "matmul_bf16", 4, 72, 2, (1, 5)),
        (FP8, "matmul_fp8", 130, 144, 1, (2,)),  # blocks of scales in both directions
        (FP8, "matmul_fp8", 6, 528, 1, (1, 3)),
        (FP8, "matmul_fp8", 6, 48, 3, (1,)),
        (FP4, "matmul_fp4", 5, 1120, 1, (1, 3)),
        (FP4, "matmul_fp4", 4, 96, 2, (1,)),
    ):
        weight = Weight(random, kind, rows, cols)
        share = rows // groups
        for tokens in batches:
            x = random_rows(random, tokens, groups * cols)
            y = [[weight.dot(r, row[r // share * cols :][:cols]) for r in range(rows)] for row in x]
            cases.append(Case(name, (weight.data, matrix(x), Integer(groups), output(y))))
    return cases


def simple_cases(random: Random) -> list[Case]:
    cases = []
    for kind in (F32, BF16, FP8, FP4):
        weight = Weight(random, kind, 4, 160)
        cases.append(Case("dequantize", (weight.data, Integer(1), output([weight.exact(r) for r in (1, 2, 3)]))))
    table = Weight(random, BF16, 7, 9)
    picked = [5, 0, 6]
    cases.append(
        Case("embed", (table.data, integers([picked]), Integer(2), output([table.exact(r) * 2 for r in picked])))
    )

    a, b = random_rows(random, 3, 37), random_rows(random, 3, 37)
    total = [[round32(p + q) for p, q in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)]
    cases.append(Case("add", (matrix(a), matrix(total, pack(b)))))

    x, gain, epsilon = random_rows(random, 2, 133), random_rows(random, 1, 133), from_word(0x3727C5AC)
    normal = []
    for row in x:
        mean = round32(round32(dot(row, row, 4) / 133) + epsilon)
        r = round32(1 / root32(mean))
        normal.append([round32(round32(v * r) * g) for v, g in zip(row, gain[0], strict=True)])
    cases.append(Case("rms_norm", (matrix(x), matrix(gain), floating(epsilon), output(normal))))

    cosine, sine, heads = random_rows(random, 2, 3), random_rows(random, 2, 3), random_rows(random, 2, 2 * 10)
    turned = [list(row) for row in heads]
    for t in range(2):
        for h in range(2):
            for i in range(3):
                at = h * 10 + 4 + 2 * i
                p, q, c, s = heads[t][at], heads[t][at + 1], cosine[t][i], sine[t][i]
                turned[t][at] = fma(p, c, -round32(q * s))
                turned[t][at + 1] = fma(q, c, round32(p * s))
    cases.append(Case("rope", (matrix(cosine), matrix(sine), Integer(2), Integer(0), matrix(turned, pack(heads)))))

    ring, new = random_rows(random, 5, 6), random_rows(random, 3, 6)
    after = list(ring)
    for t in range(3):
        after[(9 + t) % 5] = new[t]
    cases.append(Case("kv_append", (matrix(new), Integer(9), matrix(after, pack(ring)))))

    scores = [[1.0, 4.0, -math.inf, 4.0, 2.0], [-math.inf, -math.inf, -1.0, -math.inf, -math.inf]]
    scored = Matrix(0, 2, 5, pack(scores))
    cases.append(Case("top_k", (scored, integers([[1, 3, 4], [2, -1, -1]], junk(2, 3)))))
    cases.append(Case("top_k", (scored, integers([[1], [2]], junk(2, 1)))))  # a tie goes to the lower index

    streams, y, post, comb = (random_rows(random, 2, n) for n in (2 * 19, 19, 2, 4))
    mixed = []
    for t in range(2):
        row = []
        for k in range(2):
            for c in range(19):
                acc = round32(post[t][k] * y[t][c])
                for j in range(2):
                    acc = fma(comb[t][j * 2 + k], streams[t][j * 19 + c], acc)
                row.append(acc)
        mixed.append(row)
    cases.append(Case("hc_post", (matrix(y), matrix(post), matrix(comb), matrix(mixed, pack(streams)))))

    q, weights, keys = random_rows(random, 2, 3 * 12), random_rows(random, 2, 3), random_rows(random, 4, 12)
    scale = from_word(0x3E93CD3A)
    indexed: list[list[Fraction | float]] = []
    for t in range(2):
        row_scores: list[Fraction | float] = []
        for i in range(4):
            if i >= (10 + t + 1) // 4:
                row_scores.append(-math.inf)
                continue
            acc = Fraction(0)
            for h in range(3):
                value = max(dot(q[t][h * 12 : h * 12 + 12], keys[i], 4), Fraction(0))
                acc = fma(round32(weights[t][h] * scale), value, acc)
            row_scores.append(acc)
        indexed.append(row_scores)
    want = Matrix(0, 2, 4, junk(2, 4), pack(indexed))
    cases.append(
        Case(
            "index_scores",
            (matrix(q), matrix(weights), floating(scale), matrix(keys), Integer(10), Integer(4), want),
        )
    )
    return cases


def canary_cases() -> list[Case]:
    """Return the calls, the same on every run."""
    makers: list[Callable[[Random], list[Case]]] = [matmul_cases, simple_cases]
    return [case for seed, maker in enumerate(makers) for case in maker(Random(seed))]


if __name__ == "__main__":
    TARGET.write_bytes(write_vectors(canary_cases()))
