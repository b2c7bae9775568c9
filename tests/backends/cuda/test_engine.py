"""A whole model with a CUDA backend before the CPU: through the real loader, on a machine whose driver is played."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_machine import make_machine
from fatbin_writer import fatbin
from stubs import write_manifest

import coli
from coli.backends.candidates import Search
from coli.backends.dispatch import Dispatcher, Fallback, StageError, Weight
from coli.backends.loader import survey
from coli.doctor.checks import budget
from coli.doctor.checks.gpu import gpu_check
from coli.doctor.checks.graph import run_checks
from coli.doctor.facts.checkpoint import probe_checkpoint
from coli.doctor.facts.cpu import probe_cpu
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.facts.memory import probe_memory
from coli.doctor.facts.settings import RunOptions, SettingsFacts
from coli.doctor.plan.budgets import Budgets, TierBudget
from coli.doctor.plan.core import Choice, place
from coli.doctor.plan.machine import machine_of
from coli.doctor.plan.of_facts import stages_of
from coli.doctor.plan.opened import open_subject
from coli.doctor.report.document import Report
from coli.errors import BackendRefused
from coli.families.registry import Registry

SERVED = {"matmul_bf16", "matmul_fp8", "matmul_fp4"}
RTX_3080 = "8.6,10240,0,1,NVIDIA GeForce RTX 3080"


@pytest.fixture(autouse=True)
def _own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def cuda(shim_path: Path, fake_driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Search]:
    """A machine with one card and a library for it: the shim, with the section that says which code it would hold."""
    folder = tmp_path_factory.mktemp("cuda")
    section, library = folder / "fatbin.bin", folder / "libraries" / "libcoli_cuda.so"
    section.write_bytes(fatbin(["sm_80", "sm_86", "compute_80"]))
    library.parent.mkdir(mode=0o755)
    add = ["objcopy", "--add-section", f".nv_fatbin={section}", str(shim_path), str(library)]
    subprocess.run(add, check=True)
    library.chmod(0o644)
    write_manifest(library, name="cuda-shim", kind="cuda", toolkit="12.4", targets=["sm_80", "sm_86", "compute_80"])
    machine = make_machine(fake_driver, folder / "root", RTX_3080, parts=("libcuda.so.1",))
    yield Search(
        path=(library.parent,), cache_folder=folder / "answers", root=machine.root, environment=machine.environment
    )
    shutil.rmtree(folder / "answers", ignore_errors=True)


def test_the_answer_is_the_cpu_s(cuda: Search, oracle_path: Path) -> None:
    ids = [0, 5, 7, 11]
    with coli.open(oracle_path, threads=1, context=64) as model:
        want = model.logits(ids)
        every = {row["stage"] for row in model.stage_rows()}
    told: list[Fallback] = []
    with coli.open(oracle_path, threads=1, context=64, search=cuda, vram="32MiB", tell=told.append) as model:
        got = model.logits(ids)
        facts, rows = model.facts(), model.stage_rows()
    assert got.tobytes() == want.tobytes()
    assert facts["backend"]["name"] == "cuda" and facts["backend"]["device"] == "NVIDIA GeForce RTX 3080"
    assert set(facts["backend"]["chain"][0]["stages"]) == SERVED
    (upload,) = facts["memory"]["uploads"]
    assert upload["weights"] > 20 and 0 < upload["bytes"] <= facts["memory"]["vram_reserved_bytes"]
    by_backend = {stage: {row["backend"] for row in rows if row["stage"] == stage} for stage in every}
    cpu = facts["backend"]["chain"][1]["name"]
    assert by_backend == {stage: {"cuda"} if stage in SERVED else {cpu} for stage in every}
    assert told == []


@pytest.mark.parametrize("limit", [0, 100_000])
def test_what_does_not_fit_is_served_by_the_cpu(cuda: Search, oracle_path: Path, limit: int) -> None:
    ids = [0, 5]
    with coli.open(oracle_path, threads=1, context=64) as model:
        want = model.logits(ids)
    told: list[Fallback] = []
    with coli.open(oracle_path, threads=1, context=64, search=cuda, vram=limit, tell=told.append) as model:
        got, memory = model.logits(ids), model.facts()["memory"]
        rows = {(row["stage"], row["backend"]): row for row in model.stage_rows()}
    assert got.tobytes() == want.tobytes()
    assert memory["vram_reserved_bytes"] <= memory["vram_limit_bytes"] == limit
    assert bool(memory["uploads"][0]["weights"]) == bool(limit)
    reasons = {fallback.reason for fallback in told}
    assert reasons == {"the weight is not in the device's memory"}
    assert any(stage in SERVED and row["fallbacks"] for (stage, _), row in rows.items())


@pytest.mark.parametrize("limit", [0, 100_000, 32 << 20])
def test_a_plan_copies_what_the_engine_does(cuda: Search, oracle_path: Path, limit: int) -> None:
    with coli.open(oracle_path, threads=1, context=64, search=cuda, ram="1GiB", vram=limit) as model:
        memory = model.facts()["memory"]
    subject, loaded = open_subject(oracle_path, search=cuda, plugins=None)
    facts = MachineFacts(memory=probe_memory(), cpu=probe_cpu(), devices=loaded.trace.devices, backends=loaded.trace)
    machine = machine_of(facts, 1)
    assert machine.device is not None and machine.device.name == "NVIDIA GeForce RTX 3080"
    assert machine.device.total_bytes == 10240 << 20
    tiers = [TierBudget(name, None, None, 0, nbytes, "") for name, nbytes in (("ram", 1 << 30), ("vram", limit))]
    groups = tuple(group.name for group in subject.demand.device)
    basis = subject.basis(1, "buffered", None, 1 << 30, 0)
    placement = place(basis, subject.demand, Budgets(*tiers), machine.speeds, Choice(64, 128, groups))
    assert placement.nbytes("vram") == memory["vram_reserved_bytes"]
    names = [item["name"] for item in memory["items"]]
    assert [grant.item.name for grant in placement.of("ram")] == names


@pytest.mark.parametrize("limit", [0, 100_000, 32 << 20])
def test_the_doctor_predicts_where_a_run_computes(cuda: Search, oracle_path: Path, limit: int) -> None:
    """For each stage and backend, with all, some and none of the weights on the device."""
    ids = list(range(1, 40))
    with coli.open(oracle_path, threads=1, context=64, search=cuda, vram=limit) as model:
        model.logits(ids)
        ran = {(row["stage"], row["backend"]) for row in model.stage_rows()}
        held = model.facts()["memory"]["uploads"][0]["weights"]
    trace = survey(cuda)
    facts = MachineFacts(
        memory=probe_memory(),
        cpu=probe_cpu(),
        devices=trace.devices,
        backends=trace,
        checkpoint=probe_checkpoint(oracle_path),
        stages=Registry.load().get("deepseek_v4").descriptor.stages,
        settings=SettingsFacts(run=RunOptions(context=64, vram_bytes=limit, threads=1)),
    )
    predicted = stages_of(facts)
    assert {(row.stage, row.backend) for row in predicted} == ran
    on_device = [row for row in predicted if row.backend == "cuda"]
    assert sum(row.weights or 0 for row in on_device) == held
    report = Report(run_checks([*budget.CHECKS, gpu_check("0")], facts), facts, predicted)
    findings = {finding.code: finding for row in report.rows for finding in row.findings}
    assert ("budget.gpu" in findings, "budget.gpu-idle" in findings) == (held > 0, held == 0)
    assert "gpu.used" in findings
    # The reason stands beside each stage that the CPU serves though the library has it.
    assert all(
        "no room on NVIDIA GeForce RTX 3080" in row.why
        for row in predicted
        if row.stage in SERVED and row not in on_device
    )


def test_a_gpu_that_was_asked_for_and_is_not_there(cuda: Search, oracle_path: Path) -> None:
    with pytest.raises(BackendRefused) as refused:
        coli.open(oracle_path, search=Search(path=cuda.path, root=cuda.root, environment=cuda.environment, gpu="1"))
    assert (refused.value.code, refused.value.exit_code) == ("backend.gpu", 5)
    assert "names no device" in str(refused.value)
    none = Search(path=cuda.path, root=cuda.root, environment=cuda.environment, gpu="none")
    with coli.open(oracle_path, threads=1, context=64, search=none) as model:
        assert model.facts()["backend"]["device"] == "cpu" and np.isfinite(model.logits([1])).all()


def test_an_upload_that_fails_in_the_middle(cuda: Search, oracle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the card takes before it fails is used; the rest is the CPU's, and its share of the budget is given back."""
    ids = [0, 5, 7]
    with coli.open(oracle_path, threads=1, context=64) as model:
        want = model.logits(ids)
    upload, calls = Dispatcher.upload, []

    def fails_later(self: Dispatcher, weight: Weight) -> bool:
        calls.append(weight.name)
        return len(calls) <= 5 and upload(self, weight)

    monkeypatch.setattr(Dispatcher, "upload", fails_later)
    with coli.open(oracle_path, threads=1, context=64, search=cuda, vram="32MiB") as model:
        got, memory = model.logits(ids), model.facts()["memory"]
    assert got.tobytes() == want.tobytes()
    assert memory["uploads"][0]["weights"] == 5 < len(calls)
    assert memory["uploads"][0]["bytes"] <= memory["vram_reserved_bytes"] < 32 << 20


