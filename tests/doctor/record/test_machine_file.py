"""A machine in a file: recorded here, examined anywhere, changed by --set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coli.backends.devices import Fact, Holder
from coli.cli import main
from coli.doctor.checks.graph import choose_checks, run_checks
from coli.doctor.checks.table import CHECKS
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.record.changes import KEYS, change_facts
from coli.doctor.record.machine_file import read_machine, write_machine
from coli.doctor.record.plain import from_plain, to_plain
from coli.doctor.record.raw import RawFacts, Recorder
from coli.doctor.report.document import Report, to_document
from coli.errors import UsageError

from ..checks.test_broken_machines import SMI
from ..machines import Machine, case_facts

GIB = 1 << 30


@pytest.mark.parametrize("case", ["A-D02", "A-D03", "A-D11", "A-D15", "A-T02", "A-T08"])
def test_facts_come_back_as_they_were(case: str, tmp_path: Path) -> None:
    facts = case_facts(case, tmp_path)
    assert from_plain(json.loads(json.dumps(to_plain(facts))), MachineFacts) == facts


def test_facts_of_a_checkpoint_come_back(tmp_path: Path, oracle_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/x").symlink_to(oracle_path)
    facts = Machine(tmp_path).facts(Path("/models/x"))
    assert facts.checkpoint is not None and facts.checkpoint.shards
    assert facts.stages is not None and "matmul_fp8" in facts.stages
    assert from_plain(json.loads(json.dumps(to_plain(facts))), MachineFacts) == facts


def test_a_record_gives_the_same_findings_elsewhere(tmp_path: Path) -> None:
    facts = case_facts("A-D11", tmp_path / "root")
    write_machine(tmp_path / "machine.json", facts, RawFacts(), {})
    again = read_machine(tmp_path / "machine.json")
    checks = choose_checks(CHECKS, model=False)
    one, other = (to_document(Report(run_checks(checks, each), each))["checks"] for each in (facts, again))
    assert json.dumps(one).replace("GPU-5f3e0000-1a2b-4c3d-9e8f-000000abc000", "GPU-<uuid-1>") == json.dumps(other)


def test_a_recorder_keeps_the_files_that_were_opened_and_what_tools_said(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "root").smi(SMI).file("home/user/notes", "private").file("proc/self/environ", "A=B")
    with Recorder(machine.root) as recorder:
        machine.facts()
        (machine.root / "home/user/notes").read_text("utf-8")
        (machine.root / "proc/self/environ").read_text("utf-8")
    (machine.root / "proc/cpuinfo").read_text("utf-8")
    raw = recorder.raw()
    files = {file.path: file.text for file in raw.files}
    assert files["/proc/meminfo"].startswith("MemTotal:       32768000 kB\n")
    assert "/etc/os-release" in files
    assert "/home/user/notes" not in files
    assert "/proc/self/environ" not in files
    said = {tool.command: tool.output for tool in raw.tools}
    assert any("NVIDIA GeForce RTX 3080" in output for output in said.values())
    assert all(command[0] == "/usr/bin/nvidia-smi" for command in said)


def test_nothing_is_noted_without_a_recorder(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        pass
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/x").write_text("x")
    assert recorder.raw() == RawFacts()


def test_record_and_machine_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path / "root")
    file = tmp_path / "machine.json"
    assert main(["doctor", "--root", str(machine.root), "--record", str(file), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["doctor", "--machine", str(file), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in first["checks"]] == [row["status"] for row in again["checks"]]
    record = json.loads(file.read_text("utf-8"))
    assert record["schema"] == "coli.machine/1"
    assert "/proc/meminfo" in [entry["path"] for entry in record["raw"]["files"]]


def test_json_of_a_record_is_the_same_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "machine.json"
    write_machine(file, Machine(tmp_path / "root").facts(), RawFacts(), {})
    outputs = []
    for _ in range(2):
        assert main(["doctor", "--machine", str(file), "--json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]  # nothing was probed: there are no times


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": "coli.machine/2", "facts": {}}',
        '{"schema": "coli.machine/1"}',
        '{"schema": "coli.machine/1", "facts": {"system": 5}}',
        "[" * 100000,
        "\x00" * 10,
    ],
)
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "m").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_machine(tmp_path / "m")
    assert caught.value.code == "usage.machine-file"


def test_a_record_names_where_it_is_wrong(tmp_path: Path) -> None:
    document = {"schema": "coli.machine/1", "facts": {"cpu": {"machine": "x86_64", "level": 3, "levels": []}}}
    (tmp_path / "m").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_machine(tmp_path / "m")
    assert "$.cpu.level" in str(caught.value.observed)


@pytest.mark.parametrize("option", [["--root", "/x"], ["--record", "x"], ["--deep"], ["model"]])
def test_a_record_takes_nothing_that_needs_the_machine(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--machine", str(tmp_path / "m"), *option]) == 2
    assert "takes no" in capsys.readouterr().err


def changed(tmp_path: Path, *changes: str) -> MachineFacts:
    return change_facts(Machine(tmp_path).smi(SMI).facts(fields=("devices", "memory", "cpu", "settings")), changes)


def test_a_card_is_changed_and_another_is_added(tmp_path: Path) -> None:
    facts = changed(
        tmp_path, "gpu.0.vram=6GiB", "gpu.1.name=RTX 5090", "gpu.1.vram=32GiB", "gpu.1.free=30", "gpu.1.capability=12.0"
    )
    assert facts.devices is not None
    first, second = facts.devices.gpus
    assert (first.memory.total_bytes.value, first.memory.free_bytes.value) == (6 * GIB, 6 * GIB)
    assert (second.name.value, str(second.capability.value)) == ("RTX 5090", "12.0")
    assert (second.memory.total_bytes.value, second.memory.free_bytes.value) == (32 * GIB, 30 * GIB)
    assert second.memory.free_bytes.source == "--set"


def test_a_first_card_comes_with_a_driver(tmp_path: Path) -> None:
    facts = change_facts(Machine(tmp_path).facts(fields=("devices",)), ["gpu.0.vram=10GiB", "gpu.0.capability=8.6"])
    assert facts.devices is not None
    assert (facts.devices.driver.state, len(facts.devices.gpus)) == ("ok", 1)


def test_memory_and_cores(tmp_path: Path) -> None:
    facts = changed(tmp_path, "ram.total=64GiB", "ram.available=60GiB", "cpu.cores=12", "cpu.level=x86-64-v4")
    assert facts.memory is not None and facts.cpu is not None
    assert facts.memory.host.total_bytes.value == 64 * GIB
    # A sixteenth of the machine is left alone: 64 / 16 = 4 GiB.
    assert facts.memory.budget_bytes.value == 56 * GIB + (facts.memory.resident_bytes.value or 0)
    assert (facts.cpu.threads.value, facts.cpu.levels) == (12, ("x86-64-v4", "x86-64-v3", "portable"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("gpu.0.vran=1GiB", "did you mean gpu.N.vram?"),
        ("ram.totl=1GiB", "did you mean ram.total?"),
        ("gpu.0.vram", "is not KEY=VALUE"),
        ("gpu.0.vram=", "is not KEY=VALUE"),
        ("gpu.5.vram=1GiB", "gpu.0 to gpu.1"),
        ("gpu.0.vram=lots", "is not a size"),
        ("gpu.0.capability=eight", "is not a compute capability"),
        ("cpu.cores=0", "is not a number of cores"),
        ("cpu.level=v9", "is not a level"),
        ("driver.state=broken", "is not a state"),
        ("driver.cuda=x", "is not a version"),
        ("model.disk=floppy", "is not a kind of disk"),
        ("model.disk=nvme", "changes what was not looked at"),
        ("nonsense=1", "is not a fact that can be set"),
    ],
)
def test_bad_changes_are_refused(change: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        changed(tmp_path, change)
    assert words in caught.value.text()
    assert caught.value.exit_code == 2


def test_every_key_can_be_set(tmp_path: Path, oracle_path: Path) -> None:
    values: dict[str, Any] = {
        "gpu.N.vram": "8GiB",
        "gpu.N.free": "7GiB",
        "gpu.N.capability": "8.9",
        "gpu.N.name": "X",
        "ram.total": "32GiB",
        "ram.available": "30GiB",
        "cpu.cores": "8",
        "cpu.level": "portable",
        "driver.state": "mismatch",
        "driver.version": "550.54",
        "driver.cuda": "12.4",
        "model.disk": "hdd",
    }
    assert set(values) == set(KEYS)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/x").symlink_to(oracle_path)
    facts = Machine(tmp_path).smi(SMI).facts(Path("/models/x"))
    for key, value in values.items():
        assert change_facts(facts, [f"{key.replace('N', '0')}={value}"]) != facts, key


def test_names_of_programs_are_not_in_a_record(tmp_path: Path) -> None:
    facts = Machine(tmp_path / "root").smi(SMI).facts()
    assert facts.devices is not None
    gpu = replace(facts.devices.gpus[0], holders=(Holder(1, Fact.of("/opt/secret-project/train", "test")),))
    facts = replace(facts, devices=replace(facts.devices, gpus=(gpu,)))
    write_machine(tmp_path / "machine.json", facts, RawFacts(), {})
    assert "secret-project" not in (tmp_path / "machine.json").read_text("utf-8")
    again = read_machine(tmp_path / "machine.json")
    assert again.devices is not None and again.devices.gpus[0].holders[0].name.value == "<process-1>"
