"""The first lines of a report: whether a GPU is used, and whether the model can run."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from coli.backends.trace import GATES, Candidate, CandidateTrace, Trace, ok
from coli.cli import main
from coli.doctor.checks.graph import choose_checks, run_checks
from coli.doctor.checks.table import CHECKS
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.report.document import Report
from coli.doctor.report.text import render_text
from coli.doctor.report.verdict import decide_verdicts

from ..checks.test_broken_machines import SMI
from ..machines import CASES, Machine
from ..replayed import doctor, lay_out

NOWHERE = "(no backend was opened)"


def verdicts(facts: MachineFacts, *only: str) -> dict[str, str]:
    report = Report(run_checks(choose_checks(CHECKS, only, model=facts.model is not None), facts), facts)
    return {one.subject: one.text for one in decide_verdicts(report)}


@pytest.mark.parametrize(
    ("name", "head", "gpu"),
    [
        ("docker-no-gpus", "1 warning, 1 thing worth knowing", "not used: no driver in this container: 1 NVIDIA card"),
        ("mismatch-after-upgrade", "1 problem", "not used: the driver was upgraded"),
        ("mixed-3090-1080ti", "nothing failed, 1 thing worth knowing", "could be used, .*: NVIDIA GeForce RTX 3090 "),
        ("visible-wrong", "1 problem", "not used: CUDA_VISIBLE_DEVICES='3' names no GPU"),
        ("visible-empty", "nothing failed, 1 thing worth knowing", "not used: CUDA_VISIBLE_DEVICES='' hides every GPU"),
        ("kubernetes-v1-hybrid", "nothing failed, 3 things worth knowing", "not used: no driver in this container"),
        ("stubs-in-library-path", "1 warning", "could be used, .*: NVIDIA GeForce RTX 3080 "),
        ("visible-fastest-first", "1 warning", "not used: CUDA_DEVICE_ORDER is set"),
        ("wsl2-no-gpu", "nothing failed, 1 thing worth knowing", "not used: no driver reaches WSL"),
        ("ampere-altra", "nothing is wrong", "none: no NVIDIA driver and no NVIDIA card"),
    ],
)
def test_what_a_machine_comes_to(name: str, head: str, gpu: str, tmp_path: Path) -> None:
    code, out, errors = doctor(lay_out(name, tmp_path / "root"))
    lines = out.splitlines()
    assert (lines[0], errors) == (head, "")
    assert re.match(f"GPU: {gpu}", lines[1]), lines[1]
    assert code == (1 if "problem" in head else 0)
    assert [line for line in lines if len(line) > 100 and " $ " not in line] == []
    if "worth knowing" in head:
        assert lines.index("Worth knowing") < lines.index("System")
    # The last line counts what stands above it.
    rows = [found[1] for line in lines[lines.index("System") :] if (found := re.match("  ([✓•·▲✗])", line))]
    words = {"✓": "ok", "•": "to note", "▲": "warned", "✗": "failed", "·": "not judged"}
    counted = ", ".join(f"{rows.count(symbol)} {word}" for symbol, word in words.items() if symbol in rows)
    assert lines[-2].startswith(f"{counted} (of ") or lines[-1].startswith(f"{counted} (of ")


def test_a_gpu_that_serves_and_one_that_was_not_asked_about(tmp_path: Path) -> None:
    facts = Machine(tmp_path).smi(SMI).file("usr/lib/x86_64-linux-gnu/libcuda.so.1", "").facts()
    fine = tuple(ok(gate, "fine") for gate in GATES)
    cuda = CandidateTrace(Candidate(Path("/data/libcoli_cuda.so"), "cuda", "user data"), fine, kind="cuda")
    trace = Trace("x86_64, portable", None, (), (cuda,), 0, "best", (0,))
    assert verdicts(replace(facts, backends=trace))["GPU"].startswith("used, ")
    cpu = CandidateTrace(Candidate(Path("/lib/libcoli_cpu.so"), "cpu-portable", "package"), fine, kind="cpu")
    idle = Trace("x86_64, portable", None, (), (cpu,), 0, "best", (0,))
    found = verdicts(replace(facts, backends=idle))["GPU"]
    assert found == "not used: NVIDIA GeForce RTX 3080 could be used, and no CUDA backend is installed"
    assert verdicts(facts)["GPU"].endswith(NOWHERE)
    assert verdicts(facts, "memory") == {}


def test_a_model_that_cannot_run_says_the_reason_that_no_download_mends(tmp_path: Path) -> None:
    shutil.copytree(CASES / "A-W02", tmp_path / "models/x")
    found = verdicts(Machine(tmp_path).facts(Path("/models/x")), "checkpoint")
    assert found == {"model": "cannot run: config.json: OLMoE is known, but has no engine here (and 2 more, below)"}


def test_a_model_that_can_run_says_how_fast_as_its_budget_does(
    oracle_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(oracle_path), "--only", "budget.ram"]) == 0
    lines = capsys.readouterr().out.splitlines()
    verdict = next(line for line in lines if line.startswith("model: "))
    found = re.fullmatch(r"model: can run, (\S+ to \S+) tokens/s, a guess", verdict)
    assert found is not None, verdict
    assert f"{found[1]} tokens/s, a guess" in " ".join(" ".join(lines).split()).replace(verdict, "")


def test_a_model_that_nobody_looked_into_is_not_known(tmp_path: Path) -> None:
    facts = replace(MachineFacts(), model="/models/x")
    report = Report(run_checks(choose_checks(CHECKS, ("budget",), ("checkpoint",)), facts), facts)
    assert [one.text for one in decide_verdicts(report)] == ["not known whether it can run: nothing looked at a model"]
    shown = ["".join(text for text, _ in line) for line in render_text(report, 80)]
    of = len(report.rows)
    assert shown[:2] == [
        f"too little is known: 0 of {of} checks",
        "model: not known whether it can run: nothing looked at a model",
    ]
