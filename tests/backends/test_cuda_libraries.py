"""CUDA libraries through the whole loader, on machines whose driver is played: gates, order, chain, variables."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_machine import FakeMachine, build_cublaslt, make_machine, uuid
from fatbin_writer import fatbin
from stubs import write_manifest

from coli.backends.candidates import Search
from coli.backends.device_gates import check_driver
from coli.backends.devices import DeviceFacts, Driver, Fact
from coli.backends.loader import load, render_banner, survey
from coli.backends.trace import GATES, CandidateTrace, Trace
from coli.errors import BackendRefused

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run: the stubs are ELF libraries")

Build = Callable[..., Path]
GENERIC = ("sm_80", "sm_86", "sm_120", "compute_80")
FLAVOUR = (*GENERIC, "sm_120a")
RTX_3090 = "8.6,24576,0,1,NVIDIA GeForce RTX 3090"
RTX_5090 = "12.0,32607,0,2,NVIDIA GeForce RTX 5090"
GB10 = "12.1,500,1,3,NVIDIA GB10"
GTX_1080 = "6.1,11264,0,33,NVIDIA GeForce GTX 1080 Ti"
H100 = "9.0,81559,0,4,NVIDIA H100"


@pytest.fixture(autouse=True)
def _own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)


class House:
    """A folder with libraries and a machine."""

    def __init__(self, build: Build, folder: Path, fake_driver: Path, canary: Path, answers: Path) -> None:
        self.build, self.folder, self.fake_driver, self.canary = build, folder, fake_driver, canary
        self.answers = answers  # kept for all tests: most are not about the child process
        self.libraries = folder / "libraries"
        self.libraries.mkdir()
        self.libraries.chmod(0o755)
        self.machine = FakeMachine(folder / "nothing", {})

    def add(self, name: str, code: tuple[str, ...] = (), *switches: str, **changes: Any) -> Path:
        options = list(switches)
        if code:
            section = self.folder.parent / f"{'-'.join(code)}.bin"
            section.write_bytes(fatbin(code))
            options.append(f'STUB_FATBIN="{section}"')
            changes = {"kind": "cuda", "toolkit": "12.8", "targets": list(code), **changes}
        path = self.libraries / name
        shutil.copyfile(self.build(name, *options), path)
        path.chmod(0o644)
        write_manifest(path, **changes)
        return path

    def on(self, devices: str, **variables: str) -> House:
        self.machine = make_machine(
            self.fake_driver, self.folder / "root", devices, parts=("libcuda.so.1",), **variables
        )
        return self

    def search(self, selection: str | None = None) -> Search:
        return Search(
            selection,
            package_folder=self.libraries,
            cache_folder=self.answers,
            root=self.machine.root,
            environment=self.machine.environment,
        )

    def survey(self, selection: str | None = None) -> Trace:
        return survey(self.search(selection), canary=self.canary)


@pytest.fixture(scope="session")
def kept_answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def house(
    build_stub: Build,
    tmp_path_factory: pytest.TempPathFactory,
    fake_driver: Path,
    stub_canary: Path,
    kept_answers: Path,
) -> House:
    folder = tmp_path_factory.mktemp("house")
    made = House(build_stub, folder, fake_driver, stub_canary, kept_answers)
    made.add("libcoli_cpu_portable.so")
    return made


def row(trace: Trace, name: str) -> CandidateTrace:
    (found,) = [candidate for candidate in trace.candidates if candidate.candidate.name == name]
    assert tuple(finding.gate for finding in found.findings) == GATES
    return found


def codes(candidate: CandidateTrace) -> list[str]:
    return [finding.code for finding in candidate.findings if finding.verdict == "refused"]


def test_chain_ends_with_the_cpu_and_variables_number_the_served_cards(house: House) -> None:
    house.add("libcoli_cuda.so", GENERIC, f'STUB_WANTS_DEVICES="{uuid(1)}"')
    house.on(f"{GTX_1080};{RTX_3090}", HOME="/nowhere")
    loaded = load(search=house.search(), canary=house.canary)
    assert [backend.name for backend in loaded.chain] == ["cuda", "cpu-portable"]
    assert loaded.device == "NVIDIA GeForce RTX 3090"
    assert loaded.trace.why == "NVIDIA GeForce RTX 3090 (8.6): machine code sm_86"
    devices = next(f for f in row(loaded.trace, "cuda").findings if f.gate == "devices")
    assert "NVIDIA GeForce GTX 1080 Ti is skipped: below sm_80" in devices.evidence
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]) == (uuid(1), "PCI_BUS_ID")
    assert "device=NVIDIA GeForce RTX 3090 why=" in render_banner(loaded)
    document = json.loads(json.dumps(loaded.trace.as_dict()))
    assert [Path(path).name for path in document["chain"]] == ["libcoli_cuda.so", "libcoli_cpu_portable.so"]
    assert document["devices"]["driver"]["state"] == "ok"


def test_no_driver_is_a_polite_refusal(house: House) -> None:
    house.add("libcoli_cuda.so", GENERIC)
    loaded = load(search=house.search(), canary=house.canary)
    assert [backend.name for backend in loaded.chain] == ["cpu-portable"]
    assert "cuda" not in loaded.trace.why  # without a driver it is no loss
    assert codes(row(loaded.trace, "cuda")) == ["driver.absent"]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    with pytest.raises(BackendRefused) as caught:
        load("cuda", house.search(), house.canary)
    assert (caught.value.code, caught.value.exit_code) == ("backend.driver.absent", 5)


def test_a_gpu_without_a_driver_is_told_of_the_driver_before_any_build(house: House) -> None:
    with pytest.raises(BackendRefused) as caught:
        load(search=dataclasses.replace(house.search(), gpu="0"), canary=house.canary)
    assert "no nvidia-smi, no libcuda, no kernel module" in (caught.value.observed or "")
    fix = caught.value.fix or ""
    assert fix.startswith("first ") and fix.index("first ") < fix.index("`coli build`")


@pytest.mark.parametrize(
    ("devices", "name"),
    [(RTX_5090, "cuda-dg"), (GB10, "cuda"), (RTX_3090, "cuda"), (f"{RTX_3090};{RTX_5090}", "cuda-dg")],
)
def test_flavour_only_for_its_own_card(house: House, devices: str, name: str) -> None:
    house.add("libcoli_cuda.so", GENERIC)
    house.add("libcoli_cuda_dg.so", FLAVOUR, flavour_arch="sm_120a")
    trace = house.on(devices).survey()
    assert trace.chosen is not None
    assert trace.candidates[trace.chosen].candidate.name == name
    if name == "cuda":
        assert codes(row(trace, "cuda-dg")) == ["architecture.flavour"]
    elif ";" in devices:
        assert [device.name for device in row(trace, "cuda-dg").devices] == ["NVIDIA GeForce RTX 5090"]


@pytest.mark.parametrize(
    ("devices", "variables", "code"),
    [
        (RTX_3090, {"FAKE_INIT": "803"}, "driver.mismatch"),
        (RTX_3090, {"FAKE_INIT": "100"}, "driver.no-usable-device"),
        (RTX_3090, {"FAKE_INIT": "34"}, "driver.stub-library"),
        (RTX_3090, {"cuda": "11040"}, "driver.too-old"),
        (RTX_3090, {"CUDA_VISIBLE_DEVICES": "-1"}, "devices.none"),
        (RTX_3090, {"CUDA_VISIBLE_DEVICES": "1"}, "devices.none"),
        (GTX_1080, {}, "devices.none"),
        (H100, {"cuda": "12040"}, "architecture.driver-too-old-for-ptx"),
        (
            f"{RTX_3090};{H100}",
            {"cuda": "12040", "CUDA_VISIBLE_DEVICES": uuid(4)},
            "architecture.driver-too-old-for-ptx",
        ),
    ],
)
def test_refusals(house: House, devices: str, variables: dict[str, str], code: str) -> None:
    house.add("libcoli_cuda.so", GENERIC)
    trace = house.on(devices, **variables).survey()
    refused = row(trace, "cuda")
    assert codes(refused) == [code]
    assert refused.refusal is not None and refused.refusal.fix
    late = {finding.gate: finding.verdict for finding in refused.findings}
    assert [late[gate] for gate in ("open", "handshake", "slots", "canary")] == ["not run"] * 4
    assert trace.chosen is not None and trace.candidates[trace.chosen].kind == "cpu"


def test_ptx_runs_where_the_driver_knows_it(house: House) -> None:
    house.add("libcoli_cuda.so", GENERIC)
    trace = house.on(H100, cuda="12080").survey()
    assert trace.why == "NVIDIA H100 (9.0): PTX compute_80, compiled by the driver"


def test_one_of_two_cards_is_served(house: House) -> None:
    house.add("libcoli_cuda.so", ("sm_86",))
    served = row(house.on(f"{RTX_3090};{H100}").survey(), "cuda")
    assert [device.name for device in served.devices] == ["NVIDIA GeForce RTX 3090"]
    evidence = next(f.evidence for f in served.findings if f.gate == "architecture")
    assert "skipped: NVIDIA H100 (9.0): no code for 9.0: it has sm_86" in evidence


def test_file_and_manifest_must_name_the_same_targets(house: House) -> None:
    house.add("libcoli_cuda.so", ("sm_86",), targets=["sm_86", "sm_90"])
    finding = row(house.on(RTX_3090).survey(), "cuda").refusal
    assert finding is not None
    assert (finding.code, finding.evidence) == ("architecture.manifest", "the file has sm_86")


def test_section_that_nobody_can_read_leaves_the_manifest(house: House) -> None:
    section = house.folder / "odd.bin"
    section.write_bytes(b"another format of the future....")
    house.add("libcoli_cuda.so", (), f'STUB_FATBIN="{section}"', kind="cuda", toolkit="13.0", targets=["sm_86"])
    trace = house.on(RTX_3090, cuda="13000").survey()
    assert trace.chosen == 0 and trace.candidates[0].candidate.name == "cuda"


@pytest.mark.parametrize(
    "changes",
    [
        {"toolkit": "13"},
        {"toolkit": None},
        {"targets": []},
        {"targets": ["86"]},
        {"targets": [None]},
        {"targets": "sm_86"},
        {"flavour_arch": 120},
        {"cublaslt": "13"},
        {"cublaslt": True},
        {"cublaslt": 0},
    ],
)
def test_manifest_of_a_cuda_library(house: House, changes: dict[str, Any]) -> None:
    house.add("libcoli_cuda.so", ("sm_86",), **changes)
    assert codes(row(house.on(RTX_3090).survey(), "cuda")) == ["manifest.field"]


def test_library_that_serves_nothing(house: House) -> None:
    house.add("libcoli_cuda.so", ("sm_86",), "STUB_NO_STAGE")
    assert codes(row(house.on(RTX_3090).survey(), "cuda")) == ["canary.nothing-served"]


def test_wrong_bits_are_refused_as_ever(house: House) -> None:
    house.add("libcoli_cuda.so", ("sm_86",), "STUB_WRONG_BITS")
    assert codes(row(house.on(RTX_3090).survey(), "cuda")) == ["canary.bits"]


def test_without_a_cpu_backend_there_is_no_chain(house: House) -> None:
    house.add("libcoli_cuda.so", ("sm_86",))
    (house.libraries / "libcoli_cpu_portable.so").unlink()
    house.on(RTX_3090)
    assert house.survey().chosen is None
    with pytest.raises(BackendRefused, match="needs a CPU backend behind it") as caught:
        load("cuda", house.search(), house.canary)
    assert caught.value.code == "backend.no-cpu"


def test_kept_answer_belongs_to_one_driver_and_device(house: House, tmp_path: Path) -> None:
    house.add("libcoli_cuda.so", GENERIC)
    house.on(RTX_3090)
    search = replace(house.search(), cache_folder=tmp_path / "cache")
    for want in (False, True):
        assert row(survey(search, canary=house.canary), "cuda").cached is want
    for changes in ({"FAKE_VERSION": "12080"}, {"FAKE_DEVICES": RTX_5090}):
        other = replace(search, environment={**search.environment, **changes})
        assert row(survey(other, canary=house.canary), "cuda").cached is False


CUBLAS = "libcublasLt.so.13"


def with_cublaslt(house: House, compiler: str, devices: str, code: str | None = "int cublaslt;") -> Path:
    """Add a CUDA library with products in tensor cores, and CUDA_HOME with what they ask for (None: without)."""
    house.add("libcoli_cuda.so", GENERIC, cublaslt=13)
    house.on(devices, CUDA_HOME="/opt/toolkit")
    folder = house.machine.root / "opt/toolkit/lib64"
    folder.mkdir(parents=True)
    return folder / CUBLAS if code is None else build_cublaslt(compiler, folder / CUBLAS, code)


def test_cublaslt_is_opened_in_the_child_and_left_to_the_first_fast_product(house: House, compiler: str) -> None:
    file = with_cublaslt(house, compiler, RTX_5090)
    loaded = load(search=house.search(), canary=house.canary)
    found = row(loaded.trace, "cuda").cublaslt
    assert found is not None
    assert (found.path, found.needed, found.opens, found.problem) == (file, True, True, None)
    assert loaded.fast_library == file
    assert str(file) not in Path("/proc/self/maps").read_text("utf-8")  # 150 MB that no exact run needs
    (cuda,) = [one for one in loaded.trace.as_dict()["candidates"] if one["name"] == "cuda"]
    assert (cuda["cublaslt"]["path"], cuda["cublaslt"]["opens"]) == (str(file), True)
    assert [place["state"] for place in cuda["cublaslt"]["places"]][:2] == ["absent", "taken"]


def test_cublaslt_is_not_opened_for_a_device_without_block_scaling(house: House, compiler: str) -> None:
    with_cublaslt(
        house, compiler, RTX_3090, "#include <stdlib.h>\n__attribute__((constructor)) void f(void) { abort(); }"
    )
    loaded = load(search=house.search(), canary=house.canary)
    found = row(loaded.trace, "cuda").cublaslt
    assert found is not None and (found.needed, found.opens, found.problem) == (False, False, None)
    assert loaded.fast_library is None


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (None, None),
        ("extern int nowhere; int *cublaslt = &nowhere;", "undefined symbol: nowhere"),
        ("#include <stdlib.h>\n__attribute__((constructor)) void f(void) { abort(); }", "SIGABRT"),
    ],
)
def test_a_cublaslt_that_fails_is_no_refusal(
    house: House, compiler: str, code: str | None, problem: str | None
) -> None:
    with_cublaslt(house, compiler, RTX_5090, code)
    loaded = load(search=house.search(), canary=house.canary)
    cuda = row(loaded.trace, "cuda")
    assert loaded.name == "cuda" and cuda.accepted and cuda.cublaslt is not None
    assert cuda.cublaslt.needed and not cuda.cublaslt.opens and loaded.fast_library is None
    assert cuda.cublaslt.problem is problem if problem is None else problem in (cuda.cublaslt.problem or "")


def test_a_library_that_crashes_after_cublaslt_has_opened_is_refused(house: House, compiler: str) -> None:
    with_cublaslt(house, compiler, RTX_5090)
    house.add("libcoli_cuda.so", GENERIC, "STUB_CRASH_END", cublaslt=13)
    assert codes(row(house.survey(), "cuda")) == ["canary.crash"]


def test_another_cublaslt_is_opened_again(house: House, compiler: str, tmp_path: Path) -> None:
    file = with_cublaslt(house, compiler, RTX_5090)
    search = replace(house.search(), cache_folder=tmp_path / "cache")

    def seen() -> tuple[bool, bool]:
        cuda = row(survey(search, canary=house.canary), "cuda")
        assert cuda.cublaslt is not None
        return cuda.cached, cuda.cublaslt.opens

    assert [seen(), seen()] == [(False, True), (True, True)]
    build_cublaslt(compiler, file, "extern int nowhere; int *cublaslt = &nowhere;")
    assert [seen(), seen()] == [(False, False)] * 2  # what it lacks may be there the next time
    file.unlink()
    assert seen() == (False, False)


def test_libraries_without_tensor_cores_ask_for_none(house: House) -> None:
    house.add("libcoli_cuda.so", GENERIC)
    trace = house.on(RTX_5090, CUDA_HOME="/opt/toolkit").survey()
    assert [candidate.cublaslt for candidate in trace.candidates] == [None, None]


@pytest.mark.parametrize(
    ("toolkit", "version", "max_cuda", "verdict"),
    [
        ((11, 8), "450.80.02", None, "ok"),
        ((11, 8), "450.51.06", None, "refused"),
        ((12, 8), "525.60.13", None, "ok"),
        ((12, 8), "525.53", None, "refused"),
        ((12, 0), "470.182.03", (11, 4), "refused"),
        ((13, 0), "580.65.06", (13, 0), "ok"),
        ((13, 0), "575.57.08", (12, 9), "refused"),
        ((13, 5), "580.126.09", (13, 0), "ok"),  # minor version compatibility
        ((12, 8), "610.43.02", (13, 3), "ok"),
        ((12, 8), "470.182.03", (12, 8), "ok"),  # with a compatibility package
        ((14, 0), "610.43.02", (13, 3), "refused"),
        ((12, 8), None, None, "refused"),
    ],
)
def test_driver_floor(
    toolkit: tuple[int, int], version: str | None, max_cuda: tuple[int, int] | None, verdict: str
) -> None:
    driver = Driver(
        "ok",
        "",
        version=Fact.of(version, "t") if version else Fact.unknown(),
        max_cuda=Fact.of(max_cuda, "t") if max_cuda else Fact.unknown(),
        libcuda=Fact.of("/l", "t"),
        cuda_error=Fact.of(0, "t"),
    )
    assert check_driver(DeviceFacts("linux", False, driver), toolkit).verdict == verdict
