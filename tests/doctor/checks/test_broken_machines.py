"""What the owner of a broken machine is told: the cause on top, and commands that are true for that machine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coli.backends.devices import Fact, Holder, Link
from coli.backends.trace import GATES, Candidate, CandidateTrace, CublasLt, Looked, Trace, not_run, ok, refused
from coli.doctor.checks.graph import choose_checks, run_checks
from coli.doctor.checks.table import CHECKS
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.report.document import Report, decide_exit_code, find_anomalies, find_notable

from ..machines import CASES, Machine, case_facts

ORACLE = Path(__file__).parents[2] / "oracle" / "model"
SMI: dict[str, Any] = {
    "driver": "550.54.14",
    "cuda": "12.4",
    "xml_gen": 12,
    "gpus": [
        {
            "index": 0,
            "name": "NVIDIA GeForce RTX 3080",
            "uuid": "GPU-8f21a6f4-3b2d-4c11-9b6e-1d2c3b4a5f60",
            "bus": "00000000:01:00.0",
            "cc": "8.6",
            "total": 10240,
            "used": 300,
            "free": 9700,
            "reserved": 240,
            "arch": "Ampere",
        }
    ],
}


def examined(facts: MachineFacts, *only: str) -> Report:
    report = Report(run_checks(choose_checks(CHECKS, only, model=facts.model is not None), facts), facts)
    assert [row for row in report.rows if row.status in ("crash", "timeout")] == []
    return report


def told(report: Report) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return status, code and commands of what stands on top, in its order."""
    return [(one.finding.status, one.finding.code, one.finding.commands) for one in find_anomalies(report.rows)]


def as_user(facts: MachineFacts) -> MachineFacts:
    assert facts.settings is not None
    return replace(facts, settings=replace(facts.settings, superuser=False))


