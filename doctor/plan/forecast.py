"""How fast a placement decodes: an interval from bandwidths and a hit rate, with its basis. Pure.

A token reads its dense weights and its experts once. What lies in memory costs bytes over the bandwidth of that memory,
what was not there comes from the disk first. The engine waits for a read before it computes with it, so times add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from coli.engine.budget import Traffic

__all__ = ["Forecast", "History", "Part", "Placed", "Range", "Speeds", "forecast", "hit_rates"]

# A cache of the share s of all experts serves s of the calls when all are equally popular (a little less while it
# fills: 0.40 measured at 0.44), and s ** 0.6 when some are asked for more often: a third of them then serves half.
_FEW = 0.85
_SKEW = 0.6
# What a stage call costs beside its bytes: Python, waking the threads. 30 and 58 microseconds with two threads on a
# busy machine, where the weights are next to nothing.
_CALL_LOW_S, _CALL_HIGH_S = 10e-6, 90e-6
_CACHE_HIGH = 0.8  # of the memory's rate: several readers copy out of the page cache at once
# A run's own hit rate, carried to another prompt.
_HISTORY_SPREAD = 0.08


@dataclass(frozen=True)
class Range:
    """Bytes per second, from a cautious to a hopeful value. ``measured``: on this machine; ``source`` says how."""

    low: float
    high: float
    source: str
    measured: bool = False

    def times(self, factor: float) -> Range:
        """Return the range of a memory that is ``factor`` times as fast."""
        return replace(self, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True)
class Speeds:
    """Bandwidths: reading experts from disk, products over weights in RAM, products over weights on the device."""

    disk: Range
    ram: Range
    vram: Range | None = None

    def with_page_cache(self) -> Speeds:
        """Return the speeds where the system may keep the files in memory: a read then is a copy."""
        source = f"{self.disk.source}; the page cache may answer"
        return replace(
            self, disk=replace(self.disk, high=max(self.disk.high, self.ram.high * _CACHE_HIGH), source=source)
        )

    @property
    def measured(self) -> bool:
        """Tell whether all that matters was measured here."""
        return self.disk.measured and self.ram.measured


@dataclass(frozen=True)
class Placed:
    """Where the bytes of a token lie. ``cached``, ``device_experts``: share of all experts that RAM, a device holds."""

    traffic: Traffic
    cached: float
    device_dense_bytes: int = 0
    device_experts: float = 0.0


@dataclass(frozen=True)
class History:
    """An earlier run: the share of all experts that its cache held, and the share of calls that it served."""

    share: float
    rate: float

    def carried_to(self, share: float) -> float:
        """Return the rate of a cache of another size: it grows with the same power of the share."""
        if not (0 < self.share < 1 and 0 < self.rate < 1 and share > 0):
            return self.rate
        return float(share ** (math.log(self.rate) / math.log(self.share)))


@dataclass(frozen=True)
class Part:
    """Seconds that a token spends on one thing: at best and at worst."""

    name: str
    nbytes: float
    best_s: float
    worst_s: float

    @property
    def typical_s(self) -> float:
        """Return the geometric middle."""
        return math.sqrt(self.best_s * self.worst_s)


@dataclass(frozen=True)
class Forecast:
    """Tokens per second in decode, ``low`` to ``high``. ``hits``: shares of expert calls that need no disk."""

    low: float
    high: float
    parts: tuple[Part, ...]
    hits: tuple[float, float]
    basis: tuple[str, ...]
    measured: bool

    @property
    def typical(self) -> float:
        """Return the geometric middle of the interval."""
        return math.sqrt(self.low * self.high)


def hit_rates(share: float, history: History | None = None) -> tuple[float, float]:
    """Return the lowest and highest hit rate of a cache that holds ``share`` of all experts."""
    if share >= 1:
        return 1.0, 1.0
    if history is not None:
        rate = history.carried_to(share)
        return max(0.0, rate - _HISTORY_SPREAD), min(1.0, rate + _HISTORY_SPREAD)
    return _FEW * share, share**_SKEW


def forecast(placed: Placed, speeds: Speeds, history: History | None = None) -> Forecast:
    """Return the forecast of a placement."""
    traffic = placed.traffic
    share = min(1.0, placed.cached + placed.device_experts)
    few, many = hit_rates(share, history)
    on_device = placed.device_dense_bytes if speeds.vram else 0
    # Experts on the device are asked as often as those in RAM.
    device_part = placed.device_experts / share if share and speeds.vram else 0.0
    routed = traffic.routed_bytes
    parts = [
        _part("expert reads from disk", routed * (1 - many), routed * (1 - few), speeds.disk),
        _part(
            "products over weights in RAM",
            traffic.dense_bytes - on_device + routed * (1 - many * device_part),
            traffic.dense_bytes - on_device + routed * (1 - few * device_part),
            speeds.ram,
        ),
    ]
    if speeds.vram:
        parts.append(
            _part(
                "products over weights in VRAM",
                on_device + routed * few * device_part,
                on_device + routed * many * device_part,
                speeds.vram,
            )
        )
    parts.append(Part("calls of stages", 0, traffic.calls * _CALL_LOW_S, traffic.calls * _CALL_HIGH_S))
    parts = [part for part in parts if part.worst_s > 0]
    best, worst = sum(part.best_s for part in parts), sum(part.worst_s for part in parts)
    return Forecast(
        1 / worst if worst else math.inf,
        1 / best if best else math.inf,
        tuple(parts),
        (few, many),
        _basis(speeds, history, share),
        speeds.measured,
    )


def _part(name: str, least: float, most: float, speed: Range) -> Part:
    return Part(name, most, least / speed.high, most / speed.low)


def _basis(speeds: Speeds, history: History | None, share: float) -> tuple[str, ...]:
    lines = [f"disk {_rates(speeds.disk)}", f"products over weights in RAM {_rates(speeds.ram)}"]
    if speeds.vram:
        lines.append(f"products over weights in VRAM {_rates(speeds.vram)}")
    few, many = hit_rates(share, history)
    if share >= 1:
        lines.append("every expert stays in memory once it was read")
    elif history is not None:
        last = f"the last run had {history.rate:.0%} with {history.share:.0%} of the experts held"
        lines.append(f"hit rate {few:.0%} to {many:.0%}: {last}; now {share:.0%} are")
    else:
        lines.append(
            f"hit rate {few:.0%} (all experts equally popular) to {many:.0%} (some are asked for more often): "
            f"an assumption, {share:.0%} of the experts are held"
        )
    lines.append("reading and computing take turns: the engine does not read ahead")
    return tuple(lines)


def _rates(speed: Range) -> str:
    return f"{speed.low / 1e9:.1f} to {speed.high / 1e9:.1f} GB/s ({speed.source})"
