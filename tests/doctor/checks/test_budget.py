"""The section Budget: what the owner of a machine is told about Flash, and that `coli plan` says the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from engine.sparse_flash import write_sparse_flash

from coli.backends.devices import DeviceFacts, Driver, Fact, Gpu, Memory
from coli.backends.trace import Trace
from coli.doctor.checks import budget
from coli.doctor.checks.finding import Finding
from coli.doctor.checks.graph import run_checks
from coli.doctor.facts.checkpoint import CheckpointFacts, probe_checkpoint
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.facts.settings import RunOptions, SettingsFacts
from coli.doctor.plan.machine import machine_of
from coli.doctor.plan.of_facts import plan_facts
from coli.doctor.record.changes import change_facts
from coli.doctor.record.machine_file import read_machine, write_machine
from coli.doctor.record.raw import RawFacts
from coli.doctor.report.document import Report
from coli.doctor.report.html import memory_bars, render_html
from coli.engine.run_record import Decoded, RunRecord

GIB = 1 << 30
PUBLISHED = Path(__file__).parents[2] / "machines" / "published"


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> CheckpointFacts:
    """What is known of Flash, from its headers."""
    folder = tmp_path_factory.mktemp("flash")
    write_sparse_flash(folder)
    return probe_checkpoint(folder)


def machine(flash: CheckpointFacts, *changes: str, options: RunOptions | None = None) -> MachineFacts:
    """A desktop of 62 GB without a card, changed."""
    facts = read_machine(PUBLISHED / "3900x-cpu-62gb.json")
    facts = replace(facts, checkpoint=flash, model="/model", settings=SettingsFacts(run=options or RunOptions()))
    return change_facts(facts, changes)


def findings(facts: MachineFacts) -> dict[str, Finding]:
    rows = run_checks(budget.CHECKS, facts)
    return {finding.code: finding for row in rows for finding in row.findings}


def test_it_fits(flash: CheckpointFacts) -> None:
    found = findings(machine(flash))
    assert {code: one.status for code, one in found.items()} == {
        "budget.fits": "ok",
        "budget.no-gpu": "skip",
        "budget.no-run": "skip",
    }
    # 58 GiB are available, less a sixteenth of 62 GiB.
    assert "of 54.1GiB RAM hold" in found["budget.fits"].summary
    assert "of 11008 experts" in found["budget.fits"].summary
    assert "`coli plan /model` shows all" in found["budget.fits"].summary


@pytest.mark.parametrize(
    ("changes", "options", "code", "status", "command"),
    [
        (("ram.total=8GiB",), {}, "budget.too-small", "fail", None),
        (("ram.total=10GiB",), {}, "budget.tight", "warn", None),
        (("ram.total=9320MiB",), {}, "budget.context", "warn", "coli run /model --ctx "),
        ((), {"context": 1 << 21}, "usage.context", "fail", None),
        ((), {"ram_bytes": 4 * GIB}, "budget.too-small", "fail", "coli run /model --ram 87"),
    ],
)
def test_it_does_not_fit_or_hardly(
    flash: CheckpointFacts,
    changes: tuple[str, ...],
    options: dict[str, int],
    code: str,
    status: str,
    command: str | None,
) -> None:
    facts = machine(flash, *changes, options=replace(RunOptions(), **options))
    found = findings(facts)
    assert found[code].status == status
    if command is not None:
        assert found[code].commands[0].startswith(command)


def card(free_gib: float, total_gib: float = 10) -> DeviceFacts:
    total, free = int(total_gib * GIB), int(free_gib * GIB)
    memory = Memory(
        Fact.of("dedicated", "test"), Fact.of(total, "test"), Fact.of(free, "test"), Fact.of(total - free, "test")
    )
    gpu = Gpu(0, Fact.of("RTX 3080", "test"), capability=Fact.of((8, 6), "test"), memory=memory)
    return DeviceFacts("linux", False, Driver("ok", "test"), (gpu,))


def test_a_card_of_its_own(flash: CheckpointFacts) -> None:
    found = findings(replace(machine(flash), devices=card(9.7)))
    # 553 products of the layers and the head: docs/plan.md has the same bytes.
    assert found["budget.gpu"].summary == ("RTX 3080: 7.1GiB of 8.2GiB VRAM hold all of 554 weights, 7.1GiB of 7.1GiB")
    assert "budget.gpu-taken" not in found


def test_a_card_that_others_use(flash: CheckpointFacts) -> None:
    found = findings(replace(machine(flash), devices=card(4.0)))
    assert "2.5GiB of 2.5GiB VRAM hold" in found["budget.gpu"].summary
    assert found["budget.gpu-taken"].status == "warn"
    assert found["budget.gpu-taken"].summary == "others hold 6GiB of RTX 3080's 10GiB"
    assert found["budget.gpu-taken"].commands == ("nvidia-smi",)


def test_a_card_that_may_not_be_used(flash: CheckpointFacts) -> None:
    facts = machine(flash, options=RunOptions(vram_bytes=0))
    found = findings(replace(facts, devices=card(9.7)))
    assert found["budget.gpu-idle"].status == "warn"
    assert found["budget.gpu-idle"].fix == "leave --vram and COLI_VRAM unset"


def test_one_memory_is_planned_once(flash: CheckpointFacts) -> None:
    devices = card(9.7)
    memory = replace(devices.gpus[0].memory, kind=Fact.of("unified", "test"))
    devices = replace(devices, gpus=(replace(devices.gpus[0], memory=memory),))
    assert "budget.unified" in findings(replace(machine(flash), devices=devices))


def test_what_is_not_known_is_not_judged(flash: CheckpointFacts) -> None:
    facts = machine(flash)
    for less in (
        replace(facts, memory=None),
        replace(facts, checkpoint=replace(flash, tensor_bytes=Fact.unknown("2 of 46 files"))),
        replace(facts, checkpoint=None),
    ):
        assert {one.status for one in findings(less).values()} == {"skip"}
    text = findings(replace(facts, checkpoint=replace(flash, tensor_bytes=Fact.unknown("2 of 46 files"))))
    assert text["budget.not-known"].evidence[0].text == "the sizes of its tensors are not known (2 of 46 files)"


def last_run(facts: MachineFacts, more_bytes: int) -> RunRecord:
    """A run that took what its plan says and ``more_bytes``."""
    planned = plan_facts(facts).planned
    assert planned is not None
    best = planned.plan.best
    held = best.nbytes("ram")
    items = [{"name": one.item.name, "count": one.count, "bytes": one.nbytes} for one in best.of("ram")]
    limit = planned.plan.budgets.ram.limit_bytes
    ram = {"limit_bytes": limit, "reserved_bytes": held, "peak_bytes": held, "items": items}
    return RunRecord(
        model="/model",
        family="deepseek_v4",
        context=best.choice.context,
        prefill_chunk=best.chunk,
        threads=planned.machine.threads,
        io="direct",
        peak_resident_bytes=held + more_bytes,
        tiers={"ram": ram},
        decoded=Decoded(10, 9, 9.0),
        expert_slabs=best.cache.count,
        experts=best.cache.item.count,
        expert_hits=1,
        expert_misses=99,
    )


@pytest.mark.parametrize(("more", "code", "status"), [(0, "budget.agrees", "ok"), (2 * GIB, "budget.differs", "warn")])
def test_the_last_run_is_compared_with_its_plan(flash: CheckpointFacts, more: int, code: str, status: str) -> None:
    facts = machine(flash)
    found = findings(replace(facts, last_run=last_run(facts, more)))
    assert found[code].status == status
    assert "budget.no-run" not in found


def test_a_record_of_a_machine_with_a_model_is_planned_elsewhere(flash: CheckpointFacts, tmp_path: Path) -> None:
    facts = replace(machine(flash), devices=card(9.7))
    write_machine(tmp_path / "machine.json", facts, RawFacts(), {})
    again = read_machine(tmp_path / "machine.json")
    assert {code: one.summary for code, one in findings(again).items()} == {
        code: one.summary for code, one in findings(facts).items()
    }
    assert json.loads((tmp_path / "machine.json").read_text("utf-8"))["facts"]["here"] is False


def test_the_picture_shows_the_tiers_of_the_plan(flash: CheckpointFacts) -> None:
    facts = replace(machine(flash), devices=card(9.7))
    planned = plan_facts(facts).planned
    assert planned is not None
    ram, vram, *_ = memory_bars(facts, planned)
    assert (ram.name, ram.nbytes) == ("RAM", 62 * GIB)
    assert (vram.name, vram.nbytes) == ("RTX 3080", 10 * GIB)
    parts = {part.name: part.nbytes for part in ram.parts}
    cache = planned.plan.best.cache
    assert parts["expert cache"] == cache.nbytes == cache.count * 13_369_344
    assert "expert cache" in render_html(Report((), facts, planned=planned))


def test_the_device_is_the_one_that_the_loader_took(flash: CheckpointFacts) -> None:
    facts = replace(machine(flash), devices=card(9.7))
    assert machine_of(facts).device is not None
    assert machine_of(facts, gpu="none").device is None
    # A loader that found no CUDA library leaves the card alone, whatever it is.
    nothing = Trace("x86_64", None, (), (), None, "no library", ())
    assert machine_of(replace(facts, backends=nothing)).device is None
    assert machine_of(replace(facts, backends=nothing), gpu="0").device is None
