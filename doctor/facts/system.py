"""The system: which one, its kernel and C library, and whether it is a container, a WSL or a Tegra."""

from __future__ import annotations

from dataclasses import dataclass

from coli.backends.devices.facts import UNKNOWN, Fact, Platform
from coli.build_matrix.toolkits import Places

__all__ = ["SystemFacts", "probe_system"]


@dataclass(frozen=True)
class SystemFacts:
    """``platform`` as the device probe names it. ``container``: its kind (`docker`, `podman`, ...), absent outside.

    ``libc``: name and version (`glibc 2.41`, `musl`). ``wsl``: 1 or 2, absent elsewhere.
    """

    platform: Platform
    name: Fact[str] = UNKNOWN
    kernel: Fact[str] = UNKNOWN
    machine: Fact[str] = UNKNOWN
    libc: Fact[str] = UNKNOWN
    container: Fact[str] = UNKNOWN
    wsl: Fact[int] = UNKNOWN
    tegra: Fact[bool] = UNKNOWN


def probe_system(places: Places, system: str | None = None) -> SystemFacts:
    """Look at the machine of ``places``. ``system``: as sys.platform names it, this one's if None."""
    raise NotImplementedError
