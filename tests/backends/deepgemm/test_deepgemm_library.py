"""The DeepGEMM flavour as it is shipped: built through the driver with the pinned toolkit and headers, then looked at.

Long stages: they need the network or what was fetched before (104 MB of toolkit, 5 MB of headers), and compile for
about a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import native
import pytest
from building import ROOT, Build, nvidia_tool
from fake_machine import build_fake_driver, make_machine

from coli.backends.candidates import Search
from coli.backends.containers import read_container
from coli.backends.fatbin import read_fatbin
from coli.backends.loader import survey
from coli.backends.manifest import file_sha256, read_manifest
from coli.backends.targets import Target
from coli.build_matrix.audit import exported_symbols
from coli.build_matrix.deepgemm import KERNEL, probe_deepgemm
from coli.build_matrix.driver import Built, build
from coli.build_matrix.finish import AUDITED, finish_library
from coli.build_matrix.machine import gather_facts
from coli.build_matrix.matrix import load_matrix
from coli.build_matrix.order import Refused, plan_cells
from coli.build_matrix.plan import Plan
from coli.build_matrix.request import read_request
from coli.build_matrix.tools import find_tools
from coli.errors import ColiError
from coli.paths import cache_folder

pytestmark = pytest.mark.full

CELL = "cuda13.0-portable-notc-deepgemm"
GENERIC = "cuda13.0-portable-notc-generic"
CODE = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
RTX_5090 = "12.0,32607,0,2,NVIDIA GeForce RTX 5090"
GB10 = "12.1,500,1,3,NVIDIA GB10"
RTX_4090 = "8.9,24564,0,4,NVIDIA GeForce RTX 4090"


def planned(cell: str, backends: Path, **variables: str) -> Plan | Refused:
    """Decide a cell with the pinned toolkit of the user's cache; skip where nothing can be fetched."""
    request = read_request(variables, toolkit="pypi:13.0")
    try:
        facts = gather_facts(
            request,
            {**os.environ, **variables},
            cache_folder(),
            wants_cuda=True,
            names_deepgemm="deepgemm" in cell,
            tell=print,
        )
    except ColiError as error:
        if error.code == "build.wheels-download":
            pytest.skip(f"not run: {error.observed}")
        raise
    (one,) = plan_cells((cell,), request, facts, load_matrix(), "x86_64", backends, every=False)
    return one


def made(cell: str, folder: Path, backends: Path = ROOT / "backends", **variables: str) -> Path:
    """Build a cell as `coli build` does, without a compiler cache, and return its library."""
    plan = planned(cell, backends, **variables)
    assert isinstance(plan, Plan), plan
    outcome = build(
        plan,
        replace(find_tools(dict(os.environ)), ccache=None),
        builds=folder / "builds",
        data_folder=folder / "data",
        environment=dict(os.environ),
        jobs=2,
        tell=print,
        finish=finish_library,
    )
    assert isinstance(outcome, Built), outcome
    return outcome.library


@dataclass(frozen=True)
class Shipped:
    """Two cells of one toolkit."""

    flavour: Path
    generic: Path


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    folder = tmp_path_factory.mktemp("shipped")
    return Shipped(made(CELL, folder), made(GENERIC, folder))


