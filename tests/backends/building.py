"""Build the CPU backends and the replay driver, and run it."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DRIVER = HERE / "replay" / "replay.cpp"


@dataclass(frozen=True)
class Build:
    """Libraries by level, and the driver with the command that runs it."""

    libraries: dict[str, Path]
    driver: tuple[str, ...]

    def replay(self, level: str, vectors: Path, threads: int, device: int = 0) -> str:
        """Replay ``vectors`` against a level; return what the driver says, raise when bytes differ."""
        command = [*self.driver, str(self.libraries[level]), str(vectors), str(threads), str(device)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"{level}, {threads} threads, device {device}\n{done.stdout}{done.stderr}"
        return done.stdout


def build_backends(
    folder: Path,
    *options: str,
    target: str = "all",
    compiler: str = "c++",
    run: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
) -> Build:
    """Configure and build into ``folder``; the log is part of the failure."""
    libraries = folder / "cpu"
    backends = ROOT / "backends" / "cpu"
    run_step(["cmake", "-S", str(backends), "-B", str(libraries), f"-DPython_EXECUTABLE={sys.executable}", *options])
    run_step(["cmake", "--build", str(libraries), "-j2", "--target", target])
    return Build(find_libraries(libraries), build_driver(folder, compiler, flags, run))


def run_step(step: list[str]) -> None:
    """Run a command; what it printed is part of the failure."""
    done = subprocess.run(step, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(step)}\n{done.stdout}\n{done.stderr}"


def find_libraries(folder: Path) -> dict[str, Path]:
    """Return the CPU libraries in a folder by level: ``libcoli_cpu_x86_64_v3.so`` and ``coli_cpu_x86_64_v3.dll``."""
    files = (*folder.glob("libcoli_cpu_*.so"), *folder.glob("coli_cpu_*.dll"))
    return {path.stem.removeprefix("lib").removeprefix("coli_cpu_"): path for path in files}


def build_driver(folder: Path, compiler: str, flags: tuple[str, ...], run: tuple[str, ...]) -> tuple[str, ...]:
    """Compile the replay driver; Windows finds a program by its suffix, and has no libdl."""
    windows = "mingw" in compiler
    driver = folder / ("replay.exe" if windows else "replay")
    run_step([compiler, "-std=c++17", "-O1", *flags, str(DRIVER), "-o", str(driver), *([] if windows else ["-ldl"])])
    return (*run, str(driver))


def nvidia_tool(name: str) -> str | None:
    """Return one of NVIDIA's tools: on PATH, in CUDA_HOME or /usr/local/cuda, or from its wheel; None without it."""
    folders = [Path(folder) / "nvidia" / "cu13" / "bin" for folder in site.getsitepackages()]
    folders += [Path(home) / "bin" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    for place in (name, *(str(folder / name) for folder in folders)):
        found = shutil.which(place)
        if found is not None:
            return found
    return None
