"""The CUDA library as it is shipped: what it exports and needs, how it behaves without a driver, its machine code."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import native
import pytest
from building import ROOT, nvidia_tool
from cuda_building import SOURCES, build_library, device_flags

from coli.backends.containers import read_container

# What every Linux system has. libcuda and cuBLAS are opened at run time, the CUDA runtime and libstdc++ are inside.
ALLOWED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "librt.so.1", "libdl.so.2"}
LOADERS = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

SERVED = {"matmul_bf16", "matmul_fp8", "matmul_fp4"}


def test_exports_only_the_query(cuda_library: Path) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("not run: needs nm")
    said = subprocess.run([nm, "-D", "--defined-only", str(cuda_library)], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in said.stdout.splitlines()] == ["coli_backend_query"]


def test_needs_only_the_system(cuda_library: Path) -> None:
    container = read_container(cuda_library)
    assert "libc.so.6" in container.needed
    assert set(container.needed) <= ALLOWED | LOADERS
    assert container.run_path == ()


def test_holds_no_path(cuda_library: Path) -> None:
    content = cuda_library.read_bytes()
    for folder in (str(ROOT), str(cuda_library.parent)):
        assert folder.encode() not in content


def test_shakes_hands_and_refuses_politely_without_a_driver(cuda_library: Path) -> None:
    library = native.Library(cuda_library)
    assert library.name == "cuda-generic"
    for kind, _, name, arguments in native.slot_list():
        assert bool(library.slots[name].function) == (kind == "SERVICE" or name in SERVED)
        assert library.slots[name].signature == native.signature(f"{name}({arguments})")
    if Path("/proc/driver/nvidia/version").exists() or Path("/dev/dxg").exists():
        pytest.skip("not run: this machine has a driver")
    with pytest.raises(native.Refused) as refused:
        native.Context(library)
    assert (refused.value.status, refused.value.code) == (native.FAILED, 105)
    assert refused.value.text.startswith("CUDA error 35 (cudaErrorInsufficientDriver): ")
    assert "Driver: there is none (no libcuda); this library: CUDA 1" in refused.value.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "there is no default"),
        (("-DCMAKE_CUDA_ARCHITECTURES=80", "-DCOLI_FLAVOUR=fast"), "COLI_FLAVOUR is fast, expected generic"),
        (
            ("-DCMAKE_CUDA_ARCHITECTURES=80", "-DCOLI_FLAVOUR=deepgemm"),
            "COLI_DEEPGEMM_INCLUDE is '', expected a folder with DeepGEMM's sm120 headers",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    command = ["cmake", "-S", str(SOURCES), "-B", str(tmp_path), *options]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode != 0 and text in " ".join(said.stderr.split())


# ---- Machine code ----------------------------------------------------------------------------------------------------

# A product and a sum that stay apart, a division and a root that are correctly rounded, subnormals that are kept.
APART = """
__global__ void apart(const float *a, const float *b, float *y) { y[0] = a[0] * b[0] + a[1]; }
"""


def disassembler() -> str:
    """Return nvdisasm: on PATH, in a toolkit, or from its wheel."""
    found = nvidia_tool("nvdisasm")
    if found is not None:
        return found
    pytest.skip("not run: needs nvdisasm (pip install nvidia-cuda-nvdisasm)")


def machine_code(nvcc: str, source: Path, folder: Path, target: str) -> dict[str, list[str]]:
    """Return the instructions and labels of each kernel of ``source``."""
    nvdisasm, cubin = disassembler(), folder / f"{target}.cubin"
    command = [nvcc, "-std=c++17", "-O3", *device_flags(), f"-arch={target}", "-cubin", str(source), "-o", str(cubin)]
    subprocess.run(command, check=True)
    text = subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    kernels = {}
    for name, body in re.findall(r"^\.text\.(\S+):\n(.*?)(?=^\.text\.|\Z)", text, re.MULTILINE | re.DOTALL):
        found = re.findall(r"^(\.L_x_\d+):|/\*[0-9a-f]{4,5}\*/\s+(.*?)\s*;", body, re.MULTILINE)
        kernels[name] = [label or instruction for label, instruction in found]
    return kernels


def main_loop(code: list[str]) -> list[str]:
    """Return the instructions of the innermost loop with a product in it."""
    loops = []
    for at, line in enumerate(code):
        back = re.search(r"BRA.*`\((\.L_x_\d+)\)", line)
        if back and back[1] in code[:at]:
            body = [item for item in code[code.index(back[1]) : at + 1] if not item.startswith(".L_x_")]
            if any("FFMA" in item for item in body):
                loops.append(body)
    return min(loops, key=len)


def count(code: list[str], what: str) -> int:
    return sum(re.search(what, line) is not None for line in code)


@pytest.mark.parametrize("target", ["sm_80", pytest.param("sm_90", marks=pytest.mark.full), "sm_120"])
def test_machine_code(nvcc: str, tmp_path: Path, target: str) -> None:
    kernels = machine_code(nvcc, SOURCES / "matvec.cu", tmp_path, target)
    # Columns of a lane in a pass, fma of a pass and row (products, then the factor), most slots a weight.
    formats = {"3Fp4E": (32, 33, 5.5), "3Fp8E": (16, 17, 5.5), "4Bf16E": (8, 8, 3.5)}
    for name, (cols, fma, most) in formats.items():
        code = next(code for kernel, code in kernels.items() if name in kernel)
        loop = main_loop(code)
        passes, rest = divmod(count(loop, "FFMA"), 2 * fma)  # two rows
        assert passes >= 1 and rest == 0, f"{name}: {count(loop, 'FFMA')} FFMA"
        assert count(loop, r"LDG\.E\.128") == 2 * passes, name
        assert count(loop, r"LDG\.E(?!\.(128|U8))") == 0, name
        assert count(loop, r"LDS\.128") == cols // 4 * passes, name  # x, once for both rows
        assert count(loop, "FADD|FMUL") == 0, name
        assert count(code, "FADD") == 2 * 5, name  # the tree
        assert count(code, r"(FFMA|FADD|FMUL|HADD2)\S*\.FTZ") == 0, name
        slots = len(loop) / (2 * passes * cols)
        print(f"{target} {name}: {slots:.2f} slots a weight")
        assert slots < most, name


def test_product_and_sum_stay_apart(nvcc: str, tmp_path: Path) -> None:
    source = tmp_path / "apart.cu"
    source.write_text(APART, encoding="utf-8")
    (code,) = machine_code(nvcc, source, tmp_path, "sm_80").values()
    assert (count(code, "FFMA"), count(code, "FMUL"), count(code, "FADD")) == (0, 1, 1)


@pytest.mark.full
def test_same_bytes_from_another_folder(nvcc: str, tmp_path: Path) -> None:
    """Another source folder, with a space, a letter and a comma, and another build folder."""
    targets = "80-real;86-real;89-real;90-real;80-virtual"
    here = build_library(tmp_path / "one", nvcc, targets)
    shutil.copytree(ROOT / "backends", tmp_path / "Quellen für, 2")
    there = build_library(tmp_path / "zwei ü" / "b", nvcc, targets, tmp_path / "Quellen für, 2" / "cuda")
    digests = {hashlib.sha256(library.read_bytes()).hexdigest() for library in (here, there)}
    assert len(digests) == 1
