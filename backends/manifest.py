"""The manifest beside a backend, ``<file>.json``: what it is, and the hash that ties it to the library."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coli.backends.targets import Target, parse_target

__all__ = ["SCHEMA", "Manifest", "ManifestError", "file_sha256", "manifest_path", "read_manifest"]

SCHEMA = "coli.backend/1"
_MAX_BYTES = 1 << 20
_MAX_TARGETS = 256


class ManifestError(ValueError):
    """The manifest cannot be used. ``code`` is ``missing``, ``unreadable``, ``schema`` or ``field``."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Manifest:
    """The fields that the loader uses.

    ``level`` of kind ``cpu`` is normalised (``x86-64-v3``). Kind ``cuda`` has the toolkit's version, the targets of the
    device code, ``flavour_arch``: the target of the kernels that only one device can run (None: no flavour), and
    ``cublaslt``: the major of the library that its products in tensor cores ask for (None: it has none).
    """

    file: str
    sha256: str
    name: str
    kind: str
    level: str
    compiler: str
    evidence: str
    toolkit: tuple[int, int] | None = None
    targets: tuple[Target, ...] = ()
    flavour_arch: Target | None = None
    cublaslt: int | None = None


def manifest_path(library: Path) -> Path:
    """Return where the manifest of ``library`` lies."""
    return library.with_name(library.name + ".json")


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _without_waiting(path: str, flags: int) -> int:
    """Open a path; a FIFO must not make the loader wait for whoever writes into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_manifest(library: Path) -> Manifest:
    """Read and check the manifest of ``library``. Raises ManifestError."""
    path = manifest_path(library)
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ManifestError("unreadable", f"{path.name} is not a regular file")
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise ManifestError("missing", f"{path.name} is not there") from None
    except OSError as error:
        raise ManifestError("unreadable", f"{path.name}: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise ManifestError("unreadable", f"{path.name} is larger than {_MAX_BYTES} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ManifestError("unreadable", f"{path.name} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise ManifestError("schema", f"{path.name} has the schema {found!r}")

    def text(name: str) -> str:
        value: Any = document.get(name)
        if not isinstance(value, str) or not value or len(value) > 1000:
            raise ManifestError("field", f"{path.name}: {name} is {value!r:.60}, expected a text")
        return value

    def target(value: Any, name: str) -> Target:
        try:
            return parse_target(value)
        except (TypeError, ValueError):
            raise ManifestError("field", f"{path.name}: {name} has {value!r:.60}, expected a target") from None

    kind = text("kind")
    toolkit: tuple[int, int] | None = None
    targets: tuple[Target, ...] = ()
    flavour: Target | None = None
    cublaslt: int | None = None
    if kind == "cuda":
        version = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", text("toolkit"))
        if version is None:
            raise ManifestError("field", f"{path.name}: toolkit is {text('toolkit')!r:.60}, expected major.minor")
        toolkit = (int(version[1]), int(version[2]))
        listed = document.get("targets")
        if not isinstance(listed, list) or not 0 < len(listed) <= _MAX_TARGETS:
            raise ManifestError("field", f"{path.name}: targets is {listed!r:.60}, expected a list of targets")
        targets = tuple(target(value, "targets") for value in listed)
        if document.get("flavour_arch") is not None:
            flavour = target(document["flavour_arch"], "flavour_arch")
        cublaslt = document.get("cublaslt")
        if cublaslt is not None and (type(cublaslt) is not int or not 0 < cublaslt < 1000):
            raise ManifestError("field", f"{path.name}: cublaslt is {cublaslt!r:.60}, expected a major version")
    return Manifest(
        file=text("file"),
        sha256=text("sha256").lower(),
        name=text("name"),
        kind=kind,
        level=text("level").replace("_", "-") if kind == "cpu" else "",
        compiler=text("compiler"),
        evidence=text("evidence"),
        toolkit=toolkit,
        targets=targets,
        flavour_arch=flavour,
        cublaslt=cublaslt,
    )
