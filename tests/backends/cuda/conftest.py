"""The CUDA backend on the CPU and, where there is a toolkit, as it is shipped."""

from __future__ import annotations

from pathlib import Path

import native
import pytest
from building import nvidia_tool
from cuda_building import build_library, build_shim


@pytest.fixture(scope="session")
def shim_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The backend with the CPU as its device."""
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="session")
def shim(shim_path: Path) -> native.Library:
    return native.Library(shim_path)


@pytest.fixture(scope="session")
def nvcc() -> str:
    found = nvidia_tool("nvcc")
    if found is None:
        pytest.skip("not run: no nvcc on PATH or in /usr/local/cuda")
    return found


@pytest.fixture(scope="session")
def cuda_library(nvcc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The backend for one architecture, in the normal suite."""
    return build_library(tmp_path_factory.mktemp("cuda") / "build", nvcc, "80-real")
