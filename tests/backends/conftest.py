"""Fixtures of the backends' tests: a C compiler, stub backends, a canary, the CPU backends and the replay driver."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from building import Build, build_backends, build_driver, find_libraries
from fake_machine import build_fake_driver
from stubs import SOURCE, hand_canary, write_manifest

from coli.backends.abi import HEADER


@pytest.fixture(scope="session")
def compiler() -> str:
    """Return a C compiler."""
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("not run: no C compiler for the stub backends")
    return found


@pytest.fixture(scope="session")
def build_stub(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return build(name, *switches, link=()) -> path of a stub with a manifest; equal requests share one build."""
    built: dict[tuple[Any, ...], Path] = {}

    def build(name: str = "libcoli_cpu_portable.so", *switches: str, link: tuple[str, ...] = ()) -> Path:
        key = (name, switches, link)
        if key not in built:
            path = tmp_path_factory.mktemp("stub") / name
            path.parent.chmod(0o755)
            command = [compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", f"-I{HEADER.parent}"]
            command += [f"-D{switch}" for switch in switches]
            subprocess.run([*command, str(SOURCE), "-o", str(path), *link], check=True)
            path.chmod(0o755)
            write_manifest(path)
            built[key] = path
        return built[key]

    return build


@pytest.fixture(scope="session")
def stub_canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a canary file that a sound stub passes."""
    path = tmp_path_factory.mktemp("canary") / "canary.bin"
    path.write_bytes(hand_canary())
    return path


@pytest.fixture(scope="session")
def fake_driver(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a fake libcuda.so.1 and libnvidia-ml.so.1, to be laid out by fake_machine.make_machine."""
    return build_fake_driver(compiler, tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def native_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The levels of this machine's architecture, as installed; built here where the package has none."""
    import coli.backends

    installed = find_libraries(Path(coli.backends.__path__[0]) / "lib")
    folder = tmp_path_factory.mktemp("native")
    if not installed:
        return build_backends(folder)
    return Build(installed, build_driver(folder, "c++", (), ()))


@pytest.fixture(scope="session")
def recorded(native_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vector file of all calls with the portable library's outputs."""
    import cases

    path = tmp_path_factory.mktemp("vectors") / "all.bin"
    path.write_bytes(cases.record(native_build.libraries["portable"]))
    return path
