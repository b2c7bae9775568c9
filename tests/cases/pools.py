"""Facts of the memory of a case's machine: coli.engine.host_memory, and the pools of the device probe."""

from __future__ import annotations

import contextlib
from typing import Any

from prepared import Prepared

from coli.backends.devices import DeviceFacts, memory_pools
from coli.doctor.facts.memory import probe_memory
from coli.doctor.plan.budgets import Budgets, Device, decide_budgets
from coli.errors import BudgetError

__all__ = ["pool_facts"]


def pool_facts(machine: Prepared, found: DeviceFacts) -> dict[str, Any]:
    """Return what a plan would start from. ``found``: what the detector found on the machine."""
    facts = probe_memory(machine.root)
    memory = facts.host
    pools = memory_pools(found)
    system = pools[0]
    # What a plan hands out of the system's pool, and for a unified one that is all there is.
    budgets: Budgets | None = None
    with contextlib.suppress(BudgetError):  # nobody says how much memory there is
        budgets = decide_budgets(memory, Device.of(found.gpus[0], found) if found.gpus else None)
    allocated = None if budgets is None else sum(limit or 0 for limit in budgets.limits().values())
    base = facts.budget_bytes.value
    pooled = base if budgets is None or budgets.pool_bytes is None else allocated
    return {
        "ram.total_bytes": memory.total_bytes.value,
        "ram.available_bytes": memory.available_bytes.value,
        "ram.source": memory.source,
        "limit_at": memory.limit_at.value,
        "swap.total_bytes": memory.swap_total_bytes.value,
        "swap.free_bytes": memory.swap_free_bytes.value,
        "swap.zram": memory.zram.value,
        "commit.left_bytes": memory.commit_left_bytes.value,
        "plan_base_bytes": base,
        "pool_count": len(pools),
        "pool_total_bytes": system.total_bytes.value,
        "pool_free_bytes": system.free_bytes.value,
        "sum_of_all_allocations": allocated,
        "gpu_tier_plus_ram_le_pool": None not in (pooled, system.free_bytes.value)
        and (pooled or 0) <= (system.free_bytes.value or 0),
    }
