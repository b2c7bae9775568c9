"""Kind plan: facts of coli.doctor.plan. The core is fed with the numbers of the case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kinds_driver import probe
from prepared import Prepared

from coli.backends.devices import select_devices
from coli.backends.devices.facts import Fact
from coli.doctor.plan.budgets import Device, decide_budgets
from coli.doctor.plan.core import Choice, Placement, decide_plan, place
from coli.doctor.plan.speeds import decide_speeds
from coli.engine.budget import Demand, DeviceGroup, Traffic
from coli.engine.host_memory import HostMemory, probe_host_memory
from coli.engine.ledger import Item
from coli.errors import BudgetError
from coli.families.options import unread_options

MIB = 1 << 20
SPEEDS = decide_speeds(8, device=True)


def plan_facts(machine: Prepared) -> dict[str, Any]:
    """Return the facts of a case by what its folder holds."""
    case = machine.case
    if (case / "family.json").is_file():
        return _options(_read(case / "family.json"))
    given = _read(case / "plan.json")
    if (case / "smi.json").is_file():
        return _card(machine, given)
    memory = _memory_of(machine, given)
    return _context(machine.expect, given, memory) if "kv_layers" in given else _cache(given, memory)


def _options(family: dict[str, Any]) -> dict[str, Any]:
    words = [word.partition("=")[0] for word in family["argv"] if word.startswith("--")]
    capabilities = [name for name, has in family["capabilities"].items() if has]
    unread = [one.option for one in unread_options(capabilities, words)]
    lacking = {"--ram": "ram_budget", "--gpu": "cuda", "--vram": "cuda"}
    wanted = [word for word in words if word in lacking and not family["capabilities"].get(lacking[word])]
    return {"messages_name": unread, "silent_ignore": any(word not in unread for word in wanted)}


def _context(expect: dict[str, Any], given: dict[str, Any], memory: HostMemory) -> dict[str, Any]:
    """A KV cache of so many bytes a token; the default context must fit."""
    if "kv_lora_rank" in given:
        width = given["kv_lora_rank"] + given["qk_rope_head_dim"]
    else:  # keys and values of every head
        width = 2 * given["num_key_value_heads"] * given["head_dim"]

    def kv(value_bytes: int) -> Item:
        return Item("KV", "ram", 0, per_token=given["kv_layers"] * width * value_bytes)

    found: dict[str, Any] = {}
    for key in expect.get("kv_bytes", ()):
        context, _, value_bytes = key.partition("@")
        found[key] = kv(int(value_bytes)).total_bytes(int(context))

    def items(context: int, chunk: int) -> list[Item]:
        # The engine's own items carry the context in their bytes.
        cache = Item("KV", "ram", kv(4).total_bytes(context))
        return [Item("dense weights", "ram", given["dense_bytes"]), cache, Item("expert cache", "ram", MIB, 4096, 1)]

    demand = Demand(items, Traffic(given["dense_bytes"], 8, MIB))
    budgets = decide_budgets(memory)
    most = given["max_position_embeddings"]
    facts = {"kv_bytes": found, "kv_bytes_per_token": kv(4).total_bytes(1)}
    try:
        plan = decide_plan([], demand, budgets, SPEEDS, context=given.get("ctx"), most_context=most, most_chunk=128)
    except BudgetError as error:
        return facts | {"default_ctx": None, "default_ctx_must_fit": False, **_refused(error)}
    fits = plan.best.nbytes("ram") <= budgets.ram.limit_bytes <= (memory.available_bytes.value or 0)
    context = plan.best.choice.context
    return facts | {"default_ctx": context, "default_ctx_must_fit": fits and context <= most, "status": "ok"}


def _refused(error: BudgetError) -> dict[str, Any]:
    return {"status": "fail", "error_kind": error.code.partition(".")[2]}


def _cache(given: dict[str, Any], memory: HostMemory) -> dict[str, Any]:
    """An expert cache of so many slots: what counts is its size when it is full."""
    slots = given["slots_per_layer"] * given["moe_layers"]
    cache = Item("expert cache", "ram", given["slot_bytes"], count=slots, minimum=given["moe_layers"])
    demand = Demand(
        lambda context, chunk: [Item("resident", "ram", given["resident_bytes"]), cache],
        Traffic(given["resident_bytes"], given["moe_layers"], given["slot_bytes"]),
    )
    budgets = decide_budgets(memory)
    available = memory.available_bytes.value or 0
    reserve = max(given.get("os_reserve_min", 0), available - budgets.ram.limit_bytes)
    facts: dict[str, Any] = {"cache_bytes_if_full": cache.total_bytes()}
    try:
        placement = place([], demand, budgets, SPEEDS, Choice(4096, 128))
    except BudgetError as error:
        return facts | {"must_reduce_or_refuse": True, "sum": 0, "slots_per_layer": 0, **_refused(error)}
    planned = placement.nbytes("ram")
    enough = available - planned >= given.get("os_reserve_min", 0)
    whole = placement.cache.count == slots
    needed = cache.total_bytes() + given["resident_bytes"] + reserve > available
    return facts | {
        "must_reduce_or_refuse": needed and not whole and enough,
        "sum": planned + reserve,
        "slots_per_layer": placement.cache.count // given["moe_layers"],
        "status": "ok" if whole else "warn",
    }


def _card(machine: Prepared, given: dict[str, Any]) -> dict[str, Any]:
    """What lies on a card: the weights of every token, the bank of a prompt, then experts."""
    found = probe(machine)
    card = select_devices(found, machine.environment).usable[0]
    memory = _memory(64 << 30, 60 << 30) if "ram_available" not in given else _memory_of(machine, given)
    budgets = decide_budgets(memory, Device.of(card.gpu, found, card.memory))
    count = 1 << 20
    groups = (
        DeviceGroup("dense", "dense", (Item("dense", "vram", given["dense_bytes"]),)),
        DeviceGroup("prefill-bank", "bank", (Item("prefill-bank", "vram", given["prefill_bank_bytes"]),)),
        DeviceGroup(
            "expert-tier", "experts", (Item("expert-tier", "vram", given["expert_bytes"], count=count, minimum=1),)
        ),
    )
    cache = Item("expert cache", "ram", given["expert_bytes"], count=count, minimum=1)
    demand = Demand(lambda context, chunk: [cache], Traffic(given["dense_bytes"], 8, given["expert_bytes"]), groups)
    placement = place([], demand, budgets, SPEEDS, Choice(4096, 128, tuple(group.name for group in groups)))
    return {
        "gpu_alloc": placement.nbytes("vram") // MIB,
        "order": [_named(placement, number) for number in range(len(placement.of("vram")))],
        "expert_tier": next((g.nbytes // MIB for g in placement.of("vram") if g.item.name == "expert-tier"), 0),
    }


def _named(placement: Placement, number: int) -> str:
    grant = placement.of("vram")[number]
    return f"{grant.item.name} gets the rest" if grant.item.minimum else grant.item.name


def _memory_of(machine: Prepared, given: dict[str, Any]) -> HostMemory:
    """The case's numbers, or what its tree says."""
    if "ram_available" not in given:
        return probe_host_memory(machine.root)
    return _memory(given.get("ram_total", given["ram_available"]), given["ram_available"])


def _memory(total: int, available: int) -> HostMemory:
    return HostMemory(Fact.of(total, "the case"), Fact.of(available, "the case"))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


KINDS = {"plan": plan_facts}
