"""Facts that the headers of a CUDA toolkit tell: versions, and the compilers and C libraries they accept."""

from __future__ import annotations

import re
from pathlib import Path

from coli.build_matrix.paths import is_file
from coli.build_matrix.version import Version

__all__ = ["cublas_version", "cuda_version", "newest_compilers", "newest_glibc", "read_text"]

_MAX_BYTES = 4 << 20


def read_text(path: Path) -> str:
    """Return the text of a header, at most 4 MiB; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def cuda_version(include: Path) -> Version | None:
    """Return CUDA_VERSION of cuda.h."""
    number = _define(read_text(include / "cuda.h"), "CUDA_VERSION")
    return Version(number // 1000, number % 1000 // 10) if number else None


def cublas_version(include: Path) -> Version | None:
    """Return CUBLAS_VER of cublas_api.h, None when cublasLt.h, which is what is needed, is not there."""
    if not is_file(include / "cublasLt.h"):
        return None
    text = read_text(include / "cublas_api.h")
    major, minor = _define(text, "CUBLAS_VER_MAJOR"), _define(text, "CUBLAS_VER_MINOR")
    if major is None or minor is None:
        return None
    return Version(major, minor, _define(text, "CUBLAS_VER_PATCH") or 0)


def newest_compilers(text: str) -> tuple[int | None, int | None]:
    """Read the newest major versions of gcc and clang in the text of crt/host_config.h."""
    gcc = clang = None
    condition = ""
    for line in text.splitlines():
        if re.match(r"\s*#\s*(?:el)?if", line):
            condition = line
        elif "unsupported GNU version" in line and gcc is None:
            gcc = _limit(condition, "__GNUC__")
        elif "unsupported clang version" in line and clang is None:
            clang = _limit(condition, "__clang_major__")
    return gcc, clang


def newest_glibc(text: str) -> Version | None:
    """Read the newest C library that the text of crt/math_functions.h names; headers that know of none expect 2.40."""
    if not text:
        return None
    named = re.findall(r"__(?:GNUC|GLIBC)_PREREQ\s*\(\s*2\s*,\s*(\d{1,3})\s*\)", text)
    return Version(2, max([40, *map(int, named)]))


def _limit(condition: str, macro: str) -> int | None:
    found = re.search(rf"{macro}\s*(>=?)\s*(\d{{1,3}})", condition)
    return int(found[2]) - (found[1] == ">=") if found else None


def _define(text: str, name: str) -> int | None:
    found = re.search(rf"^[ \t]*#[ \t]*define[ \t]+{name}[ \t]+(\d{{1,7}})\b", text, re.MULTILINE)
    return int(found[1]) if found else None
