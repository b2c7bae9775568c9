"""Stub backends for tests: compiled from one C source with switches, with a manifest each, opened in this process."""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coli.backends.vectors import Case, Matrix, write_vectors

SOURCE = Path(__file__).with_name("stub") / "stub.c"


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


def hand_canary() -> bytes:
    """Return a canary file of two hand-written calls of ``add``, which the stub serves."""
    cases = [
        Case("add", (Matrix(0, 1, 3, floats(1, 2, 3)), Matrix(0, 1, 3, floats(10, 20, 30), floats(11, 22, 33)))),
        Case(
            "add",
            (
                Matrix(0, 2, 2, floats(0.5, -1, 0, 4)),
                Matrix(0, 2, 2, floats(0.25, 1, 7, -4), floats(0.75, 0, 7, 0)),
            ),
        ),
    ]
    return write_vectors(cases)
