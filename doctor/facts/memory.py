"""The machine's memory as the engine's own probe sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coli.backends.devices.facts import Fact
from coli.engine.host_memory import HostMemory

__all__ = ["MemoryFacts", "probe_memory"]


@dataclass(frozen=True)
class MemoryFacts:
    """``host``: what `coli.engine.host_memory` found. ``resident_bytes``: this process. ``budget_bytes``: what an engine
    would take for everything, without `--ram`; unknown when the available memory is."""

    host: HostMemory
    resident_bytes: Fact[int]
    budget_bytes: Fact[int]


def probe_memory(root: Path = Path("/")) -> MemoryFacts:
    """Look at the memory of the machine below ``root``."""
    raise NotImplementedError
