"""Kind memory: facts from coli.engine.host_memory, pools from the device probe."""

from __future__ import annotations

from typing import Any

from kinds_driver import probe
from prepared import Prepared

from coli.backends.devices import memory_pools
from coli.doctor.facts.memory import probe_memory


def memory_facts(machine: Prepared) -> dict[str, Any]:
    facts = probe_memory(machine.root)
    memory = facts.host
    pools = memory_pools(probe(machine))
    # What a plan may hand out of the system's pool, and for a unified one that is all there is.
    base = facts.budget_bytes.value
    system = pools[0]
    dedicated = sum(pool.free_bytes.value or 0 for pool in pools[1:])
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
        "sum_of_all_allocations": None if base is None else base + dedicated,
        "gpu_tier_plus_ram_le_pool": None not in (base, system.free_bytes.value)
        and (base or 0) <= (system.free_bytes.value or 0),
    }


KINDS = {"memory": memory_facts}
