"""What the machine can run of the CPU backends, and tools."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from building import Build, build_backends


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


@pytest.fixture(scope="session")
def neon_build(require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The NEON library, cross-compiled, with a driver that an emulator runs."""
    compiler, emulator = require_tool("aarch64-linux-gnu-g++"), require_tool("qemu-aarch64")
    options = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={compiler}")
    run = (emulator, "-L", "/usr/aarch64-linux-gnu")
    folder = tmp_path_factory.mktemp("neon")
    return build_backends(folder, *options, target="coli_cpu_neon", compiler=compiler, run=run)
