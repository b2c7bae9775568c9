"""Every check, in the order in which the report shows them."""

from __future__ import annotations

from coli.doctor.checks import (
    backends,
    budget,
    checkpoint,
    compiler,
    cpu,
    devices,
    driver,
    memory,
    settings,
    storage,
    system,
    toolkit,
)
from coli.doctor.checks.finding import Check

__all__ = ["CHECKS", "SECTIONS"]

CHECKS: tuple[Check, ...] = tuple(
    check
    for section in (
        system,
        cpu,
        memory,
        storage,
        driver,
        devices,
        toolkit,
        compiler,
        backends,
        checkpoint,
        budget,
        settings,
    )
    for check in section.CHECKS
)

SECTIONS = {
    "system": "System",
    "cpu": "Processor",
    "memory": "Memory",
    "storage": "Storage",
    "driver": "Driver",
    "devices": "GPUs",
    "toolkit": "CUDA toolkits",
    "compiler": "Compilers",
    "backends": "Backends",
    "checkpoint": "Checkpoint",
    "budget": "Budget",
    "settings": "Settings",
}
"""Section -> its heading, in the order of the report."""
