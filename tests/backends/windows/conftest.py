"""Fixtures: the cross compiler, the DLLs, and a Windows on which Python runs coli's own loader."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from building import Build, build_backends
from mingw import COMPILER, CROSS, PREFIX, require
from stubs import SOURCE, write_manifest
from wine import SERVER, WINE, Wine, fetch_python

from coli.backends.abi import HEADER


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
    """Return python.exe in that Windows, with coli and the two packages that the loader needs in C:\\site."""
    cache: Any = request.config.cache
    try:
        source = fetch_python(Path(cache.mkdir("windows")))
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"not run: no CPython for Windows: {error}")
    shutil.copytree(source, wine.drive / "python")
    import archspec
    import platformdirs

    import coli

    for package in (coli, archspec, platformdirs):
        folder = Path(str(package.__file__)).parent
        ignore = shutil.ignore_patterns("__pycache__", "*.so", "lib", "data" if package is coli else "")
        shutil.copytree(folder, wine.drive / "site" / folder.name, ignore=ignore)
    return wine.drive / "python" / "python.exe"
