"""Calls of every stage with odd shapes: what the reference, the portable library and all others are given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import native
import numpy as np
from numpy.typing import NDArray

from coli.backends import vectors

Array = NDArray[Any]
SEED = 7  # of the calls whose bytes all libraries share


@dataclass
class WeightSpec:
    """A weight before it is bound."""

    format: int
    rows: int
    cols: int
    codes: Array
    scales: Array | None = None


@dataclass
class Call:
    """A stage, its arguments, and which of them it writes."""

    stage: str
    values: list[Any]
    outputs: tuple[int, ...]


class Maker:
    """Makes random arrays and weights from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def floats(self, *shape: int, scale: float = 1.0) -> Array:
        """Return normal float32 values."""
        return (self.rng.normal(size=shape) * scale).astype(np.float32)

    def weight(self, format: int, rows: int, cols: int, edge: bool = False) -> WeightSpec:
        """Return a random weight; with ``edge`` its scales hold the lowest and a high legal code."""
        rng = self.rng
        if format == native.F32:
            return WeightSpec(format, rows, cols, self.floats(rows, cols))
        if format == native.BF16:
            return WeightSpec(format, rows, cols, (self.floats(rows, cols).view(np.uint32) >> 16).astype(np.uint16))
        shape = (rows, cols) if format == native.FP8 else (rows, cols // 2)
        codes = rng.integers(0, 256, shape, dtype=np.uint8)
        if format == native.FP8:
            codes[(codes & 0x7F) == 0x7F] ^= 1
            shape = (-(-rows // 128), -(-cols // 128))
        else:
            shape = (rows, cols // 32)
        scales = rng.integers(115, 125, shape, dtype=np.uint8)
        if edge:
            scales.flat[:: max(1, scales.size // 3)] = rng.choice(
                [0, 1, 60], size=scales.flat[:: max(1, scales.size // 3)].shape
            )
        return WeightSpec(format, rows, cols, codes, scales)


def products(make: Maker, small: bool) -> Iterator[Call]:
    """Yield matmul of every format: one, few and many tokens; short last pieces; groups."""
    # (rows, cols, tokens, groups): below and above one pass of each format, ends in the middle of a piece where legal.
    shapes = {
        native.F32: [(5, 131, 1, 1), (9, 257, 3, 3), (7, 6, 5, 1), (13, 1100, 7, 1)],
        native.BF16: [(5, 261, 1, 1), (8, 515, 2, 2), (6, 9, 4, 1), (37, 1290, 9, 1)],
        native.FP8: [(5, 523, 1, 1), (12, 1031, 3, 4), (3, 17, 4, 1), (133, 1160, 8, 1)],
        native.FP4: [(5, 1056, 1, 1), (10, 1120, 2, 2), (3, 32, 4, 1), (35, 2144, 8, 1)],
    }
    names = {native.F32: "f32", native.BF16: "bf16", native.FP8: "fp8", native.FP4: "fp4"}
    for format, name in names.items():
        for rows, cols, tokens, groups in shapes[format][:: 2 if small else 1]:
            weight = make.weight(format, rows, cols, edge=tokens == 3)
            x = make.floats(tokens, groups * cols)
            yield Call(f"matmul_{name}", [weight, x, groups, np.zeros((tokens, rows), np.float32)], (3,))
        weight = make.weight(format, 131 if format == native.FP8 and not small else 4, 160, edge=True)
        yield Call("dequantize", [weight, 1, np.zeros((3, 160), np.float32)], (2,))
        ids = np.array([2, 0, 3], np.int32)
        if format in (native.BF16, native.F32):
            yield Call("embed", [make.weight(format, 4, 37), ids, 3, np.zeros((3, 111), np.float32)], (3,))


def rows(make: Maker) -> Iterator[Call]:
    """Yield the stages that work on rows."""
    x = make.floats(3, 151)
    yield Call("rms_norm", [x, make.floats(1, 151), 1e-6, np.zeros_like(x)], (3,))
    yield Call("rms_norm", [make.floats(2, 128), None, 1e-6, np.zeros((2, 128), np.float32)], (3,))
    for inverse in (0, 1):
        angle = make.rng.uniform(-np.pi, np.pi, (3, 5))
        yield Call(
            "rope",
            [np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32), 4, inverse, make.floats(3, 4 * 17)],
            (4,),
        )
    for limit in (0.0, 1.5):
        yield Call(
            "swiglu",
            [make.floats(2, 45, scale=3), make.floats(2, 45, scale=3), limit, np.zeros((2, 45), np.float32)],
            (3,),
        )
    yield Call("add", [make.floats(3, 29), make.floats(3, 29)], (1,))
    yield Call("kv_append", [make.floats(3, 19), 9, make.floats(5, 19)], (2,))
    yield Call("round_fp8", [make.floats(2, 96, scale=50), 32, np.zeros((2, 96), np.float32)], (2,))
    yield Call("round_fp4", [make.floats(2, 96), 32, np.zeros((2, 96), np.float32)], (2,))
    yield Call("hadamard", [make.floats(3, 64), np.zeros((3, 64), np.float32)], (1,))


def compressors(make: Maker, small: bool) -> Iterator[Call]:
    """Yield compress with and without overlap, from the start, across windows, and without closing one."""
    for overlap, ratio, position, tokens in [(0, 5, 0, 13), (0, 5, 7, 4), (1, 4, 0, 9), (1, 4, 6, 11), (1, 4, 9, 2)]:
        width, pairs = (9, 3) if small else (38, 7)
        wide = width * (2 if overlap else 1)
        windows = (position + tokens) // ratio - position // ratio
        angle = make.rng.uniform(-np.pi, np.pi, (windows, pairs))
        state = (ratio * (2 if overlap else 1), wide)
        yield Call(
            "compress",
            [
                make.floats(tokens, wide),
                make.floats(tokens, wide),
                make.floats(ratio, wide),
                position,
                overlap,
                make.floats(1, width),
                1e-6,
                np.cos(angle).astype(np.float32),
                np.sin(angle).astype(np.float32),
                make.floats(*state),
                make.floats(*state),
                make.floats((position + tokens) // ratio + 1, width),
            ],
            (9, 10, 11),
        )


def attentions(make: Maker, small: bool) -> Iterator[Call]:
    """Yield attention over the ring alone, with all entries, and with selected ones; index_scores and top_k."""
    heads, width, window = 5, 10 if small else 150, 70
    for position, tokens, ratio, mode in [
        (0, 3, 0, "raw"),
        (130, 2, 4, "all"),
        (300, 4, 4, "selected"),
        (61, 1, 1, "all"),
    ]:
        ring = make.floats(window + tokens - 1 if position else tokens + 2, width)
        entries = None if mode == "raw" else make.floats(max(1, (position + tokens) // ratio), width)
        selected = None
        if mode == "selected":
            selected = np.full((tokens, 70), -1, np.int32)
            for token in range(tokens):
                count = 66 + token
                visible = (position + token + 1) // ratio
                selected[token, :count] = np.sort(make.rng.choice(visible, count, replace=False))
        q = make.floats(tokens, heads * width)
        y = np.zeros_like(q)
        yield Call(
            "attention",
            [q, heads, ring, position, window, entries, ratio, selected, make.floats(1, heads), width**-0.5, y],
            (10,),
        )
    keys, position, ratio = 70, 270, 4
    yield Call(
        "index_scores",
        [
            make.floats(3, heads * 37),
            make.floats(3, heads),
            0.11,
            make.floats(keys, 37),
            position,
            ratio,
            np.zeros((3, keys), np.float32),
        ],
        (6,),
    )
    scores = make.floats(4, 83)
    scores[:, 50:60] = scores[:, 10:20]  # ties
    scores[1, 7:] = -np.inf
    scores[2, 3] = np.inf
    yield Call("top_k", [scores, np.zeros((4, 12), np.int32)], (1,))


def mixers(make: Maker, small: bool) -> Iterator[Call]:
    """Yield the mHC stages, the router and the experts."""
    for n, width, tokens in [(4, 11 if small else 35, 3), (2, 33 if small else 129, 1)]:
        streams = make.floats(tokens, n * width)
        yield Call(
            "hc_pre",
            [
                streams,
                make.weight(native.F32, (2 + n) * n, n * width),
                make.floats(1, 3),
                make.floats(1, (2 + n) * n),
                5,
                1e-6,
                1e-6,
                np.zeros((tokens, width), np.float32),
                np.zeros((tokens, n), np.float32),
                np.zeros((tokens, n * n), np.float32),
            ],
            (7, 8, 9),
        )
        yield Call(
            "hc_post",
            [
                make.floats(tokens, width),
                make.floats(tokens, n),
                make.floats(tokens, n * n),
                make.floats(tokens, n * width),
            ],
            (3,),
        )
        yield Call(
            "hc_head",
            [
                streams,
                make.weight(native.F32, n, n * width),
                make.floats(1, 1),
                make.floats(1, n),
                1e-6,
                1e-6,
                np.zeros((tokens, width), np.float32),
            ],
            (6,),
        )
    logits = make.floats(3, 13, scale=2)
    out = [np.zeros((3, 4), np.int32), np.zeros((3, 4), np.float32)]
    yield Call("router", [logits, make.floats(1, 13), None, 1.5, *out], (4, 5))
    fixed = np.array([[7, 2, 12, 0], [1, 2, 3, 4], [9, 8, 7, 6]], np.int32)
    yield Call("router", [logits, None, fixed, 2.5, *(array.copy() for array in out)], (4, 5))
    for format, tokens in [(native.FP4, 1), (native.FP8, 6)]:
        ids = np.array([0, 2, 3], np.int32)
        width, inner = (32, 32) if small else (96, 160)
        picks = np.sort(make.rng.integers(0, 4, (tokens, 2)), 1).astype(np.int32)
        picks[0] = (0, 2)
        shapes = [(inner, width), (inner, width), (width, inner)]
        experts = [[make.weight(format, *shape) for _ in ids] for shape in shapes]
        share = make.floats(tokens, 2)
        yield Call(
            "moe", [make.floats(tokens, width), picks, share, ids, *experts, 1.0, make.floats(tokens, width)], (8,)
        )


def all_calls(seed: int, *, small: bool = False) -> list[Call]:
    """Return calls of every stage; ``small`` keeps the vector file in tens of kilobytes."""
    make = Maker(seed)
    return [
        *products(make, small),
        *rows(make),
        *compressors(make, small),
        *attentions(make, small),
        *mixers(make, small),
    ]


def copied(call: Call) -> list[Any]:
    """Return the arguments with outputs copied, so that the call can be made again."""
    return [value.copy() if index in call.outputs else value for index, value in enumerate(call.values)]


def run_native(context: native.Context, call: Call) -> list[Any]:
    """Make the call through the table; return the arguments after it."""
    values = copied(call)

    def bound(value: Any) -> Any:
        if isinstance(value, WeightSpec):
            return context.weight(value.format, value.rows, value.cols, value.codes, value.scales)
        return [bound(item) for item in value] if isinstance(value, list) else value

    context.stage(call.stage, *(bound(value) for value in values))
    return values


def to_case(call: Call, after: list[Any]) -> vectors.Case:
    """Return the call as a case of a vector file, with the outputs of ``after`` as expected bytes."""

    def weight(spec: WeightSpec) -> vectors.Weight:
        scales = b"" if spec.scales is None else spec.scales.tobytes()
        return vectors.Weight(spec.format, spec.rows, spec.cols, spec.codes.tobytes(), scales)

    def argument(index: int, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, WeightSpec):
            return weight(value)
        if isinstance(value, list):
            return vectors.Weights(tuple(weight(item) for item in value))
        if isinstance(value, np.ndarray):
            view = value.reshape(1, -1) if value.ndim == 1 else value
            expected = after[index].tobytes() if index in call.outputs else None
            return vectors.Matrix(int(value.dtype == np.int32), *view.shape, value.tobytes(), expected)
        if isinstance(value, float):
            return vectors.Floating(int(np.float32(value).view(np.uint32)))
        return vectors.Integer(int(value))

    return vectors.Case(call.stage, tuple(argument(index, value) for index, value in enumerate(call.values)))


def record(library: Path) -> bytes:
    """Return a vector file of all calls with the outputs of one library."""
    opened = native.Library(library)
    made = []
    for call in all_calls(SEED):
        with native.Context(opened) as context:
            made.append(to_case(call, run_native(context, call)))
    data = vectors.write_vectors(made)
    assert list(vectors.read_vectors(data)) == made
    return data
