"""Kind memory: facts from coli.engine.host_memory, pools from the device probe."""

from __future__ import annotations

from typing import Any

from kinds_driver import probe
from prepared import Prepared

from coli.backends.devices import memory_pools
from coli.doctor.plan.budgets import Device, decide_budgets
from coli.engine.host_memory import probe_host_memory


def memory_facts(machine: Prepared) -> dict[str, Any]:
    memory = probe_host_memory(machine.root)
    found = probe(machine)
    pools = memory_pools(found)
    system = pools[0]
    # What a plan hands out of the system's pool, and for a unified one that is all there is.
    budgets = decide_budgets(memory, Device.of(found.gpus[0], found) if found.gpus else None)
    allocated = sum(limit or 0 for limit in budgets.limits().values())
    pooled = allocated if budgets.pool_bytes is not None else budgets.ram.limit_bytes
    return {
        "ram.total_bytes": memory.total_bytes.value,
        "ram.available_bytes": memory.available_bytes.value,
        "ram.source": memory.source,
        "limit_at": memory.limit_at.value,
        "swap.total_bytes": memory.swap_total_bytes.value,
        "swap.free_bytes": memory.swap_free_bytes.value,
        "swap.zram": memory.zram.value,
        "commit.left_bytes": memory.commit_left_bytes.value,
        "plan_base_bytes": budgets.ram.limit_bytes,
        "pool_count": len(pools),
        "pool_total_bytes": system.total_bytes.value,
        "pool_free_bytes": system.free_bytes.value,
        "sum_of_all_allocations": allocated,
        "gpu_tier_plus_ram_le_pool": system.free_bytes.value is not None and pooled <= system.free_bytes.value,
    }


KINDS = {"memory": memory_facts}
