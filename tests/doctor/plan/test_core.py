"""The core, on numbers that can be added up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coli.backends.devices.facts import Fact
from coli.doctor.plan.budgets import Budgets, Device, TierBudget, decide_budgets
from coli.doctor.plan.core import Choice, decide_plan, least_ram_bytes, place
from coli.doctor.plan.sensitivity import changes
from coli.doctor.plan.speeds import decide_speeds
from coli.engine.budget import Demand, DeviceGroup, Traffic
from coli.engine.host_memory import HostMemory, decide_limit
from coli.engine.ledger import Item
from coli.errors import BudgetError

GIB = 1 << 30
SPEEDS = decide_speeds(8, device=True)
BASIS = [Item("runtime", "ram", 10)]


def items(context: int, chunk: int) -> list[Item]:
    return [
        Item("dense", "ram", 100),
        Item("KV", "ram", context // 16),
        Item("activations", "ram", chunk),
        Item("expert cache", "ram", 10, count=1000, minimum=2),
    ]


DEMAND = Demand(items, Traffic(dense_bytes=100, experts=2, expert_bytes=10))
GROUPS = (
    DeviceGroup("dense", "dense", tuple(Item(f"dense {n}", "vram", 25) for n in range(4))),
    DeviceGroup("bank", "bank", (Item("bank", "vram", 50),)),
    DeviceGroup("experts", "experts", (Item("experts", "vram", 10, count=1000, minimum=1),)),
)


def tier(name: str, limit: int) -> TierBudget:
    return TierBudget(name, None, None, 0, limit, "the test")


def test_the_cache_takes_what_is_left() -> None:
    # 10 + 100 + 1600 / 16 + 8 = 218; of the 1000 bytes 782 are left: 78 experts of 10.
    found = place(BASIS, DEMAND, Budgets(tier("ram", 1000)), SPEEDS, Choice(1600, 8))
    assert (found.chunk, found.cache.count, found.nbytes("ram")) == (8, 78, 998)


def test_a_prompt_is_cut_smaller_before_anything_is_refused() -> None:
    # 10 + 100 + 100 + 20 for two experts leave 20 of 250 for the chunk: 16.
    found = place(BASIS, DEMAND, Budgets(tier("ram", 250)), SPEEDS, Choice(1600, 128))
    assert found.chunk == 16
    with pytest.raises(BudgetError):
        place(BASIS, DEMAND, Budgets(tier("ram", 230)), SPEEDS, Choice(1600, 128))
    assert place(BASIS, DEMAND, Budgets(tier("ram", 231)), SPEEDS, Choice(1600, 128)).chunk == 1


def test_the_card_is_filled_in_order_and_what_does_not_fit_is_left_out() -> None:
    demand = replace(DEMAND, device=GROUPS)
    whole = Choice(1600, 8, ("dense", "bank", "experts"))
    for limit, expected in (
        (60, {"dense 0", "dense 1", "experts"}),
        (100, {"dense 0", "dense 1", "dense 2", "dense 3"}),
        (149, {"dense 0", "dense 1", "dense 2", "dense 3", "experts"}),
        (165, {"dense 0", "dense 1", "dense 2", "dense 3", "bank", "experts"}),
    ):
        found = place(BASIS, demand, Budgets(tier("ram", 1000), tier("vram", limit)), SPEEDS, whole)
        assert {grant.item.name for grant in found.of("vram")} == expected
        assert found.nbytes("vram") <= limit
    assert found.of("vram")[-1].count == 1


def test_without_a_context_the_longest_that_costs_next_to_nothing() -> None:
    budgets = Budgets(tier("ram", 20_000))
    plan = decide_plan(BASIS, DEMAND, budgets, SPEEDS, context=None, most_context=1 << 20, most_chunk=8)
    # A sixteenth of the RAM is 1250 bytes: 16384 tokens cost 1024 (992 more than the shortest), 32768 cost 2048.
    assert plan.best.choice.context == 16384
    assert plan.runner_up is not None
    assert plan.runner_up.choice.context == 32768
    asked = decide_plan(BASIS, DEMAND, budgets, SPEEDS, context=32768, most_context=1 << 20, most_chunk=8)
    assert asked.best.choice.context == 32768


def test_a_context_is_shorter_than_the_default_where_only_that_fits() -> None:
    # 10 + 100 + 2048 / 16 + 1 + 20 = 259; 4096 would need 387.
    plan = decide_plan(
        BASIS, DEMAND, Budgets(tier("ram", 300)), SPEEDS, context=None, most_context=1 << 20, most_chunk=8
    )
    assert plan.best.choice.context == 2048
    assert least_ram_bytes(BASIS, DEMAND) == 10 + 100 + 32 + 1 + 20


def test_what_binds_is_named() -> None:
    plan = decide_plan(
        BASIS, DEMAND, Budgets(tier("ram", 1000)), SPEEDS, context=1600, most_context=1 << 20, most_chunk=8
    )
    assert plan.binds.startswith("RAM: 78 of 1000 experts fit")
    plan = decide_plan(
        BASIS, DEMAND, Budgets(tier("ram", 99_000)), SPEEDS, context=1600, most_context=1 << 20, most_chunk=8
    )
    assert plan.binds.startswith("nothing of the memory")


def test_more_memory_and_disks_are_never_slower() -> None:
    demand = replace(DEMAND, device=GROUPS)
    plan = decide_plan(
        BASIS,
        demand,
        Budgets(tier("ram", 1000), tier("vram", 60)),
        SPEEDS,
        context=1600,
        most_context=1 << 20,
        most_chunk=8,
    )
    found = changes(plan, BASIS, demand, SPEEDS, threads=8)
    assert [change.what.split(",")[0] for change in found] == [
        "16 GiB more RAM",
        "a second drive like the first",
        "a card of 24 GiB",
    ]
    assert all(change.forecast.low >= plan.best.forecast.low for change in found)


def memory(total: int, available: int) -> HostMemory:
    return HostMemory(Fact.of(total, "a test"), Fact.of(available, "a test"))


@pytest.mark.parametrize(("windows", "reserve_mib"), [(False, 1024), (True, 1536)])
def test_a_card_is_planned_from_what_is_free_less_context_and_reserve(windows: bool, reserve_mib: int) -> None:
    card = Device("a card", 16303 << 20, 12621 << 20, windows=windows)
    budgets = decide_budgets(memory(64 * GIB, 60 * GIB), card)
    assert budgets.vram is not None
    assert budgets.vram.limit_bytes == (12621 - 512 - reserve_mib) << 20
    asked = decide_budgets(memory(64 * GIB, 60 * GIB), card, vram=16 * GIB)
    assert asked.vram is not None
    assert asked.vram.limit_bytes == (12621 - 512) << 20
    assert "--vram leaves 0B of a card free" in asked.notes[0]


def test_a_full_card_gets_nothing() -> None:
    budgets = decide_budgets(memory(64 * GIB, 60 * GIB), Device("a card", 8 * GIB, 300 << 20))
    assert budgets.vram is not None
    assert budgets.vram.limit_bytes == 0
    unknown = decide_budgets(memory(64 * GIB, 60 * GIB), Device("a card", 8 * GIB, None))
    assert unknown.vram is not None
    assert unknown.vram.limit_bytes == 0


def test_a_unified_memory_is_given_out_once() -> None:
    # The machine of a report: 109 GiB available, the driver's own number is 6.9 GiB.
    available = 114294784 << 10
    host = memory(127535300 << 10, available)
    budgets = decide_budgets(host, Device("GB10", None, 7408000000, unified=True), vram=50 * GIB)
    assert budgets.vram is None
    assert budgets.limits() == {"ram": budgets.pool_bytes, "vram": 0}
    assert budgets.pool_bytes is not None
    assert 100 * GIB < budgets.pool_bytes < available
    assert "nothing is copied" in budgets.notes[0]


def test_ram_that_is_not_free_any_more_is_not_planned() -> None:
    budgets = decide_budgets(memory(64 * GIB, 10 * GIB), ram=40 * GIB)
    assert budgets.ram.limit_bytes == 10 * GIB - 4 * GIB
    assert "--ram 40GiB" in budgets.notes[0]


def test_a_run_takes_what_is_there_and_says_so() -> None:
    assert decide_limit("40GiB", memory(64 * GIB, 50 * GIB), GIB) == (40 * GIB, ())
    limit, notes = decide_limit("40GiB", memory(64 * GIB, 10 * GIB), GIB)
    assert limit == 10 * GIB + GIB - 4 * GIB
    assert "--ram 40GiB is not free now: 7GiB is used" in notes[0]
    assert decide_limit(5 * GIB, HostMemory(), 0) == (5 * GIB, ())
