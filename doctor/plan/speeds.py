"""Bandwidths for a forecast: measured ones where there are any, else stated guesses with a wide interval. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from coli.doctor.facts.measure import Measured
from coli.doctor.plan.forecast import Range, Speeds

__all__ = ["Rated", "decide_speeds"]

# What the kernels decode and multiply in a second, by thread: fp8 on a slow core, bf16 on a fast one.
_THREAD_LOW, _THREAD_HIGH = 2.5e9, 9e9
# Of a rated bandwidth an engine that reads single records, and waits for each layer's, gets about this much.
_DISK_RATED_LOW, _DISK_RATED_HIGH = 0.45, 0.95
_RAM_RATED_LOW, _RAM_RATED_HIGH = 0.45, 0.85
# A measured disk was read as the engine reads it; other programs and a filling page cache take a part.
_DISK_MEASURED_LOW, _DISK_MEASURED_HIGH = 0.6, 1.1
_RAM_MEASURED_LOW, _RAM_MEASURED_HIGH = 0.4, 1.0
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


@dataclass(frozen=True)
class Rated:
    """Bandwidths as a vendor states them, bytes per second; None where nobody said."""

    disk_bytes_per_s: float | None = None
    ram_bytes_per_s: float | None = None
    vram_bytes_per_s: float | None = None


def decide_speeds(
    threads: int,
    measured: Measured | None = None,
    *,
    disk_kind: str | None = None,
    rated: Rated | None = None,
    device: bool = False,
) -> Speeds:
    """Return the bandwidths. ``measured`` goes before ``rated``, ``rated`` before a guess by ``disk_kind``."""
    rated = rated or Rated()
    return Speeds(
        _disk(measured, disk_kind, rated.disk_bytes_per_s),
        _ram(threads, measured, rated.ram_bytes_per_s),
        _vram(rated.vram_bytes_per_s) if device else None,
    )


def _disk(measured: Measured | None, kind: str | None, rated: float | None) -> Range:
    rate = measured.disk_bytes_per_s.value if measured else None
    if measured and rate:
        source = f"measured {measured.date[:10]}"
        return Range(_DISK_MEASURED_LOW * rate, _DISK_MEASURED_HIGH * rate, source, True)
    if rated:
        return Range(_DISK_RATED_LOW * rated, _DISK_RATED_HIGH * rated, f"rated {rated / 1e9:.1f} GB/s")
    low, high = _DISKS.get(kind or "", _ANY_DISK)
    return Range(low, high, f"a guess for {kind or 'any disk'}")


def _ram(threads: int, measured: Measured | None, rated: float | None) -> Range:
    rate = measured.memory_bytes_per_s.value if measured else None
    low, high = _RAM_RATED_LOW, _RAM_RATED_HIGH
    if measured and rate:
        source, low, high = f"memory measured {measured.date[:10]}", _RAM_MEASURED_LOW, _RAM_MEASURED_HIGH
    elif rated:
        rate, source = rated, f"memory rated {rated / 1e9:.0f} GB/s"
    else:
        rate, source = _ANY_RAM, "a guess for two channels"
    cores = f"{threads} thread{'s' if threads > 1 else ''}"
    return Range(
        min(low * rate, threads * _THREAD_LOW),
        min(high * rate, threads * _THREAD_HIGH),
        f"{source}, {cores}",
        bool(measured and measured.memory_bytes_per_s.value),
    )


def _vram(rated: float | None) -> Range:
    if rated:
        return Range(_VRAM_LOW * rated, _VRAM_HIGH * rated, f"rated {rated / 1e9:.0f} GB/s")
    return Range(_VRAM_LOW * _ANY_VRAM, _VRAM_HIGH * _ANY_VRAM, "a guess for any card")
