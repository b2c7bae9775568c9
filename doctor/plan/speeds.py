"""Bandwidths for a forecast: measured ones where there are any, else stated guesses with a wide interval. Pure."""

from __future__ import annotations

from coli.doctor.facts.measure import Measured
from coli.doctor.plan.forecast import Range, Speeds
from coli.engine.store import READERS

__all__ = ["RATED", "decide_speeds"]

# A rate whose source begins so was not measured: a vendor states it.
RATED = "rated"

# What the kernels decode and multiply in a second, by thread: fp8 on a slow core, bf16 on a fast one.
_THREAD_LOW, _THREAD_HIGH = 2.5e9, 9e9
# Of a rated bandwidth an engine that reads single records, and waits for each layer's, gets about this much.
_DISK_RATED_LOW, _DISK_RATED_HIGH = 0.42, 0.95
_RAM_RATED_LOW, _RAM_RATED_HIGH = 0.45, 0.85
# Of a memory that was measured with plain reads, products got a third on two busy cores, and all of it on two idle
# ones (14.8 of 14.7 GB/s).
# A measured disk was read as the engine reads it; other programs and a filling page cache take a part.
_DISK_MEASURED_LOW, _DISK_MEASURED_HIGH = 0.5, 1.1
_RAM_MEASURED_LOW, _RAM_MEASURED_HIGH = 0.3, 1.25
_VRAM_LOW, _VRAM_HIGH = 0.4, 0.9
_DISKS = {
    "nvme": (1.5e9, 6.5e9),
    "ssd": (0.3e9, 0.55e9),
    "hdd": (0.05e9, 0.2e9),
    "usb": (0.03e9, 0.9e9),
    "mmc": (0.03e9, 0.3e9),
}
_ANY_DISK = (0.2e9, 5e9)
_ANY_RAM = 40e9
_ANY_VRAM = 400e9


def decide_speeds(
    threads: int, measured: Measured | None = None, *, disk_kind: str | None = None, device: bool = False
) -> Speeds:
    """Return the bandwidths. What was measured, or at least rated, goes before a guess by ``disk_kind``."""
    vram = Range(_VRAM_LOW * _ANY_VRAM, _VRAM_HIGH * _ANY_VRAM, "a guess for any card") if device else None
    return Speeds(_disk(measured, disk_kind), _ram(threads, measured), vram)


def _disk(measured: Measured | None, kind: str | None) -> Range:
    fact = measured.disk_bytes_per_s if measured else None
    if measured is None or fact is None or not fact.value:
        low, high = _DISKS.get(kind or "", _ANY_DISK)
        return Range(low, high, f"a guess for {kind or 'any disk'}")
    if fact.source.startswith(RATED):
        return Range(_DISK_RATED_LOW * fact.value, _DISK_RATED_HIGH * fact.value, f"{RATED} {_rate(fact.value)}")
    source = f"measured {_rate(fact.value)}, {measured.date[:10]}"
    # The best is with more readers than the engine has; its own number is nearer to what it will see.
    own = min((read.bytes_per_s for read in measured.disk_reads if read.readers == READERS), default=fact.value)
    return Range(_DISK_MEASURED_LOW * min(own, fact.value), _DISK_MEASURED_HIGH * fact.value, source, True)


def _ram(threads: int, measured: Measured | None) -> Range:
    fact = measured.memory_bytes_per_s if measured else None
    rate, low, high = _ANY_RAM, _RAM_RATED_LOW, _RAM_RATED_HIGH
    source, is_measured = "a guess for two channels", False
    if measured is not None and fact is not None and fact.value:
        rate, is_measured = fact.value, not fact.source.startswith(RATED)
        source = f"memory {RATED} {_rate(rate)}"
        if is_measured:
            source, low, high = f"memory measured {_rate(rate)}", _RAM_MEASURED_LOW, _RAM_MEASURED_HIGH
    cores = f"{threads} thread{'s' if threads > 1 else ''}"
    return Range(
        min(low * rate, threads * _THREAD_LOW),
        min(high * rate, threads * _THREAD_HIGH),
        f"{source}, {cores}",
        is_measured,
    )


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s"
