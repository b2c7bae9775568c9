"""The CPU backends under test: those of the installed package, or built from the checkout; and the replay driver."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent))
DRIVER = HERE.parent / "replay" / "replay.cpp"


@dataclass(frozen=True)
class Build:
    """Libraries by level, and the driver with the command that runs it."""

    libraries: dict[str, Path]
    driver: tuple[str, ...]

    def replay(self, level: str, vectors: Path, threads: int) -> str:
        """Replay ``vectors`` against a level; return what the driver says, raise when bytes differ."""
        command = [*self.driver, str(self.libraries[level]), str(vectors), str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"{level}, {threads} threads\n{done.stdout}{done.stderr}"
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
    _run(["cmake", "-S", str(backends), "-B", str(libraries), f"-DPython_EXECUTABLE={sys.executable}", *options])
    _run(["cmake", "--build", str(libraries), "-j2", "--target", target])
    return Build(_found(libraries), _build_driver(folder, compiler, flags, run))


def _run(step: list[str]) -> None:
    done = subprocess.run(step, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(step)}\n{done.stdout}\n{done.stderr}"


def _found(folder: Path) -> dict[str, Path]:
    return {path.stem.removeprefix("libcoli_cpu_"): path for path in folder.glob("libcoli_cpu_*.so")}


def _build_driver(folder: Path, compiler: str, flags: tuple[str, ...], run: tuple[str, ...]) -> tuple[str, ...]:
    _run([compiler, "-std=c++17", "-O1", *flags, str(DRIVER), "-o", str(folder / "replay"), "-ldl"])
    return (*run, str(folder / "replay"))


@pytest.fixture(scope="session")
def native_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The levels of this machine's architecture, as installed; built here where the package has none."""
    import coli.backends

    installed = _found(Path(coli.backends.__path__[0]) / "lib")
    folder = tmp_path_factory.mktemp("native")
    if not installed:
        return build_backends(folder)
    return Build(installed, _build_driver(folder, "c++", (), ()))


@pytest.fixture(scope="session")
def runnable(native_build: Build) -> dict[str, Path]:
    """The libraries whose instructions this processor has."""
    flags = ""
    if platform.machine() in ("x86_64", "AMD64") and Path("/proc/cpuinfo").exists():
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    needs = {"x86_64_v3": ("avx2", "fma", "bmi2"), "x86_64_v4": ("avx512f", "avx512bw", "avx512dq", "avx512vl")}
    return {
        level: path
        for level, path in native_build.libraries.items()
        if all(f" {flag} " in flags.replace("\n", " ") for flag in needs.get(level, ()))
    }


@pytest.fixture(scope="session")
def require_tool() -> Callable[[str], str]:
    """Return the path of a tool, or skip with the reason."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"not run: {name} is not installed")
        return path

    return find
