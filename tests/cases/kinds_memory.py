"""Kind memory: facts from coli.engine.host_memory, pools from the device probe."""

from __future__ import annotations

from typing import Any

from kinds_driver import of_machine, probe
from pools import pool_facts
from prepared import Prepared


def memory_facts(machine: Prepared) -> dict[str, Any]:
    found = probe(machine)
    return {**of_machine(found, machine.environment), **pool_facts(machine, found)}


KINDS = {"memory": memory_facts}
