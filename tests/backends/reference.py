"""The stages of the ABI in numpy float64: the judge of accuracy.

Written from docs/numerics.md and the contracts in coli_slots.inc, without any of the code under test. Arithmetic is
float64 in whatever order numpy likes; outputs are rounded once, to the type of the output array. `ReferenceStages`
has the methods of a `Dispatcher`, so that an engine can run on it as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

F32, BF16, FP8_BLOCK, FP4_GROUP = 0, 1, 2, 3
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def decode_e4m3(codes: np.ndarray) -> np.ndarray:
    """Return the float64 values of E4M3 codes (uint8); 0x7F and 0xFF are NaN."""
    c = codes.astype(np.int64)
    sign = np.where(c & 0x80, -1.0, 1.0)
    exponent, mantissa = (c >> 3) & 15, c & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value = np.where((c & 0x7F) == 0x7F, np.nan, value)
    return sign * value


def decode_ue8m0(codes: np.ndarray) -> np.ndarray:
    """Return 2^(code - 127) as float64; 255 is NaN."""
    c = codes.astype(np.float64)
    return np.where(c == 255, np.nan, np.exp2(c - 127))


def decode_bf16(bits: np.ndarray) -> np.ndarray:
    """Return bfloat16 bit patterns (uint16) as float64."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def decode_weight(format_: int, rows: int, cols: int, codes: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    """Return the float64 [rows, cols] values of a weight from its raw bytes (uint8 arrays)."""
    raw = np.ascontiguousarray(codes).view(np.uint8).reshape(-1)
    if format_ == F32:
        return raw.view(np.float32).reshape(rows, cols).astype(np.float64)
    if format_ == BF16:
        return decode_bf16(raw.view(np.uint16)).reshape(rows, cols)
    assert scales is not None
    scale = decode_ue8m0(np.ascontiguousarray(scales).view(np.uint8).reshape(-1))
    if format_ == FP8_BLOCK:
        grid = scale.reshape(-(-rows // 128), -(-cols // 128))
        grid = np.repeat(np.repeat(grid, 128, 0)[:rows], 128, 1)[:, :cols]
        return decode_e4m3(raw).reshape(rows, cols) * grid
    packed = raw.reshape(rows, cols // 2)
    value = np.stack((E2M1[packed & 15], E2M1[packed >> 4]), -1).reshape(rows, cols)
    return value * np.repeat(scale.reshape(rows, cols // 32), 32, 1)


@dataclass
class ReferenceWeight:
    """A bound weight: its raw bytes, decoded on each use."""

    format: int
    rows: int
    cols: int
    codes: np.ndarray
    scales: np.ndarray | None

    @property
    def values(self) -> np.ndarray:
        return decode_weight(self.format, self.rows, self.cols, self.codes, self.scales)


def f64(a: Any) -> np.ndarray:
    return np.asarray(a, dtype=np.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def rms(x: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def rotate(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """Rotate adjacent pairs of the last 2*pairs channels; x [..., width], cosine and sine over [..., pairs]."""
    pairs = cosine.shape[-1]
    head, tail = x[..., : x.shape[-1] - 2 * pairs], x[..., x.shape[-1] - 2 * pairs :]
    a, b = tail[..., 0::2], tail[..., 1::2]
    turned = np.stack((a * cosine - b * sine, b * cosine + a * sine), -1).reshape(tail.shape)
    return np.concatenate((head, turned), -1)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def gated(gate: np.ndarray, up: np.ndarray, limit: float) -> np.ndarray:
    if limit > 0:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return gate * sigmoid(gate) * up


def power_of_two_at_least(x: np.ndarray) -> np.ndarray:
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.ones_like(x), np.where(mantissa == 0.5, exponent - 1, exponent))


class ReferenceStages:
    """One method a stage; outputs are written in place."""

    where = ""

    def bind(
        self, name: str, format_: int, rows: int, cols: int, codes: np.ndarray, scales: np.ndarray | None = None
    ) -> ReferenceWeight:
        return ReferenceWeight(format_, rows, cols, codes, scales)

    def embed(self, table: ReferenceWeight, ids: np.ndarray, copies: int, streams: np.ndarray) -> None:
        streams[:] = np.tile(table.values[np.asarray(ids).reshape(-1)], (1, copies))

    def matmul(self, weight: ReferenceWeight, x: np.ndarray, groups: int, y: np.ndarray) -> None:
        w = weight.values.reshape(groups, weight.rows // groups, weight.cols)
        y[:] = np.einsum("tgi,gri->tgr", f64(x).reshape(len(x), groups, weight.cols), w).reshape(y.shape)

    matmul_f32 = matmul_bf16 = matmul_fp8 = matmul_fp4 = matmul

    def dequantize(self, weight: ReferenceWeight, first_row: int, y: np.ndarray) -> None:
        rows = y.reshape(-1, weight.cols)
        rows[:] = weight.values[first_row : first_row + len(rows)]

    def rms_norm(self, x: np.ndarray, gain: np.ndarray | None, epsilon: float, y: np.ndarray) -> None:
        value = rms(f64(x), epsilon)
        y[:] = value if gain is None else value * f64(gain).reshape(-1)

    def rope(self, cosine: np.ndarray, sine: np.ndarray, heads: int, inverse: int, x: np.ndarray) -> None:
        s = -f64(sine) if inverse else f64(sine)
        heads_of_x = f64(x).reshape(len(x), heads, -1)
        x[:] = rotate(heads_of_x, f64(cosine)[:, None], s[:, None]).reshape(x.shape)

    def kv_append(self, kv: np.ndarray, position: int, ring: np.ndarray) -> None:
        ring[(position + np.arange(len(kv))) % len(ring)] = kv

    def compress(
        self,
        kv: np.ndarray,
        gate: np.ndarray,
        ape: np.ndarray,
        position: int,
        overlap: int,
        gain: np.ndarray,
        epsilon: float,
        cosine: np.ndarray,
        sine: np.ndarray,
        kv_state: np.ndarray,
        gate_state: np.ndarray,
        entries: np.ndarray,
    ) -> None:
        m, width = len(ape), np.asarray(gain).size
        for t in range(len(kv)):
            p = position + t
            kv_state[p % len(kv_state)] = kv[t]
            gate_state[p % len(kv_state)] = np.float32(gate[t]) + np.float32(ape[p % m])
            if (p + 1) % m:
                continue
            i = p // m
            own = [(i * m + j) % len(kv_state) for j in range(m)]
            c, g = f64(kv_state[own]), f64(gate_state[own])
            if overlap:
                c, g = c[:, width:], g[:, width:]
                if i:
                    before = [(i * m - m + j) % len(kv_state) for j in range(m)]
                    c = np.concatenate((f64(kv_state[before])[:, :width], c))
                    g = np.concatenate((f64(gate_state[before])[:, :width], g))
            value = rms((softmax(g, 0) * c).sum(0), epsilon) * f64(gain).reshape(-1)
            row = i - position // m
            entries[i] = rotate(value, f64(cosine[row]), f64(sine[row]))

    def index_scores(
        self,
        q: np.ndarray,
        head_weights: np.ndarray,
        scale: float,
        keys: np.ndarray,
        position: int,
        ratio: int,
        scores: np.ndarray,
    ) -> None:
        heads = head_weights.shape[1]
        dots = np.einsum("thd,nd->thn", f64(q).reshape(len(q), heads, -1), f64(keys))
        value = (np.maximum(dots, 0) * (f64(head_weights) * scale)[..., None]).sum(1)
        visible = (position + np.arange(len(q)) + 1) // ratio
        scores[:] = np.where(np.arange(len(keys))[None] < visible[:, None], value, -np.inf)

    def top_k(self, scores: np.ndarray, selected: np.ndarray) -> None:
        k = selected.shape[1]
        for t, row in enumerate(scores):
            order = np.argsort(-row, kind="stable")[:k]
            best = np.sort(order[row[order] > -np.inf])
            selected[t] = -1
            selected[t, : len(best)] = best

    def attention(
        self,
        q: np.ndarray,
        heads: int,
        ring: np.ndarray,
        position: int,
        window: int,
        entries: np.ndarray | None,
        ratio: int,
        selected: np.ndarray | None,
        sinks: np.ndarray,
        scale: float,
        y: np.ndarray,
    ) -> None:
        for t in range(len(q)):
            p = position + t
            keys = f64(ring)[np.arange(max(0, p - window + 1), p + 1) % len(ring)]
            if entries is not None and ratio > 0:
                visible = np.arange(min((p + 1) // ratio, len(entries)))
                if selected is not None:
                    visible = selected[t][selected[t] >= 0]
                keys = np.concatenate((keys, f64(entries)[visible]))
            s = f64(q[t]).reshape(heads, -1) @ keys.T * scale
            sink = f64(sinks).reshape(-1, 1)
            p_all = softmax(np.concatenate((s, sink), 1), 1)[:, :-1]
            y[t] = (p_all @ keys).reshape(-1)

    def _hc_z(self, streams: np.ndarray, fn: ReferenceWeight, epsilon: float) -> np.ndarray:
        return rms(f64(streams), epsilon) @ fn.values.T

    def hc_pre(
        self,
        streams: np.ndarray,
        fn: ReferenceWeight,
        scale: np.ndarray,
        base: np.ndarray,
        iterations: int,
        norm_epsilon: float,
        hc_epsilon: float,
        x: np.ndarray,
        post: np.ndarray,
        comb: np.ndarray,
    ) -> None:
        n = post.shape[1]
        z = self._hc_z(streams, fn, norm_epsilon)
        a, b = f64(scale).reshape(-1), f64(base).reshape(-1)
        pre = sigmoid(z[:, :n] * a[0] + b[:n]) + hc_epsilon
        post[:] = 2 * sigmoid(z[:, n : 2 * n] * a[1] + b[n : 2 * n])
        c = (z[:, 2 * n :] * a[2] + b[2 * n :]).reshape(-1, n, n)
        c = softmax(c, 2) + hc_epsilon
        c = c / (c.sum(1, keepdims=True) + hc_epsilon)
        for _ in range(iterations - 1):
            c = c / (c.sum(2, keepdims=True) + hc_epsilon)
            c = c / (c.sum(1, keepdims=True) + hc_epsilon)
        comb[:] = c.reshape(len(c), -1)
        x[:] = np.einsum("tn,tnd->td", pre, f64(streams).reshape(len(streams), n, -1))

    def hc_post(self, y: np.ndarray, post: np.ndarray, comb: np.ndarray, streams: np.ndarray) -> None:
        t, n = post.shape
        mixed = np.einsum("tjk,tjd->tkd", f64(comb).reshape(t, n, n), f64(streams).reshape(t, n, -1))
        streams[:] = (f64(post)[:, :, None] * f64(y)[:, None] + mixed).reshape(streams.shape)

    def hc_head(
        self,
        streams: np.ndarray,
        fn: ReferenceWeight,
        scale: np.ndarray,
        base: np.ndarray,
        norm_epsilon: float,
        hc_epsilon: float,
        x: np.ndarray,
    ) -> None:
        z = self._hc_z(streams, fn, norm_epsilon)
        pre = sigmoid(z * f64(scale).reshape(-1)[0] + f64(base).reshape(-1)) + hc_epsilon
        x[:] = np.einsum("tn,tnd->td", pre, f64(streams).reshape(len(streams), pre.shape[1], -1))

    def router(
        self,
        logits: np.ndarray,
        bias: np.ndarray | None,
        fixed: np.ndarray | None,
        scale: float,
        picks: np.ndarray,
        weights: np.ndarray,
    ) -> None:
        rho = np.sqrt(softplus(f64(logits)))
        if fixed is not None:
            picks[:] = np.sort(fixed, 1)
        else:
            assert bias is not None
            order = np.argsort(-(rho + f64(bias).reshape(1, -1)), 1, kind="stable")[:, : picks.shape[1]]
            picks[:] = np.sort(order, 1)
        chosen = np.take_along_axis(rho, picks.astype(np.int64), 1)
        weights[:] = chosen / chosen.sum(1, keepdims=True) * scale

    def swiglu(self, gate: np.ndarray, up: np.ndarray, limit: float, y: np.ndarray) -> None:
        y[:] = gated(f64(gate), f64(up), limit)

    def moe(
        self,
        x: np.ndarray,
        picks: np.ndarray,
        weights: np.ndarray,
        ids: np.ndarray,
        w1: list[ReferenceWeight],
        w3: list[ReferenceWeight],
        w2: list[ReferenceWeight],
        limit: float,
        y: np.ndarray,
    ) -> None:
        out = f64(y)
        for e, a, b, c in zip(np.asarray(ids).reshape(-1), w1, w3, w2, strict=True):
            rows, ks = np.nonzero(picks == e)
            if len(rows):
                mid = gated(f64(x)[rows] @ a.values.T, f64(x)[rows] @ b.values.T, limit)
                np.add.at(out, rows, f64(weights)[rows, ks][:, None] * (mid @ c.values.T))
        y[:] = out

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        y[:] = f64(x) + f64(y)

    def _round(self, x: np.ndarray, group: int, largest: float, floor: float, grid: np.ndarray) -> np.ndarray:
        g = f64(x).reshape(len(x), -1, group)
        # amax and the quotient are float32 operations in the vendor's code; so is the product amax * (1/largest).
        amax = np.maximum(np.abs(g).max(-1, keepdims=True), floor).astype(np.float32)
        s = power_of_two_at_least(f64(amax * np.float32(1.0 / largest)))
        v = np.clip(g / s, -largest, largest)
        at = np.abs(v)
        high = np.searchsorted(grid, at)
        low = np.maximum(high - 1, 0)
        high = np.minimum(high, len(grid) - 1)
        below, above = at - grid[low], grid[high] - at
        pick = np.where(below < above, low, np.where(above < below, high, np.where(low % 2 == 0, low, high)))
        return (np.copysign(grid[pick], v) * s).reshape(x.shape)

    def round_fp8(self, x: np.ndarray, group: int, y: np.ndarray) -> None:
        y[:] = self._round(x, group, 448.0, 1e-4, decode_e4m3(np.arange(127, dtype=np.uint8)))

    def round_fp4(self, x: np.ndarray, group: int, y: np.ndarray) -> None:
        y[:] = self._round(x, group, 6.0, 6 * 2.0**-126, E2M1[:8])

    def hadamard(self, x: np.ndarray, y: np.ndarray) -> None:
        n = x.shape[1]
        h = np.ones((1, 1))
        while len(h) < n:
            h = np.block([[h, h], [h, -h]])
        y[:] = f64(x) @ h.T / np.sqrt(n)
