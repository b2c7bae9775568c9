"""The one sequence: what an engine reserved is what a plan with its limits reserves."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

import coli
from coli.doctor.plan.budgets import Budgets, TierBudget
from coli.doctor.plan.core import Choice, place
from coli.doctor.plan.opened import open_subject
from coli.doctor.plan.speeds import decide_speeds
from coli.engine.run_record import Decoded, RunRecord, peak_resident_bytes, read_run_record, write_run_record


@pytest.mark.parametrize("ram", ["4GiB", "less", "least"])
def test_an_engine_reserves_what_the_plan_does(ram: str, oracle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coli.backends.candidates import default_search

    monkeypatch.setattr("coli.engine.model.resident_bytes", lambda: 64 << 20)
    monkeypatch.setattr("coli.doctor.plan.opened.resident_bytes", lambda: 64 << 20)
    with coli.open(oracle_path, threads=2, context=512, ram="4GiB") as model:
        memory = model.facts()["memory"]
    base = memory["ram_reserved_bytes"] - memory["items"][-1]["bytes"]
    limit = {"4GiB": 4 << 30, "less": base + (1 << 20), "least": base + (100 << 10)}[ram]
    with coli.open(oracle_path, threads=2, context=512, ram=limit) as model:
        facts = model.facts()
    subject = open_subject(oracle_path, search=default_search(), plugins=None).subject
    budgets = Budgets(TierBudget("ram", None, None, 0, limit, "the test"))
    basis = subject.basis(2, facts["io"], None, limit)
    placement = place(basis, subject.demand, budgets, decide_speeds(2), Choice(512, 128))
    planned = [{"name": g.item.name, "count": g.count, "bytes": g.nbytes} for g in placement.of("ram")]
    assert planned == facts["memory"]["items"]
    assert placement.chunk == facts["prefill_chunk"]


def test_the_plan_asks_nothing_of_numpy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, coli.doctor.plan.core, coli.doctor.plan.sensitivity, coli.families.deepseek_v4.demand\n"
        "assert 'numpy' not in sys.modules and 'coli.backends._host' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def record(model: Path, **changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        "model": str(model),
        "family": "f",
        "context": 4096,
        "prefill_chunk": 128,
        "threads": 2,
        "io": "buffered",
        "peak_resident_bytes": 1000,
        "tiers": {"ram": {"limit_bytes": 1000, "reserved_bytes": 900, "peak_bytes": 900, "items": []}},
        "decoded": Decoded(3, 2, 0.5),
        "expert_slabs": 1,
        "experts": 2,
        "expert_hits": 3,
        "expert_misses": 4,
    }
    return RunRecord(**(values | changes))


def test_a_record_is_read_back_and_others_are_not(tmp_path: Path) -> None:
    first, second = record(tmp_path / "a"), record(tmp_path / "b", context=8)
    write_run_record(tmp_path / "runs", first)
    write_run_record(tmp_path / "runs", second)
    assert read_run_record(tmp_path / "runs", tmp_path / "a") == first
    assert read_run_record(tmp_path / "runs", tmp_path / "b") == second
    assert read_run_record(tmp_path / "runs", tmp_path / "c") is None
    for file in (tmp_path / "runs").iterdir():
        file.write_bytes(file.read_bytes()[:-7])
    assert read_run_record(tmp_path / "runs", tmp_path / "a") is None
    # Nobody's answer fails because its record cannot be kept.
    (tmp_path / "file").touch()
    write_run_record(tmp_path / "file", first)


def test_decode_counts_single_tokens_that_follow_others() -> None:
    found = Decoded().plus(5, 0, 1.0).plus(1, 5, 0.25).plus(1, 6, 0.25).plus(1, 0, 9.0)
    assert found == Decoded(4, 2, 0.5)


def _peak(megabytes: int, queue: Any) -> None:
    block = bytearray(megabytes << 20)
    del block
    queue.put(peak_resident_bytes())


def test_the_peak_counts_what_is_given_back() -> None:
    context = multiprocessing.get_context("spawn")
    peaks = []
    for megabytes in (1, 200):
        queue = context.Queue()
        child = context.Process(target=_peak, args=(megabytes, queue))
        child.start()
        peaks.append(queue.get(timeout=60))
        child.join(60)
    assert 190 << 20 < peaks[1] - peaks[0] < 210 << 20


@pytest.mark.parametrize("mib", [0, 1, 2, 4, 4096])
def test_copies_for_a_device_are_those_of_the_plan(mib: int, oracle_path: Path) -> None:
    from coli.engine.budget import fill
    from coli.engine.checkpoint import Checkpoint
    from coli.engine.ledger import Ledger
    from coli.families.deepseek_v4.budget import reserve_mirrors
    from coli.families.deepseek_v4.config import Geometry
    from coli.families.deepseek_v4.demand import demand

    with Checkpoint.open(oracle_path) as checkpoint:
        sizes = {name.removeprefix("model."): info.nbytes for name, info in checkpoint.tensors.items()}
        config = checkpoint.config
    engine, plan = Ledger({"vram": mib << 20}), Ledger({"vram": mib << 20})
    granted = reserve_mirrors(Geometry.from_config(config), sizes, engine)
    for group in demand(config, sizes, "config.json").device:
        fill(plan, group.items)
    assert plan.grants() == tuple(granted.values())
    assert bool(granted) == (mib > 0)


def test_more_ram_than_there_is_is_cut_and_said(oracle_path: Path) -> None:
    with coli.open(oracle_path, threads=1, context=64, ram="1000TiB") as model:
        facts = model.facts()
    assert facts["memory"]["ram_limit_bytes"] < 1000 << 40
    assert "--ram 1000TiB is not free now" in facts["notes"][0]
    with coli.open(oracle_path, threads=1, context=64, ram="1GiB") as model:
        assert model.facts()["notes"] == []
