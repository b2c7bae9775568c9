"""What a plan and an audit say."""

from __future__ import annotations

from typing import Any

import pytest

from coli.doctor.plan.audit import audit_rows
from coli.doctor.plan.budgets import Budgets, TierBudget
from coli.doctor.plan.core import decide_plan
from coli.doctor.plan.report import Kept, Report, bar, describe_kept, plan_document
from coli.doctor.plan.sensitivity import changes
from coli.doctor.plan.speeds import decide_speeds
from coli.engine.budget import Demand, DeviceGroup, Traffic
from coli.engine.ledger import Item
from coli.engine.run_record import Decoded, RunRecord

MIB = 1 << 20


def report() -> Report:
    groups = (DeviceGroup("dense weights", "dense", tuple(Item(f"copy {n}", "vram", 25) for n in range(4))),)
    demand = Demand(
        lambda context, chunk: [Item("dense", "ram", 100), Item("expert cache", "ram", 10, count=50, minimum=1)],
        Traffic(100, 2, 10),
        groups,
    )
    tiers = TierBudget("ram", 1000, 700, 300, 400, "a test", "others"), TierBudget("vram", 90, 80, 5, 75, "a test")
    budgets = Budgets(*tiers, notes=("a note",))
    basis, speeds = [Item("runtime", "ram", 50)], decide_speeds(2, device=True)
    plan = decide_plan(basis, demand, budgets, speeds, context=512, most_context=1024, most_chunk=8)
    return Report(
        model="/m",
        family="f",
        machine="here",
        threads=2,
        backend="cpu",
        device="a card",
        plan=plan,
        demand=demand,
        kept=(Kept("--ctx", "512", "--ctx"), Kept("--ram", "400B", "COLI_RAM")),
        argv=("coli", "run"),
        environment={},
        changes=changes(plan, basis, demand, speeds, threads=2),
        notes=("another",),
    )


def test_the_document_adds_up() -> None:
    found = plan_document(report())
    ram, vram = found["tiers"]
    # 50 + 100 of 400 leave 25 experts of 10; the card takes three of the four copies, which are one row.
    assert ram["items"] == [
        {"name": "runtime", "count": 1, "of": 1, "bytes": 50},
        {"name": "dense", "count": 1, "of": 1, "bytes": 100},
        {"name": "expert cache", "count": 25, "of": 50, "bytes": 250},
    ]
    assert (ram["planned_bytes"], ram["others_bytes"]) == (400, 300)
    assert vram["items"] == [{"name": "dense weights", "count": 3, "of": 4, "bytes": 75}]
    assert found["nvme"] == {"experts": 25, "bytes": 250}
    assert found["notes"] == ["a note", "another"]
    assert found["runner_up"]["device"] == []


def test_a_bar_shows_every_item_and_what_is_free() -> None:
    tier: dict[str, Any] = {
        "limit_bytes": 100,
        "items": [{"name": "a", "bytes": 1}, {"name": "b", "bytes": 49}, {"name": "c", "bytes": 25}],
    }
    assert bar(tier, 20) == ("[ABBBBBBBBBCCCCC.....]", "A a, B b, C c")


def test_what_was_set_is_listed_with_its_origin() -> None:
    assert describe_kept(report().kept) == "--ctx 512, --ram 400B (COLI_RAM)"
    assert describe_kept(()) == "nothing was set"


@pytest.mark.parametrize(
    ("planned", "measured", "verdict"),
    [
        (100, 108, "agrees"),
        (100, 109, "above"),
        (100, 91, "below"),
        (1000, 1020, "agrees"),
        (1000, 1021, "above"),
        (1000, 979, "below"),
    ],
)
def test_an_audit_allows_two_percent_or_eight_mib(planned: int, measured: int, verdict: str) -> None:
    record = RunRecord(
        model="/m",
        family="f",
        context=1,
        prefill_chunk=1,
        threads=1,
        io="buffered",
        peak_resident_bytes=measured * MIB,
        tiers={
            tier: {"limit_bytes": None, "reserved_bytes": peak, "peak_bytes": peak, "items": []}
            for tier, peak in (("ram", planned * MIB), ("vram", 7))
        },
        decoded=Decoded(),
        expert_slabs=1,
        experts=1,
        expert_hits=0,
        expert_misses=0,
    )
    ram, vram = audit_rows({"ram": planned * MIB, "vram": 7}, record)
    assert (ram.verdict, ram.difference_bytes) == (verdict, (measured - planned) * MIB)
    assert (vram.verdict, vram.measured_bytes) == ("agrees", None)
