"""Write the manifest of one installed backend library beside it: ``<file>.json``, schema ``coli.backend/1``."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ("*.cpp", "*.h", "*.inc", "*.map", "CMakeLists.txt")


def abi_version() -> list[int]:
    """Return [major, minor] as coli_backend.h says."""
    text = (HERE.parent / "abi" / "coli_backend.h").read_text(encoding="utf-8")
    found = dict(re.findall(r"^#define COLI_ABI_(MAJOR|MINOR) (\d+)$", text, re.MULTILINE))
    return [int(found["MAJOR"]), int(found["MINOR"])]


def sources_sha256() -> str:
    """Return the hash of every source of the CPU backends, shared ones too: name, size and bytes, in order of name."""
    files = {
        path
        for folder in (HERE, HERE.parent / "common", HERE.parent / "abi")
        for pattern in SOURCES
        for path in folder.glob(pattern)
    }
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: (path.parent.name, path.name)):
        data = path.read_bytes()
        digest.update(f"{path.parent.name}/{path.name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def manifest(library: Path, *, name: str, level: str, compiler: str, flags: str) -> dict[str, object]:
    """Return the manifest of ``library`` as it lies on disk now."""
    return {
        "schema": "coli.backend/1",
        "file": library.name,
        "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "name": name,
        "kind": "cpu",
        "level": level,
        "abi": abi_version(),
        "compiler": compiler,
        "flags": flags.split(),
        "sources_sha256": sources_sha256(),
        "evidence": "unverified",
    }


def main() -> None:
    """Read the command line and write the manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    for option in ("--name", "--level", "--compiler", "--flags"):
        parser.add_argument(option, required=True)
    parser.add_argument("--destdir", default="", help="what CMake's install puts before every path")
    arguments = parser.parse_args()
    library: Path = arguments.library
    if arguments.destdir:
        library = Path(arguments.destdir) / library.relative_to(library.anchor)
    fields = manifest(
        library, name=arguments.name, level=arguments.level, compiler=arguments.compiler, flags=arguments.flags
    )
    library.with_name(library.name + ".json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
