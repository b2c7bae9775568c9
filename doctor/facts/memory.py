"""The machine's memory as the engine's own probe sees it, and what the engine would take of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coli.backends.devices.facts import Fact
from coli.engine.host_memory import HostMemory, probe_host_memory, ram_budget_bytes, resident_bytes
from coli.errors import BudgetError

__all__ = ["MemoryFacts", "probe_memory"]


@dataclass(frozen=True)
class MemoryFacts:
    """``host``: what `coli.engine.host_memory` found.

    ``resident_bytes``: this process, known on its own machine. ``budget_bytes``: what an engine may fill without
    `--ram`; unknown when the available memory is.
    """

    host: HostMemory
    resident_bytes: Fact[int]
    budget_bytes: Fact[int]


def probe_memory(root: Path = Path("/")) -> MemoryFacts:
    """Look at the memory of the machine below ``root``."""
    host = probe_host_memory(root)
    resident: Fact[int] = Fact.unknown("this process does not run on that machine")
    if root == Path("/"):
        resident = Fact.of(resident_bytes(), "psutil")
    try:
        budget: Fact[int] = Fact.of(ram_budget_bytes(host, resident.value or 0), "coli.engine.host_memory")
    except BudgetError as error:
        budget = Fact.unknown(str(error.observed))
    return MemoryFacts(host, resident, budget)
