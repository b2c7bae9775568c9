"""Stub backends, compiled from one C source with switches, with a manifest each."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coli.backends.abi import HEADER
from coli.backends.canary import Case, MatrixData
from coli.backends.vectors import pack_cases

SOURCE = Path(__file__).with_name("stub") / "stub.c"


@pytest.fixture(scope="session")
def compiler() -> str:
    """Return a C compiler."""
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("not run: no C compiler for the stub backends")
    return found


def write_manifest(library: Path, **changes: Any) -> None:
    """Write a sound manifest beside ``library``, except for ``changes``."""
    fields = {
        "schema": "coli.backend/1",
        "file": library.name,
        "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "name": "stub",
        "kind": "cpu",
        "level": "portable",
        "abi": [1, 0],
        "compiler": "cc",
        "flags": "",
        "sources_sha256": "0" * 64,
        "evidence": "unverified",
    }
    fields.update(changes)
    library.with_name(library.name + ".json").write_text(json.dumps(fields), encoding="utf-8")


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


@dataclass(frozen=True)
class Stub:
    """An opened stub: its table and its counters of live objects."""

    name: str
    address: int
    library: ctypes.CDLL

    def counter(self, name: str) -> int:
        """Return stub_contexts, stub_weights or stub_misorder."""
        return ctypes.c_int64.in_dll(self.library, name).value


def open_stub(path: Path, name: str = "stub") -> Stub:
    """Open a stub in this process."""
    library = ctypes.CDLL(str(path))
    library.coli_backend_query.restype = ctypes.c_void_p
    return Stub(name, library.coli_backend_query(), library)


def floats(*values: float) -> bytes:
    """Return float32 bytes, little-endian."""
    return struct.pack(f"<{len(values)}f", *values)


@pytest.fixture(scope="session")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a canary file of two hand-written calls of ``add``; the stub serves nothing else."""
    cases = [
        Case("add", (MatrixData(1, 3, 0, floats(1, 2, 3)), MatrixData(1, 3, 0, floats(10, 20, 30), floats(11, 22, 33)))),
        Case(
            "add",
            (
                MatrixData(2, 2, 0, floats(0.5, -1, 0, 4)),
                MatrixData(2, 2, 0, floats(0.25, 1, 7, -4), floats(0.75, 0, 7, 0)),
            ),
        ),
    ]
    path = tmp_path_factory.mktemp("canary") / "canary.bin"
    path.write_bytes(pack_cases(cases))
    return path
