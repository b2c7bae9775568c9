"""The detector on machines that are folders: fake libraries and tools, and every way in which they fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fake_machine import make_machine, uuid

from coli.backends.devices import Fact, Gpu, decide_advice, driver_at_least, memory_pools, probe_devices
from coli.backends.devices.libraries import parse_cuda, parse_nvml
from coli.backends.devices.merge import with_memory_kind
from coli.backends.targets import Capability

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run: the fake driver is made of ELF libraries")

MIB = 1 << 20
TWO = "8.6,24576,0,1,NVIDIA GeForce RTX 3090;6.1,11264,0,33,NVIDIA GeForce GTX 1080 Ti"


def tool(folder: Path, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvidia-smi"
    path.write_text("#!/bin/sh\n" + script, encoding="utf-8")
    path.chmod(0o755)
    return folder


def test_libraries_without_the_tool(fake_driver: Path, tmp_path: Path) -> None:
    machine = make_machine(fake_driver, tmp_path, TWO)
    facts = probe_devices({**machine.environment, "CUDA_VISIBLE_DEVICES": "1"}, (), tmp_path)
    assert (facts.driver.state, facts.driver.cuda_error.value) == ("ok", 0)
    assert (facts.driver.version.value, facts.driver.max_cuda.value) == ("550.90.07", (12, 4))
    assert facts.driver.max_cuda.source == "libcuda"
    first, second = facts.gpus
    assert (first.name.value, str(first.capability.value), first.uuid.value) == (
        "NVIDIA GeForce RTX 3090",
        "8.6",
        uuid(1),
    )
    assert first.uuid.value == "GPU-01010101-0101-0101-0101-010101010101"
    assert (first.memory.free_bytes.value, first.memory.reserved_bytes.value) == (24076 * MIB, 400 * MIB)
    assert (first.memory.kind.value, first.virtualization.value, first.ordinal.value) == ("dedicated", "VGPU", 0)
    assert (second.index, second.bus_id.value) == (1, "00000000:21:00.0")
    assert facts.driver.libcuda.value == "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    json.dumps(facts.as_dict())


def test_libcuda_alone_knows_no_free_memory(fake_driver: Path, tmp_path: Path) -> None:
    machine = make_machine(fake_driver, tmp_path, TWO, parts=("libcuda.so.1",))
    facts = probe_devices(machine.environment, (), tmp_path)
    assert [gpu.memory.total_bytes.value for gpu in facts.gpus] == [24576 * MIB, 11264 * MIB]
    assert not facts.gpus[0].memory.free_bytes.known
    assert not facts.driver.version.known


@pytest.mark.parametrize(
    ("code", "state", "advice"),
    [
        (34, "stub-library", "remove-stubs"),
        (35, "driver-too-old", "update-driver"),
        (100, "no-usable-device", "reboot"),
        (802, "not-ready", "fabric-manager"),
        (803, "mismatch", "reboot"),
        (804, "unsupported-compatibility", "remove-cuda-compat"),
        (999, "failed", "reboot"),
        (777, "failed", "reboot"),
    ],
)
def test_what_cuinit_returns(fake_driver: Path, tmp_path: Path, code: int, state: str, advice: str) -> None:
    machine = make_machine(fake_driver, tmp_path, TWO, parts=("libcuda.so.1",), FAKE_INIT=str(code))
    facts = probe_devices(machine.environment, (), tmp_path)
    assert (facts.driver.state, facts.driver.cuda_error.value, facts.gpus) == (state, code, ())
    assert str(code) in facts.driver.evidence
    found = decide_advice(facts)
    assert found is not None and found.kind == advice


@pytest.mark.parametrize(("fault", "state"), [("crash", "failed"), ("hang", "timeout")])
def test_libraries_that_crash_or_hang(fake_driver: Path, tmp_path: Path, fault: str, state: str) -> None:
    machine = make_machine(fake_driver, tmp_path, TWO, parts=("libcuda.so.1",), FAKE_FAULT=fault)
    facts = probe_devices(machine.environment, (), tmp_path, deadline_s=1.0)
    assert (facts.driver.state, facts.gpus) == (state, ())
    assert "after step 'version'" in facts.driver.evidence


def test_library_that_prints_does_not_disturb_the_answer(fake_driver: Path, tmp_path: Path) -> None:
    machine = make_machine(fake_driver, tmp_path, TWO, parts=("libcuda.so.1",), FAKE_FAULT="flood")
    assert len(probe_devices(machine.environment, (), tmp_path).gpus) == 2


def test_unified_memory_counts_once(fake_driver: Path, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 600 kB\n", encoding="utf-8")
    machine = make_machine(fake_driver, tmp_path, "12.1,500,1,1,NVIDIA GB10;8.9,24564,0,2,NVIDIA L4")
    facts = probe_devices(machine.environment, (), tmp_path)
    assert [gpu.memory.kind.value for gpu in facts.gpus] == ["unified", "dedicated"]
    pools = [(p.kind, p.total_bytes.value, p.free_bytes.value, p.gpus) for p in memory_pools(facts)]
    assert pools == [("system", 1000 * 1024, 600 * 1024, (0,)), ("dedicated", 24564 * MIB, 24064 * MIB, (1,))]


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("exec sleep 100", "timeout"),
        ("kill -SEGV $$", "failed"),
        ("exit 0", "failed"),
        ("echo 'Segmentation fault'; exit 139", "failed"),
        ("echo 'No devices were found' >&2; exit 6", "no-usable-device"),
        ("head -c 20000000 /dev/zero | tr '\\0' x", "failed"),
    ],
)
def test_tools_in_trouble(tmp_path: Path, script: str, state: str) -> None:
    path = tool(tmp_path / "bin", script)
    facts = probe_devices({"PATH": "/usr/bin:/bin"}, (path,), tmp_path / "root", deadline_s=1.0)
    assert (facts.driver.state, facts.gpus) == (state, ())
    assert facts.driver.evidence


def test_tool_that_cannot_be_run(tmp_path: Path) -> None:
    path = tool(tmp_path / "bin", "exit 0")
    (path / "nvidia-smi").chmod(0o644)
    facts = probe_devices({}, (path,), tmp_path)
    assert facts.driver.state == "failed" and "does not start" in facts.driver.evidence


def test_libraries_where_the_tool_hangs(fake_driver: Path, tmp_path: Path) -> None:
    machine = make_machine(fake_driver, tmp_path / "root", TWO)
    path = tool(tmp_path / "bin", "exec sleep 100")
    environment = {**machine.environment, "PATH": "/usr/bin:/bin"}
    facts = probe_devices(environment, (path,), machine.root, deadline_s=2.0)
    assert (facts.driver.state, len(facts.gpus)) == ("ok", 2)


def test_tool_of_a_container_that_has_no_library(tmp_path: Path) -> None:
    (tmp_path / ".dockerenv").touch()
    facts = probe_devices({}, [tool(tmp_path / "bin", "echo strange; exit 1\n")], tmp_path)
    advice = decide_advice(facts)
    assert (facts.driver.state, advice and advice.kind) == ("failed", "container-gpu-runtime")


def test_nothing(tmp_path: Path) -> None:
    facts = probe_devices({}, (), tmp_path)
    assert (facts.driver.state, facts.gpus, facts.notes) == ("absent", (), ())
    assert facts.driver.libcuda.known and facts.driver.libcuda.value is None
    assert decide_advice(facts) is None


def test_chip_with_one_memory_that_nobody_can_measure() -> None:
    unknown: Fact[int] = Fact.unknown()
    chip = Gpu(0, capability=Fact.of(Capability(12, 1), "test"))
    card = Gpu(1, capability=Fact.of(Capability(12, 0), "test"))
    found = with_memory_kind((chip, card), False, Fact.of(1000, "meminfo"), unknown)
    assert [gpu.memory.kind.value for gpu in found] == ["unified", None]
    assert (found[0].memory.total_bytes.value, found[0].memory.free_bytes.known) == (1000, False)


def test_stubs_are_passed_over(fake_driver: Path, tmp_path: Path) -> None:
    stubs, elsewhere = tmp_path / "opt/cuda/lib64/stubs", tmp_path / "opt/links"
    for folder in (stubs, elsewhere):
        folder.mkdir(parents=True)
    (stubs / "libcuda.so.1").write_bytes(b"stub")
    (elsewhere / "libcuda.so.1").symlink_to(stubs / "libcuda.so.1")
    machine = make_machine(fake_driver, tmp_path, TWO, parts=("libcuda.so.1",))
    environment = {**machine.environment, "LD_LIBRARY_PATH": "/opt/cuda/lib64/stubs:/opt/links"}
    facts = probe_devices(environment, (), tmp_path)
    assert (facts.driver.state, facts.driver.libcuda.value) == ("ok", "/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    assert [note.partition(" ")[0] for note in facts.notes] == [
        "stubs",
        "/opt/cuda/lib64/stubs/libcuda.so.1",
        "/opt/links/libcuda.so.1",
    ]


def test_module_of_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    for line, version in (
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025", "550.163.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build", "575.57.08"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.4.0  Release Build", "540.4.0"),
    ):
        (folder / "version").write_text(line + "\n", encoding="utf-8")
        facts = probe_devices({}, (), tmp_path)
        assert (facts.driver.module_version.value, facts.driver.state) == (version, "library-missing")
    # No release has this many digits; Python would not read it as a number.
    (folder / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {'5' * 5000}.1\n", "utf-8")
    assert not probe_devices({}, (), tmp_path).driver.module_version.known
    assert driver_at_least("9" * 5000, "580.65")


@pytest.mark.parametrize("junk", [None, "x", [], {}, -1, 1 << 70, True, "\x00\x1b"])
def test_answers_of_any_form(junk: object) -> None:
    keys = (
        "name",
        "uuid",
        "total",
        "major",
        "minor",
        "unified",
        "bus",
        "device",
        "domain",
        "ordinal",
        "memory",
        "slices",
    )
    facts = dict.fromkeys((*keys, "capability", "mig", "virtualization", "bus_id", "index"), junk)
    steps = {
        "open": {"error": None},
        "version": {"error": 0, "version": junk, "driver": junk},
        "init": {"error": 0},
        "device 0": {"error": 0, **facts},
    }
    for parse in (parse_cuda, parse_nvml):
        (gpu,) = parse(steps).gpus
        assert not gpu.capability.known and not gpu.memory.total_bytes.known
        assert parse({**steps, "init": {"error": junk}}).gpus == ()