def test_a_weight_that_a_device_refuses_leaves_nothing_open(
    cuda: Search, oracle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def refuses(self: Dispatcher, weight: Weight) -> bool:
        calls.append(weight.name)
        if len(calls) == 5:
            raise StageError(weight.name, "its scale is not finite")
        return True

    monkeypatch.setattr(Dispatcher, "upload", refuses)
    for _ in range(2):
        calls.clear()
        threads, files = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(StageError):
            coli.open(oracle_path, threads=1, context=64, search=cuda, vram="32MiB", io="direct")
    assert threading.active_count() == threads
    assert len(list(Path("/proc/self/fd").iterdir())) == files


def test_two_models_on_one_device(cuda: Search, oracle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second has room for a few experts only: its slabs are filled again and again beside the device."""
    monkeypatch.setattr("coli.engine.model.resident_bytes", lambda: 64 << 20)
    ids = [0, 5, 7]
    with coli.open(oracle_path, threads=1, context=64) as model:
        want = model.logits(ids).tobytes()
    with coli.open(oracle_path, threads=1, context=64, search=cuda, vram="32MiB") as first:
        memory = first.facts()["memory"]
        least = memory["ram_reserved_bytes"] - memory["items"][-1]["bytes"] + (100 << 10)
        with coli.open(oracle_path, threads=1, context=64, search=cuda, vram="32MiB", ram=least) as second:
            assert first.logits(ids).tobytes() == want == second.logits(ids).tobytes()
            taken = second.facts()["memory"]
        assert taken["expert_slabs"] < taken["experts"] and taken["expert_misses"] > taken["expert_slabs"]
        assert taken["uploads"][0]["weights"] == memory["uploads"][0]["weights"] > 20
        assert first.logits(ids).tobytes() == want
