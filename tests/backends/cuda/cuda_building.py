"""Build the CUDA backend: for the CPU, through the shim, or with nvcc."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from building import ROOT, run_step

HERE = Path(__file__).resolve().parent
SHIM = HERE / "shim"
CUBLAS = HERE / "cublas"
SOURCES = ROOT / "backends" / "cuda"
EXACT = ("table.cpp", "context.cpp", "weights.cpp", "linear.cpp", "matvec.cu")
# Portable code, as the product's: the shim must not round where the device would not.
SHIM_FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Werror")


def build_shim(folder: Path) -> Path:
    """Compile the sources of the backend with the CPU as its device; return ``libcoli_cuda_shim.so``."""
    library = folder / "libcoli_cuda_shim.so"
    sources = [SOURCES / name for name in EXACT]
    sources += sorted((ROOT / "backends" / "common").glob("*.cpp"))
    _compile(library, [*sources, SHIM / "shim.cpp"], f"-Wl,--version-script={SOURCES / 'exports.map'}")
    return library


def build_fast_shim(folder: Path) -> Path:
    """Compile the backend with its products of the fast mode; return ``libcoli_cuda_fast_shim.so``."""
    library = folder / "libcoli_cuda_fast_shim.so"
    sources = [SOURCES / name for name in (*EXACT, "fast.cpp", "block_scale.cpp", "mxfp8.cu")]
    sources += sorted((ROOT / "backends" / "common").glob("*.cpp"))
    options = ("-DCOLI_BLOCK_SCALE", f"-I{CUBLAS}", f"-Wl,--version-script={SOURCES / 'exports.map'}", "-ldl")
    _compile(library, [*sources, SHIM / "shim.cpp"], *options)
    return library


def build_fake_cublas(folder: Path, *options: str) -> Path:
    """Compile the library that plays cuBLASLt; return ``libcublasLt.so.13``."""
    library = folder / "libcublasLt.so.13"
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-fPIC", "-shared"]
    include = [f"-I{CUBLAS}", f"-I{SHIM}"]
    source = str(CUBLAS / "fake.cpp")
    run_step(["c++", *flags, *include, *options, "-Wl,-soname,libcublasLt.so.13", source, "-o", str(library)])
    return library


def build_faults(folder: Path) -> Path:
    """Compile the kernels with a mistake each."""
    library = folder / "libfaults.so"
    _compile(library, [SHIM / "faults.cu", SHIM / "shim.cpp"])
    return library


def _compile(library: Path, sources: list[Path], *options: str) -> None:
    flags = [*SHIM_FLAGS, "-fvisibility=hidden", "-fPIC", "-shared", f"-I{SHIM}", '-DCOLI_CUDA_NAME="cuda-shim"']
    names = [str(source) for source in sources]
    run_step(["c++", *flags, "-x", "c++", *names, "-x", "none", *options, "-Wl,--no-undefined", "-o", str(library)])


def build_library(folder: Path, nvcc: str, targets: str, sources: Path = SOURCES) -> Path:
    """Configure and build ``libcoli_cuda.so`` as a cell of the matrix does."""
    host = shutil.which("g++") or "g++"
    configure = ["cmake", "-G", "Ninja", "-S", str(sources), "-B", str(folder), f"-DCMAKE_CUDA_COMPILER={nvcc}"]
    run_step([*configure, f"-DCMAKE_CUDA_HOST_COMPILER={host}", f"-DCMAKE_CUDA_ARCHITECTURES={targets}"])
    run_step(["cmake", "--build", str(folder), "-j2"])
    return folder / "libcoli_cuda.so"


def device_flags() -> list[str]:
    """Return the flags for device code as CMakeLists.txt has them."""
    text = (SOURCES / "CMakeLists.txt").read_text(encoding="utf-8")
    found = re.search(r"^set\(device_flags (.*)\)$", text, re.MULTILINE)
    assert found
    return found[1].split()
