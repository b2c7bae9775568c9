"""Bandwidths measured on this machine, kept in the cache folder for the plan."""

from __future__ import annotations

from dataclasses import dataclass

from coli.backends.devices.facts import UNKNOWN, Fact

__all__ = ["DiskRead", "Measured"]


@dataclass(frozen=True)
class DiskRead:
    """Reading whole expert records with ``readers`` threads. ``how``: `direct` or `buffered`."""

    readers: int
    record_bytes: int
    read_bytes: int
    seconds: float
    how: str

    @property
    def bytes_per_s(self) -> float:
        """Return the rate."""
        return self.read_bytes / self.seconds


@dataclass(frozen=True)
class Measured:
    """``storage``: mount and device that were measured. ``date``: ISO 8601, UTC. Rates in bytes per second.

    ``disk_bytes_per_s``: the best of ``disk_reads``. ``pcie_bytes_per_s`` is not known without a CUDA backend.
    """

    storage: str
    date: str
    disk_bytes_per_s: Fact[float] = UNKNOWN
    disk_reads: tuple[DiskRead, ...] = ()
    memory_bytes_per_s: Fact[float] = UNKNOWN
    pcie_bytes_per_s: Fact[float] = UNKNOWN