def test_a_card_without_a_driver(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.file("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    machine.file("sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n")
    report = examined(as_user(machine.facts()))
    install = "sudo apt-get install linux-headers-$(uname -r) nvidia-driver"
    assert told(report) == [("fail", "driver.absent", (install, "sudo reboot"))]
    assert decide_exit_code(report) == 1
    assert {row.check for row in report.rows if row.cause == "driver.state"} == {
        "driver.release",
        "devices.visible",
        "devices.capability",
        "devices.memory",
        "devices.link",
        "toolkit.fitting",
        "backends.gpu",
    }


def test_a_machine_without_a_card_is_healthy(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.file("sys/bus/pci/devices/0000:01:00.0/vendor", "0x8086\n")
    report = examined(machine.facts())
    assert told(report) == []
    assert decide_exit_code(report) == 0


def test_a_mismatch_of_releases(tmp_path: Path) -> None:
    report = examined(as_user(case_facts("A-D02", tmp_path)))
    assert told(report) == [("fail", "driver.mismatch", ("sudo reboot",))]
    evidence = [one.text for one in find_anomalies(report.rows)[0].finding.evidence]
    assert "kernel module 550.163.01" in evidence


def test_a_container_without_the_gpu_is_not_told_to_install_a_driver(tmp_path: Path) -> None:
    report = examined(case_facts("A-D12", tmp_path))
    row = next(row for row in report.rows if row.check == "driver.state")
    assert (row.status, row.findings[0].code, row.findings[0].commands) == ("note", "driver.absent", ())
    assert "--gpus all" in str(row.findings[0].fix)


def test_a_card_that_a_container_was_not_given_is_a_warning(tmp_path: Path) -> None:
    machine = Machine(tmp_path).file(".dockerenv", "")
    machine.file("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    machine.file("sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n")
    report = examined(machine.facts())
    assert told(report) == [("warn", "driver.absent", ())]
    assert find_anomalies(report.rows)[0].finding.fix == (
        "start the container with access to the GPU: docker run --gpus all"
    )
    assert decide_exit_code(report) == 0


def test_a_pod_is_told_of_its_specification(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    report = examined(machine.facts())
    (finding,) = [one for one in find_notable(report.rows) if one.code == "driver.absent"]
    assert "resources.limits: nvidia.com/gpu: 1" in str(finding.fix)
    assert "docker" not in str(finding.fix)


def test_another_machine_has_no_user_here(tmp_path: Path) -> None:
    facts = case_facts("A-D02", tmp_path)
    assert facts.settings is not None
    unknown = replace(facts, settings=replace(facts.settings, superuser=None))
    assert told(examined(unknown)) == [("fail", "driver.mismatch", ("sudo reboot",))]
    assert unknown.system is not None  # inside a container everyone is root, and sudo is seldom there
    boxed = replace(unknown, system=replace(unknown.system, container=Fact.of("docker", "/.dockerenv")))
    assert told(examined(boxed)) == [("fail", "driver.mismatch", ("reboot",))]


def test_a_variable_that_is_blamed_is_not_well_below(tmp_path: Path) -> None:
    environment = {"CUDA_HOME": "/usr/local/cuda-11.8", "LD_PRELOAD": "/x.so"}
    report = examined(Machine(tmp_path, environment).facts())
    row = next(row for row in report.rows if row.check == "settings.unread")
    assert [(one.status, one.summary) for one in row.findings] == [
        ("skip", "set, and told of above: CUDA_HOME [toolkit.stale-variable]"),
        ("ok", "variables of CUDA and compilers that are set: LD_PRELOAD"),
    ]


def test_a_container_that_lost_the_gpu(tmp_path: Path) -> None:
    report = examined(case_facts("A-D17", tmp_path))
    assert [(status, code) for status, code, _ in told(report)] == [("fail", "driver.nvml-unknown-error")]
    assert "restart the container" in str(find_anomalies(report.rows)[0].finding.fix)


def test_a_card_that_does_not_start(tmp_path: Path) -> None:
    report = examined(as_user(case_facts("A-D16", tmp_path)))
    assert told(report) == [("fail", "driver.no-usable-device", ("sudo dmesg | grep NVRM",))]


def test_a_card_that_fell_off_the_bus_is_named_and_the_others_serve(tmp_path: Path) -> None:
    report = examined(as_user(case_facts("B-D07", tmp_path)))
    found = {code: (status, commands) for status, code, commands in told(report)}
    assert found["driver.device-lost"] == ("warn", ("sudo dmesg | grep NVRM",))
    assert "driver.no-usable-device" not in found


def test_stubs_on_the_library_path_are_taken_out_and_the_rest_is_kept(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"LD_LIBRARY_PATH": "/opt/my libs:/usr/local/cuda/lib64/stubs"}).smi(SMI)
    machine.file("usr/local/cuda/lib64/stubs/libcuda.so.1", "")
    found = {code: commands for _, code, commands in told(examined(machine.facts()))}
    assert found["driver.stubs"] == ("export LD_LIBRARY_PATH='/opt/my libs'",)


def test_an_old_driver_keeps_its_cards_in_the_report(tmp_path: Path) -> None:
    report = examined(Machine(tmp_path).smi({**SMI, "driver": "470.82.01", "cuda": "11.4"}).facts())
    anomalies = find_anomalies(report.rows)
    assert [one.finding.code for one in anomalies] == ["driver.too-old"]
    assert anomalies[0].finding.summary == "driver 470.82.01 runs CUDA 11.4 at most"
    assert anomalies[0].finding.fix == "install driver 525.60.13 or later; backends are built with CUDA 12 or 13"
    visible = next(row for row in report.rows if row.check == "devices.visible")
    assert visible.status == "ok"


@pytest.mark.parametrize(
    ("value", "code", "status"),
    [("3", "devices.wrong-name", "fail"), ("", "devices.hidden", "note"), ("-1", "devices.hidden", "note")],
)
def test_cuda_visible_devices(value: str, code: str, status: str, tmp_path: Path) -> None:
    report = examined(Machine(tmp_path, {"CUDA_VISIBLE_DEVICES": value}).smi(SMI).facts())
    row = next(row for row in report.rows if row.check == "devices.visible")
    assert (row.findings[0].code, row.status) == (code, status)
    assert row.findings[0].commands == ("unset CUDA_VISIBLE_DEVICES",)


def test_an_old_card_beside_a_good_one_is_a_note(tmp_path: Path) -> None:
    report = examined(case_facts("A-D11", tmp_path), "devices")
    found = [(finding.code, finding.status) for row in report.rows for finding in row.findings]
    assert ("devices.too-old", "note") in found
    assert ("devices.capability", "ok") in found


def test_unified_memory_is_one_pool(tmp_path: Path) -> None:
    report = examined(case_facts("A-D03", tmp_path), "devices")
    row = next(row for row in report.rows if row.check == "devices.memory")
    assert [finding.code for finding in row.findings] == ["devices.unified"]


def test_a_compiler_that_the_toolkit_refuses_names_one_that_the_release_has(tmp_path: Path) -> None:
    machine = Machine(tmp_path).tool("usr/bin/g++", "g++ (Debian 14.2.0) 14.2.0\nFree Software Foundation, Inc.\n")
    toolkit = "usr/local/cuda-12.4"
    for name in ("include/cuda_runtime.h", "lib64/libcudart_static.a", "lib64/libcudart.so"):
        machine.file(f"{toolkit}/{name}", "")
    machine.tool(f"{toolkit}/bin/nvcc", "Cuda compilation tools, release 12.4, V12.4.131\n")
    report = examined(as_user(machine.facts()))
    # CUDA 12.4 takes gcc 13 at most; Debian 12 has the packages g++-11 and g++-12.
    assert told(report) == [("warn", "compiler.unsupported", ("sudo apt-get install g++-12",))]


def test_a_stale_cuda_home(tmp_path: Path) -> None:
    (tmp_path / "usr/local/cuda-11.8/doc").mkdir(parents=True)
    report = examined(Machine(tmp_path, {"CUDA_HOME": "/usr/local/cuda-11.8"}).facts())
    assert told(report) == [("warn", "toolkit.stale-variable", ("unset CUDA_HOME",))]
    assert find_anomalies(report.rows)[0].finding.summary.startswith("CUDA_HOME=/usr/local/cuda-11.8 is no usable")
    assert find_anomalies(report.rows)[0].finding.summary.count("CUDA_HOME") == 1


def test_the_limit_of_a_control_group_is_named_and_counted(tmp_path: Path) -> None:
    machine = Machine(tmp_path).file("proc/self/cgroup", "0::/docker/box\n")
    mounts = "22 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n25 22 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    machine.file("proc/self/mountinfo", mounts)
    for name, text in (("max", "2147483648"), ("current", "1073741824"), ("stat", "inactive_file 0\nactive_file 0")):
        machine.file(f"sys/fs/cgroup/docker/box/memory.{name}", f"{text}\n")
    report = examined(machine.facts(), "memory")
    limit = next(row for row in report.rows if row.check == "memory.limit")
    assert limit.findings[0].code == "memory.cgroup"
    assert limit.findings[0].summary == "1GiB of 2GiB available: a control group allows 2GiB of the machine's 31.3GiB"
    assert [code for _, code, _ in told(report)] == ["memory.tight"]


@pytest.mark.parametrize(("cores", "shown"), [("2", False), ("1.9", True)])
def test_a_limit_of_less_than_half_of_the_machine_is_worth_knowing(cores: str, shown: bool, tmp_path: Path) -> None:
    machine = Machine(tmp_path).file("proc/self/cgroup", "0::/docker/box\n")
    mounts = "22 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n25 22 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    machine.file("proc/self/mountinfo", mounts)
    machine.file("sys/fs/cgroup/docker/box/cpu.max", f"{int(float(cores) * 100000)} 100000\n")
    facts = machine.facts()
    assert facts.cpu is not None
    facts = replace(facts, cpu=replace(facts.cpu, physical_cores=Fact.of(4, "four"), threads=Fact.of(2, "two")))
    report = examined(facts, "cpu")
    (quota,) = [one for row in report.rows for one in row.findings if one.code == "cpu.quota"]
    assert (quota in find_notable(report.rows)) is shown
    assert quota.status == "note"


def test_a_model_on_a_windows_drive(tmp_path: Path) -> None:
    machine = Machine(tmp_path).file("proc/sys/kernel/osrelease", "5.15.90.1-microsoft-standard-WSL2\n")
    mounts = "22 1 259:1 / / rw - ext4 /dev/sdc rw\n30 22 0:40 / /mnt/c rw - 9p drvfs rw,aname=drvfs;path=C:\\\n"
    machine.file("proc/self/mountinfo", mounts)
    shutil.copytree(ORACLE, tmp_path / "mnt/c/my models/x")
    report = examined(machine.facts(Path("/mnt/c/my models/x")))
    assert told(report) == [("warn", "storage.windows-drive", ("cp -a '/mnt/c/my models/x' ~/",))]


def test_a_model_on_a_spinning_disk(tmp_path: Path) -> None:
    machine = Machine(tmp_path).file("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    disk = "sys/devices/pci0/ata1/block/sda"
    for name, text in (("queue/rotational", "1"), ("dev", "8:0"), ("sda1/dev", "8:1"), ("sda1/partition", "1")):
        machine.file(f"{disk}/{name}", f"{text}\n")
    numbers = tmp_path / "sys/dev/block"
    numbers.mkdir(parents=True)
    (numbers / "8:1").symlink_to("../../devices/pci0/ata1/block/sda/sda1")
    (numbers / "8:0").symlink_to("../../devices/pci0/ata1/block/sda")
    machine.file("sys/class/block/sda/queue/rotational", "1\n")
    shutil.copytree(ORACLE, tmp_path / "models/x")
    report = examined(machine.facts(Path("/models/x")), "storage")
    assert [(status, code) for status, code, _ in told(report)] == [("warn", "storage.hdd")]


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("A-W01", "checkpoint.truncated", "96 bytes are missing"),
        ("A-W02", "checkpoint.git-lfs-pointer", "2 files (model-00001-of-00002.safetensors, model-00002-of-00002"),
        ("A-W03", "checkpoint.missing-shard", "1 of 3"),
    ],
)
def test_broken_weights_are_said_behind_what_no_download_mends(
    case: str, code: str, words: str, tmp_path: Path
) -> None:
    shutil.copytree(CASES / case, tmp_path / "models/x", symlinks=True)
    config = next((tmp_path / "models/x").rglob("config.json"))
    model = Path("/") / config.parent.relative_to(tmp_path)
    report = examined(Machine(tmp_path).facts(model), "checkpoint")
    anomalies = find_anomalies(report.rows)
    # The config is OLMoE's, which has no engine, and the tokenizer is of another kind.
    assert [one.finding.code for one in anomalies] == ["family.no-engine", "checkpoint.tokenizer-kind", code]
    assert {one.finding.status for one in anomalies} == {"fail"}
    assert words in anomalies[2].finding.summary
    assert anomalies[2].hides[:1] == ("checkpoint.roles",)
    assert str(anomalies[2].finding.fix).startswith("only worth it once there is an engine for this model: ")


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.glob("A-[WC]*")))
def test_every_failure_of_a_checkpoint_says_what_to_do(case: str, tmp_path: Path) -> None:
    shutil.copytree(CASES / case, tmp_path / "models/x", symlinks=True)
    report = examined(Machine(tmp_path).facts(Path("/models/x")), "checkpoint")
    failed = [finding for row in report.rows for finding in row.findings if finding.status == "fail"]
    assert [finding for finding in failed if not finding.fix] == []


def test_an_unfinished_download_of_a_cache_is_resumed_by_its_own_name(tmp_path: Path) -> None:
    shutil.copytree(CASES / "A-W05/hub", tmp_path / "cache/hub", symlinks=True)
    report = examined(Machine(tmp_path).facts(Path("/cache/hub")), "checkpoint")
    commands = {one.finding.code: one.finding.commands for one in find_anomalies(report.rows)}
    assert commands["checkpoint.incomplete-download"] == (
        "hf download org/x --revision 0123abcd --cache-dir /cache/hub",
    )


def test_a_folder_without_a_model_and_weights_without_a_config_are_two_things(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/list.txt").write_text("x", "utf-8")
    (tmp_path / "weights").mkdir()
    shutil.copy(CASES / "A-W07/model.safetensors", tmp_path / "weights")
    told_of = {}
    for name in ("notes", "weights"):
        anomalies = find_anomalies(examined(Machine(tmp_path).facts(Path(f"/{name}")), "checkpoint").rows)
        # What is wrong with weights that are there is another thing, and is told too: two tensors share bytes.
        codes = [one.finding.code for one in anomalies]
        assert codes == ["checkpoint.no-config"] + ["checkpoint.overlap"] * (name == "weights")
        told_of[name] = anomalies[0].finding.summary.partition(": ")[2]
    assert told_of == {
        "notes": "no file of a model is here: neither config.json nor .safetensors",
        "weights": "weights are here, and config.json and tokenizer.json are missing",
    }


def test_files_that_were_not_fetched_are_one_finding_with_the_commands_for_all(tmp_path: Path) -> None:
    shutil.copytree(CASES / "A-W02", tmp_path / "models/x")
    report = examined(Machine(tmp_path).facts(Path("/models/x")), "checkpoint.files")
    pointers = [one.finding for one in find_anomalies(report.rows) if "lfs" in one.finding.code]
    assert len(pointers) == 1
    assert pointers[0].commands == ("cd /models/x", "git lfs install", "git lfs pull")


def test_an_unknown_model_type_is_named(tmp_path: Path) -> None:
    shutil.copytree(ORACLE, tmp_path / "models/x")
    config = tmp_path / "models/x/config.json"
    config.write_text(config.read_text("utf-8").replace('"deepseek_v4"', '"deepseek_v9"'), "utf-8")
    report = examined(Machine(tmp_path).facts(Path("/models/x")), "checkpoint")
    first = find_anomalies(report.rows)[0]
    assert (first.finding.code, first.finding.status) == ("family.unknown-type", "fail")
    assert "deepseek_v9" in first.finding.evidence[0].text + first.finding.summary


def traced(*findings: Any, name: str = "cuda") -> Trace:
    cuda = CandidateTrace(Candidate(Path("/data/cell/libcoli_cuda.so"), name, "user data"), findings, kind="cuda")
    fine = tuple(ok(gate, "fine") for gate in GATES)
    cpu = CandidateTrace(Candidate(Path("/lib/libcoli_cpu_portable.so"), "cpu-portable", "package"), fine, kind="cpu")
    return Trace("x86_64, portable", None, (), (cuda, cpu), 1, "best level of this CPU", (1,))


def refusing(gate: str, code: str, evidence: str, fix: str) -> list[Any]:
    place = GATES.index(gate)
    before = [ok(name, "fine") for name in GATES[:place]]
    return [*before, refused(gate, code, evidence, fix=fix), *(not_run(name, gate) for name in GATES[place + 1 :])]


def test_why_a_gpu_is_not_used_is_the_gate_that_refused(tmp_path: Path) -> None:
    facts = Machine(tmp_path).smi(SMI).file("usr/lib/x86_64-linux-gnu/libcuda.so.1", "").facts()
    fix = "install a newer driver, or build with a toolkit of CUDA 12"
    trace = traced(*refusing("driver", "too-old", "driver 550.54.14; built with CUDA 13.0", fix))
    report = examined(replace(facts, here=True, backends=trace), "backends")
    assert [code for _, code, _ in told(report)] == ["backend.driver.too-old"]
    finding = find_anomalies(report.rows)[0].finding
    assert finding.summary.startswith("NVIDIA GeForce RTX 3080 is not used: the gate driver refuses cuda")
    assert finding.fix == fix


def test_a_library_that_anyone_may_write_comes_with_the_command_that_closes_it(tmp_path: Path) -> None:
    facts = Machine(tmp_path).facts()
    trace = traced(*refusing("file", "writable", "anyone may write it", "chmod go-w /data/cell/libcoli_cuda.so"))
    report = examined(replace(facts, here=True, backends=trace), "backends.sound")
    assert told(report) == [
        (
            "warn",
            "backend.file.writable",
            ("chmod go-w /data/cell/libcoli_cuda.so", "coli backends explain /data/cell/libcoli_cuda.so"),
        )
    ]


@pytest.mark.parametrize(("major", "wheel"), [(13, "'nvidia-cublas>=13,<14'"), (12, "'nvidia-cublas-cu12>=12.8'")])
def test_tensor_cores_without_their_library_name_the_wheel(tmp_path: Path, major: int, wheel: str) -> None:
    card = {**SMI["gpus"][0], "name": "NVIDIA GeForce RTX 5090", "cc": "12.0", "arch": "Blackwell"}
    smi = {**SMI, "driver": "580.65.06", "cuda": "13.0", "gpus": [card]}
    facts = Machine(tmp_path).smi(smi).file("usr/lib/x86_64-linux-gnu/libcuda.so.1", "").facts()
    name = f"libcublasLt.so.{major}"
    places = (
        Looked("LD_LIBRARY_PATH", f"/blas/{name}", "refused", f"the file /blas/{name} may be written by anyone"),
        Looked("CUDA_HOME", "/opt/cuda", "absent"),
    )
    found = CublasLt(name, major, places, None, Fact.absent("no file was taken"), needed=True)
    trace = traced(*(ok(gate, "fine") for gate in GATES))
    row = replace(trace.candidates[0], cublaslt=found)
    trace = replace(trace, candidates=(row, trace.candidates[1]), chosen=0, chain=(0, 1))
    report = examined(replace(facts, here=True, backends=trace), "backends")
    (finding,) = [one for row in report.rows for one in row.findings if one.code == "backend.cublaslt"]
    assert (finding.status, finding.commands) == ("note", (f"pip install {wheel}",))
    assert finding.summary.endswith(f"{name} is not found; the file /blas/{name} may be written by anyone")
    assert [(one.text, one.source) for one in finding.evidence] == [
        (f"/blas/{name}: refused, the file /blas/{name} may be written by anyone", "LD_LIBRARY_PATH"),
        ("/opt/cuda: absent", "CUDA_HOME"),
    ]
    assert decide_exit_code(report) == 0
    for fine in (replace(found, needed=False), replace(found, opens=True)):
        quiet = replace(trace, candidates=(replace(row, cublaslt=fine), trace.candidates[1]))
        report = examined(replace(facts, here=True, backends=quiet), "backends")
        assert "backend.cublaslt" not in [one.code for row in report.rows for one in row.findings]


def test_a_gpu_without_a_cuda_library_is_told_to_build_one(tmp_path: Path) -> None:
    facts = Machine(tmp_path).smi(SMI).file("usr/lib/x86_64-linux-gnu/libcuda.so.1", "").facts()
    cpu = traced().candidates[1]
    trace = Trace("x86_64, portable", None, (), (cpu,), 0, "best level of this CPU", (0,))
    report = examined(replace(facts, here=True, backends=trace), "backends")
    assert told(report) == [("warn", "backend.no-cuda", ("coli build",))]


def test_who_holds_a_card_and_how_few_lanes_it_has(tmp_path: Path) -> None:
    facts = Machine(tmp_path).smi(SMI | {"gpus": [SMI["gpus"][0] | {"used": 6300, "free": 3700}]}).facts()
    assert facts.devices is not None
    holders = tuple(
        Holder(pid, Fact.of(name, "test"), Fact.of("G", "test"), Fact.of(mib << 20, "test"))
        for pid, name, mib in [
            (7, "/usr/bin/firefox", 300),
            (8, "C:\\games\\game.exe", 5600),
            (9, "/usr/lib/Xorg", 350),
        ]
    )
    link = Link(Fact.of(4, "test"), Fact.of(16, "test"), Fact.of(1, "test"), Fact.of(4, "test"))
    gpu = replace(facts.devices.gpus[0], holders=holders, link=link)
    report = examined(replace(facts, devices=replace(facts.devices, gpus=(gpu,))))
    found = {finding.code: finding.summary for row in report.rows for finding in row.findings}
    assert found["devices.busy"] == (
        "NVIDIA GeForce RTX 3080: 3.6GiB of 10GiB free: other programs hold 6.2GiB "
        "(game.exe 5.5GiB, Xorg 350MiB, firefox 300MiB)"
    )
    assert found["devices.narrow-link"] == "NVIDIA GeForce RTX 3080: PCIe with 4 of 16 lanes, generation 4"
    wide = replace(gpu, link=replace(link, width=Fact.of(16, "test")))
    report = examined(replace(facts, devices=replace(facts.devices, gpus=(wide,))))
    assert "devices.link" in {finding.code for row in report.rows for finding in row.findings}
