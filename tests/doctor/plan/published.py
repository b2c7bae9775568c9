"""Machines that other people measured, planned for Flash."""

from __future__ import annotations

import json
from pathlib import Path

from engine.sparse_flash import flash_config, flash_sizes

from coli.doctor.plan.budgets import decide_budgets
from coli.doctor.plan.core import Placement, decide_plan
from coli.doctor.plan.machine import machine_of
from coli.doctor.record.machine_file import read_machine
from coli.engine.budget import Demand, basis_items
from coli.families.deepseek_v4.demand import demand

__all__ = ["PUBLISHED", "flash_demand", "plan_published", "published_rate"]

PUBLISHED = tuple(sorted((Path(__file__).parents[2] / "machines" / "published").glob("*.json")))


def flash_demand() -> Demand:
    """Return what Flash asks for."""
    return demand(flash_config(), flash_sizes(), "config.json")


def published_rate(path: Path) -> tuple[float, float]:
    """Return the tokens per second that were published: lowest, highest."""
    low, high = json.loads(path.read_text("utf-8"))["published_tokens_per_s"]
    return low, high


def plan_published(path: Path, flash: Demand, *, card: bool = True) -> tuple[str, Placement]:
    """Return the machine's name and the plan for a context of 4096. ``card`` False leaves its card alone."""
    machine = machine_of(read_machine(path), gpu=None if card else "none")
    plan = decide_plan(
        basis_items(100 << 20, 32 << 20, 129280),
        flash,
        decide_budgets(machine.memory, machine.device),
        machine.speeds,
        context=4096,
        most_context=1 << 20,
        most_chunk=128,
    )
    return machine.name, plan.best
