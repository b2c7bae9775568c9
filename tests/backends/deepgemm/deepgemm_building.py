"""Build the DeepGEMM flavour of the CUDA backend for the CPU, with our stand-in for the one kernel of DeepGEMM."""

from __future__ import annotations

from pathlib import Path

from building import ROOT, run_step
from cuda_building import EXACT, SHIM, SHIM_FLAGS, SOURCES

STAND_IN = Path(__file__).resolve().parent / "stand_in"
FLAVOUR = ROOT / "backends" / "deepgemm"


def build_stand_in(folder: Path) -> Path:
    """Compile the flavour's sources and the stand-in; return ``libcoli_cuda_stand_in.so``."""
    library = folder / "libcoli_cuda_stand_in.so"
    sources = [SOURCES / name for name in EXACT]
    sources += [FLAVOUR / name for name in ("fast.cpp", "tensor_map.cpp", "gemm.cu")]
    sources += [*sorted((ROOT / "backends" / "common").glob("*.cpp")), SHIM / "shim.cpp", STAND_IN / "stand_in.cpp"]
    flags = [*SHIM_FLAGS, "-fvisibility=hidden", "-fPIC", "-shared", f"-I{SHIM}", f"-I{STAND_IN}"]
    names = ['-DCOLI_CUDA_NAME="cuda-deepgemm-sm120"', "-DCOLI_DEEPGEMM"]
    exports = f"-Wl,--version-script={SOURCES / 'exports.map'}"
    files = [str(source) for source in sources]
    run_step(
        ["c++", *flags, *names, "-x", "c++", *files, "-x", "none", exports, "-Wl,--no-undefined", "-o", f"{library}"]
    )
    return library
