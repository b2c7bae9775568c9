"""The processor: model, level, cores, and how many of them this process may use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coli.backends.devices.facts import UNKNOWN, Fact

__all__ = ["CpuFacts", "probe_cpu"]


@dataclass(frozen=True)
class CpuFacts:
    """``levels``: those that it runs, preferred first. ``features``: flags as Linux spells them.

    ``affinity``: logical processors that the process may run on. ``quota_cores``: the tightest limit of its cgroups,
    in cores, absent when there is none, and ``quota_at`` the group that sets it. ``threads``: what an engine starts.
    """

    machine: str
    level: str
    levels: tuple[str, ...]
    model: Fact[str] = UNKNOWN
    features: Fact[frozenset[str]] = UNKNOWN
    physical_cores: Fact[int] = UNKNOWN
    logical_cores: Fact[int] = UNKNOWN
    affinity: Fact[int] = UNKNOWN
    quota_cores: Fact[float] = UNKNOWN
    quota_at: Fact[str] = UNKNOWN
    threads: Fact[int] = UNKNOWN


def probe_cpu(root: Path = Path("/"), machine: str | None = None) -> CpuFacts:
    """Look at the processor of the machine below ``root``; ``machine`` names its kind for another root."""
    raise NotImplementedError