def machine_code(library: Path, target: str) -> dict[str, str]:
    """Return the instructions of each kernel of a library for a target, read by NVIDIA's own tools."""
    cuobjdump, nvdisasm = nvidia_tool("cuobjdump"), nvidia_tool("nvdisasm")
    if cuobjdump is None or nvdisasm is None:
        pytest.skip("not run: needs cuobjdump and nvdisasm (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
    path = f"{Path(nvdisasm).parent}{os.pathsep}{os.environ['PATH']}"
    command = [cuobjdump, "-sass", "-arch", target, str(library)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PATH": path}).stdout
    files = re.findall(
        r"^arch = (\S+)\n(.*?)(?=^arch = |\Z)", said, re.MULTILINE | re.DOTALL
    )  # sm_120 brings sm_120a too
    own = "".join(text for arch, text in files if arch == target)
    found = re.findall(r"^\s*Function : (\S+)\n(.*?)(?=^\s*Function : |\Z)", own, re.MULTILINE | re.DOTALL)
    return {
        name: "\n".join(re.findall(r"^\s*/\*[0-9a-f]{4,5}\*/\s+(.*?;)", body, re.MULTILINE)) for name, body in found
    }


def test_manifest_and_device_code(shipped: Shipped) -> None:
    manifest = read_manifest(shipped.flavour)
    assert shipped.flavour.name == "libcoli_cuda_dg.so"
    assert (manifest.name, manifest.kind, manifest.evidence) == ("cuda-deepgemm-sm120", "cuda", AUDITED)
    assert manifest.flavour_arch == Target(120, "a")
    assert manifest.sha256 == file_sha256(shipped.flavour)
    wanted = {*CODE, "compute_80", "compute_120"}
    assert {target.name for target in manifest.targets} == {*wanted, "sm_120a"}
    assert read_manifest(shipped.generic).flavour_arch is None
    fatbin = read_fatbin(shipped.flavour)
    assert fatbin is not None
    units = sorted(sorted({entry.target.name for entry in unit}) for unit in fatbin.units)
    assert units == sorted([sorted(wanted), ["sm_120a"]])  # the one unit that is for sm_120a is for nothing else


def test_what_it_exports_needs_and_names(shipped: Shipped) -> None:
    assert exported_symbols(shipped.flavour) == ("coli_backend_query",)
    container = read_container(shipped.flavour)
    assert container.run_path == ()
    assert set(container.needed) <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libdl.so.2", "librt.so.1"}
    content = shipped.flavour.read_bytes()
    assert b"cuTensorMapEncodeTiled\0" in content  # asked of the driver by name
    for word in (str(ROOT), str(cache_folder()), "sm120_fp8_fp4_gemm_1d1d.cuh", "deepgemm/gemm.cu"):
        assert word.encode() not in content


def test_block_scaled_machine_code(shipped: Shipped) -> None:
    kernels = machine_code(shipped.flavour, "sm_120a")
    gemms = {name: code for name, code in kernels.items() if "sm120_fp8_fp4_gemm_1d1d_impl" in name}
    kinds = [set(re.findall(r"QMMA\.SF\.16832\.F32\.(\w+\.\w+)\.E8", code)) for code in gemms.values()]
    assert sorted(map(sorted, kinds)) == [["E4M3.E2M1"], ["E4M3.E2M1"], ["E4M3.E4M3"], ["E4M3.E4M3"]]
    assert all("UTMALDG.2D" in code for code in gemms.values())
    others = {name for name in kernels if name not in gemms}
    assert len(others) == 3 and all("quantize" in name or "spread" in name for name in others)
    # Few, and none of them empty: a kernel for another target has no body.
    assert min(len(code.splitlines()) for code in gemms.values()) > 500


@pytest.mark.parametrize("target", CODE)
def test_exact_kernels_are_those_of_the_generic_library(shipped: Shipped, target: str) -> None:
    generic, flavour = machine_code(shipped.generic, target), machine_code(shipped.flavour, target)
    exact = {name: code for name, code in generic.items() if "matvec" in name}
    assert len(exact) == 4 and all("FFMA" in code for code in exact.values())
    assert {name: flavour[name] for name in exact} == exact
    assert not any("gemm" in name for name in flavour)


def test_loads_without_a_driver(shipped: Shipped) -> None:
    library = native.Library(shipped.flavour)
    assert library.name == "cuda-deepgemm-sm120"
    assert all(library.slots[name].function for name in ("fast_matmul_fp8", "fast_matmul_fp4", "matmul_fp4"))
    if Path("/proc/driver/nvidia/version").exists() or Path("/dev/dxg").exists():
        pytest.skip("not run: this machine has a driver")
    with pytest.raises(native.Refused) as refused:
        native.Context(library)
    assert (refused.value.status, refused.value.code) == (native.FAILED, 105)
    assert refused.value.text.startswith("CUDA error 35 (cudaErrorInsufficientDriver): ")


@pytest.mark.parametrize(("device", "own"), [(RTX_5090, True), (GB10, False), (RTX_4090, False)])
def test_the_loader_takes_it_for_its_own_card_only(
    shipped: Shipped, native_build: Build, tmp_path: Path, device: str, own: bool
) -> None:
    """A played driver answers for the card; the canary then stops at the real one, which is not there."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("not run: needs a C compiler")
    libraries = tmp_path / "libraries"
    libraries.mkdir(mode=0o755)
    for library in (shipped.flavour, shipped.generic, native_build.libraries["portable"]):
        for file in (library, library.with_name(library.name + ".json")):
            shutil.copy(file, libraries / file.name)
    machine = make_machine(build_fake_driver(compiler, tmp_path), tmp_path / "root", device, cuda="13000")
    search = Search(
        package_folder=libraries, cache_folder=tmp_path / "kept", root=machine.root, environment=machine.environment
    )
    trace = survey(search)
    names = [candidate.candidate.name for candidate in trace.candidates]
    assert names[:2] == ["cuda-dg", "cuda"]  # the order of preference
    said = [{finding.gate: finding for finding in candidate.findings} for candidate in trace.candidates[:2]]
    assert said[1]["architecture"].verdict == "ok"
    if own:
        assert said[0]["architecture"].verdict == "ok"
        assert "machine code sm_120a" in said[0]["architecture"].evidence
        assert said[0]["slots"].verdict == "ok"
    else:
        assert (said[0]["architecture"].verdict, said[0]["architecture"].code) == ("refused", "architecture.flavour")
        assert said[0]["slots"].verdict == "not run"


def test_same_bytes_from_other_folders(shipped: Shipped, tmp_path: Path) -> None:
    """Sources, build and headers in other folders, whose names have a space, a letter and a comma."""
    pinned = planned(CELL, ROOT / "backends")
    assert isinstance(pinned, Plan) and pinned.recipe is not None and pinned.recipe.deepgemm is not None
    shutil.copytree(ROOT / "backends", tmp_path / "Quellen für, 2")
    shutil.copytree(pinned.recipe.deepgemm.include, tmp_path / "Köpfe 2")
    again = made(CELL, tmp_path / "zwei ü", tmp_path / "Quellen für, 2", DEEPGEMM_HOME=str(tmp_path / "Köpfe 2"))
    assert file_sha256(again) == file_sha256(shipped.flavour)
    assert '"unpinned": [\n    "DEEPGEMM_HOME"\n  ]' in again.with_name(again.name + ".json").read_text("utf-8")


def test_the_adapter_is_for_the_pinned_headers_and_no_others(tmp_path: Path) -> None:
    pinned = planned(CELL, ROOT / "backends")
    assert isinstance(pinned, Plan) and pinned.recipe is not None and pinned.recipe.deepgemm is not None
    matrix, headers = load_matrix(), pinned.recipe.deepgemm
    assert (headers.api, headers.template_parameters, headers.parameters) == (matrix.deepgemm_api, 28, 18)
    text = (headers.include / KERNEL).read_text("utf-8")
    last = ",\n          bool kACpAsync = false>"
    assert text.count(last) == 1
    swapped = text.replace("bool kBIsFP4 = false,\n          bool kAIsFP4", "bool kAIsFP4 = false,\n bool kBIsFP4")
    for name, changed, observed in (
        ("one less", text.replace(last, ">"), "27 template parameters and 18 of the function"),
        ("swapped", swapped, "28 template parameters and 18 of the function, of other names or kinds"),
    ):
        assert changed != text
        home = tmp_path / name
        (home / KERNEL).parent.mkdir(parents=True)
        (home / KERNEL).write_text(changed, "utf-8")
        assert probe_deepgemm(home) is not None
        one = planned(CELL, ROOT / "backends", DEEPGEMM_HOME=str(home))
        assert isinstance(one, Refused) and one.refusal.rule == "deepgemm-api"
        assert one.refusal.observed == observed


@pytest.mark.parametrize("number", [90, 120])
def test_the_unit_is_for_sm_120a_or_not_at_all(tmp_path: Path, number: int) -> None:
    """For 9.0 the kernel's body is empty, for plain 12.0 the assembler stops late: neither comes so far."""
    plan = planned(CELL, ROOT / "backends")
    assert isinstance(plan, Plan) and plan.recipe is not None and plan.recipe.deepgemm is not None
    flags = ["-std=c++20", "--expt-relaxed-constexpr", "-gencode", f"arch=compute_{number},code=sm_{number}"]
    command = [str(plan.recipe.nvcc), "-ccbin", str(plan.compiler.path), *flags]
    include = ["-isystem", str(plan.recipe.deepgemm.include)]
    source = str(ROOT / "backends" / "deepgemm" / "gemm.cu")
    said = subprocess.run(
        [*command, *include, "-c", source, "-o", str(tmp_path / "x.o")], capture_output=True, text=True, check=False
    )
    assert said.returncode != 0
    assert "DeepGEMM's kernels are compiled for sm_120a and for nothing else" in said.stderr
