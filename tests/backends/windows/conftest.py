"""Fixtures: the cross compiler, the DLLs, and a Windows on which Python runs coli's own loader."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from building import ROOT, Build, build_backends
from fetched import fetch_numpy, fetch_python
from mingw import COMPILER, CROSS, PREFIX, require
from stubs import SOURCE, write_manifest
from wine import SERVER, WINE, Wine

from coli.backends.abi import HEADER

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def dlls(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return the CPU backends for Windows by level, and the replay driver."""
    require(COMPILER)
    return build_backends(tmp_path_factory.mktemp("mingw"), *CROSS, compiler=COMPILER, flags=("-static",))


@pytest.fixture(scope="session")
def build_dll(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return build(*switches, link=()) -> path of a stub as a DLL with a manifest."""
    compiler = require(f"{PREFIX}gcc-posix")

    def build(*switches: str, link: tuple[str, ...] = ()) -> Path:
        path = tmp_path_factory.mktemp("stub") / "coli_cpu_portable.dll"
        command = [compiler, "-std=gnu11", "-O1", "-shared", "-static", "-s", f"-I{HEADER.parent}"]
        command += [f"-D{switch}" for switch in switches]
        subprocess.run([*command, str(SOURCE), "-o", str(path), *link], check=True)
        path.chmod(0o644)
        write_manifest(path)
        return path

    return build


@pytest.fixture(scope="session")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wine]:
    """Return a fresh Windows; what runs in it ends with the session, and its 700 MB go."""
    for tool in (WINE, SERVER):
        require(tool)
    made = Wine(tmp_path_factory.mktemp("wine"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def windows_python(wine: Wine, request: pytest.FixtureRequest) -> Path:
    """Return the folder of CPython for Windows; C:\\site has coli, numpy and what the loader needs."""
    cache: Any = request.config.cache
    folder = Path(cache.mkdir("windows"))
    try:
        python, numpy = fetch_python(folder), fetch_numpy(folder)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"not run: no CPython for Windows: {error}")
    site = wine.drive / "site"
    shutil.copytree(numpy, site)
    import archspec
    import platformdirs

    import coli

    for package in (coli, archspec, platformdirs):
        source = Path(str(package.__file__)).parent
        ignore = shutil.ignore_patterns("__pycache__", "*.so", "lib", *(["data"] if package is coli else []))
        shutil.copytree(source, site / source.name, ignore=ignore)
    for script in ("on_windows.py", "host_on_windows.py"):
        shutil.copyfile(HERE / script, site / script)
    return python


@pytest.fixture(scope="session")
def host(wine: Wine, windows_python: Path) -> Path:
    """Return the host extension, cross-compiled with the flags of its CMake project, where coli imports it from."""
    import pybind11

    sources = [ROOT / "backends" / "host" / name for name in ("host.cpp", "state.cpp", "exact.cpp")]
    target = wine.drive / "site" / "coli" / "backends" / "_host.cp313-win_amd64.pyd"
    flags = ["-std=c++17", "-O1", "-fvisibility=hidden", "-ffp-contract=off", "-fno-fast-math"]
    includes = [pybind11.get_include(), windows_python / "include", HEADER.parent]
    command = [require(COMPILER), *flags, "-shared", "-static", "-s", *(f"-I{folder}" for folder in includes)]
    subprocess.run([*command, *sources, f"-L{windows_python / 'libs'}", "-lpython313", "-o", target], check=True)
    return target
