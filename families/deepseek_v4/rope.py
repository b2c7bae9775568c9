"""Rope frequencies of DeepSeek V4, the same double on every machine.

`base ** (-2i/dr)` goes through 50 decimal digits, because a C library's pow may differ in the last bit from another's.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

from .config import Geometry, Yarn

__all__ = ["compressed_frequencies", "main_frequencies"]


def main_frequencies(geometry: Geometry) -> list[float]:
    """Return the `rope_dim/2` angular frequencies of layers without compression."""
    return _powers(geometry.rope_theta, geometry.rope_dim)


def compressed_frequencies(geometry: Geometry) -> list[float]:
    """Return the frequencies of compressed layers: their own base, YaRN where the config has it."""
    plain = _powers(geometry.compress_rope_theta, geometry.rope_dim)
    yarn = geometry.yarn
    if yarn is None:
        return plain
    low, high = _ramp(yarn, geometry.compress_rope_theta, geometry.rope_dim)
    mixed = []
    for i, frequency in enumerate(plain):
        u = min(max((i - low) / ((high - low) or 0.001), 0.0), 1.0)
        mixed.append(frequency * (1.0 - u) + frequency / yarn.factor * u)
    return mixed


def _powers(base: float, dim: int) -> list[float]:
    with localcontext() as context:
        context.prec = 50
        log_base = Decimal(base).ln()
        return [float((log_base * Decimal(-2 * i) / Decimal(dim)).exp()) for i in range(dim // 2)]


def _ramp(yarn: Yarn, base: float, dim: int) -> tuple[int, int]:
    def pair_of(rotations: float) -> float:
        return dim * math.log(yarn.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(base))

    # Both ends are rounded to whole pairs, so the last bit of log does not show.
    return max(math.floor(pair_of(yarn.beta_fast)), 0), min(math.ceil(pair_of(yarn.beta_slow)), dim - 1)
