"""DeepGEMM's headers: what a folder holds, and whether our adapter was written for it.

The adapter (backends/deepgemm/adapter.cuh) fills in every parameter of one template and one function, by place. Sources
of DeepGEMM differ in them, so the declaration itself is the version: its text, without comments and spacing, is hashed.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from coli.backends.files import globbed, is_file
from coli.build_matrix.headers import read_text

__all__ = ["DeepGemm", "probe_deepgemm", "read_api"]

KERNEL = Path("deep_gemm", "impls", "sm120_fp8_fp4_gemm_1d1d.cuh")
_NAME = "sm120_fp8_fp4_gemm_1d1d_impl"
_MAX_FILES = 2000
_OPENING, _CLOSING = "<([{", ">)]}"


@dataclass(frozen=True)
class DeepGemm:
    """Headers below ``include``. ``api`` hashes the declaration, None when it could not be read.

    ``template_parameters`` and ``parameters`` count those of the kernel; ``sha256`` is over the names and bytes of the
    folder deep_gemm: other bytes are another build.
    """

    include: Path
    api: str | None
    template_parameters: int
    parameters: int
    sha256: str


def probe_deepgemm(folder: Path) -> DeepGemm | None:
    """Find and read the headers in a folder: itself, include/ or deep_gemm/include/ below; None without them."""
    places = (folder, folder / "include", folder / "deep_gemm" / "include")
    include = next((place for place in places if is_file(place / KERNEL)), None)
    if include is None:
        return None
    api, templates, parameters = read_api(read_text(include / KERNEL))
    return DeepGemm(include, api, templates, parameters, _tree_sha256(include / "deep_gemm"))


def read_api(text: str) -> tuple[str | None, int, int]:
    """Return the hash of the kernel's declaration in ``text`` and how many parameters template and function have."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    name = re.search(rf"\b{_NAME}\s*\(", plain)
    start = plain.rfind("template", 0, name.start()) if name else -1
    if name is None or start < 0:
        return None, 0, 0
    templates = _list_at(plain, plain.find("<", start))
    parameters = _list_at(plain, name.end() - 1)
    if templates is None or parameters is None:
        return None, 0, 0
    written = "template<" + ",".join(templates) + f">{_NAME}(" + ",".join(parameters) + ")"
    return hashlib.sha256(written.encode()).hexdigest(), len(templates), len(parameters)


def _list_at(text: str, at: int) -> list[str] | None:
    """Return the parts of the list whose bracket opens at ``at``, without needless spaces; None when it never ends."""
    parts, depth, begin = [], 0, at + 1
    for index in range(at, len(text)):
        character = text[index]
        depth += (character in _OPENING) - (character in _CLOSING)
        if (depth == 1 and character == ",") or depth == 0:
            parts.append(re.sub(r"\s*(\W)\s*", r"\1", " ".join(text[begin:index].split())))
            begin = index + 1
        if depth == 0:
            return [part for part in parts if part]
    return None


def _tree_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in globbed(folder, "**/*.cuh")[:_MAX_FILES]:
        data = read_text(path).encode()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
