"""Host compilers of a machine, the bounds a toolkit sets for them, and the C library. Choosing is a pure function."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from coli.backends.files import globbed, is_file, is_folder, real_path
from coli.build_matrix.matrix import Bounds, Matrix
from coli.build_matrix.tool import ask
from coli.build_matrix.toolkits import Places, Toolkit
from coli.build_matrix.version import Version

__all__ = [
    "HostCompiler",
    "accepted",
    "cxx_name",
    "find_compilers",
    "glibc_known_to",
    "host_bounds",
    "newest_accepted",
    "parse_compiler_version",
    "probe_compiler",
    "probe_glibc",
]

_NAME = r"(?:{machine}-(?:[\w.]+-)?linux-gnu-)?(?:g\+\+|clang\+\+|clang|c\+\+)(?:-\d{{1,2}}(?:\.\d{{1,2}})?)?"
_MAX_COMPILERS = 64


@dataclass(frozen=True)
class HostCompiler:
    """One compiler. ``names``: all names it has on PATH; ``default``: g++ or c++ is one of them."""

    path: Path
    names: tuple[str, ...]
    family: str
    version: Version
    default: bool

    @property
    def label(self) -> str:
        """Return `g++-13 (gcc 13.3)`."""
        return f"{self.path.name} ({self.family} {self.version.text})"


def find_compilers(places: Places, named: str | None = None) -> tuple[HostCompiler, ...]:
    """List all C++ compilers of PATH and of Red Hat's toolsets, each once; ``named``: a path that NVCC_CCBIN gives."""
    name = re.compile(_NAME.format(machine=re.escape(places.machine)), re.ASCII)
    folders = places.path_folders()
    folders += globbed(places.locate("/opt/rh"), "gcc-toolset-*/root/usr/bin")
    by_file: dict[Path, list[Path]] = {}
    unique: dict[Path, Path] = {}
    for folder in folders:
        unique.setdefault(real_path(folder), folder)
    for folder in unique.values():
        try:
            names = sorted(entry.name for entry in folder.iterdir() if name.fullmatch(entry.name))
        except OSError:
            continue
        for entry in names:
            by_file.setdefault(real_path(folder / entry), []).append(folder / entry)
    if named and named.startswith("/"):  # what a relative one names depends on where one stands
        path = places.locate(named)
        path = path / "g++" if is_folder(path) else path.with_name(cxx_name(path.name))
        by_file.setdefault(real_path(path), []).append(path)
    found: dict[Path, HostCompiler] = {}
    for real, paths in list(by_file.items())[:_MAX_COMPILERS]:
        if "cache" in real.name:  # ccache under the compiler's name: the compiler itself is further on
            continue
        paths.sort(key=lambda path: ("++" not in path.name, path.name.startswith("c++"), path.name.count("-")))
        compiler = probe_compiler(paths[0], places)
        if compiler is not None:
            every = tuple(dict.fromkeys(path.name for path in paths))
            found[real] = replace(compiler, names=every, default=bool({"g++", "c++"} & set(every)))
    return tuple(found.values())


def cxx_name(name: str) -> str:
    """Return the name of the C++ compiler beside a C compiler: gcc links no C++ library, and nvcc's users name it."""
    return re.sub(r"(^|-)gcc(?=-\d|$)", r"\1g++", name)


def probe_compiler(path: Path, places: Places) -> HostCompiler | None:
    """Ask one compiler for its version, None when it gives none."""
    answer = ask([path, "--version"], places.environment)
    known = parse_compiler_version(answer.output) if answer.ok else None
    if known is None:
        return None
    return HostCompiler(path, (path.name,), known[0], known[1], path.name in ("g++", "c++"))


def parse_compiler_version(text: str) -> tuple[str, Version] | None:
    """Read family (gcc or clang) and version from what --version prints."""
    head = text[:2000]
    line = next((line for line in head.splitlines() if line.strip()), "")
    if found := re.search(r"\bclang version (\d+)\.(\d+)(?:\.(\d+))?", line):
        return "clang", Version(int(found[1]), int(found[2]), int(found[3] or 0))
    bare = re.sub(r"\([^()]*\)", " ", line)  # packagers' versions stand in parentheses
    found = re.search(r"\s(\d+)\.(\d+)(?:\.(\d+))?(?=\s|$|-)", bare)
    # The foundation's other programs name their licence; gcc does not.
    if found and ("Free Software Foundation" in head or "(GCC)" in line) and "License GPL" not in head:
        return "gcc", Version(int(found[1]), int(found[2]), int(found[3] or 0))
    return None


def host_bounds(toolkit: Toolkit, matrix: Matrix) -> Bounds:
    """Return the toolkit's own bounds; what its header does not say comes from the matrix."""
    table = matrix.bounds_for(toolkit.version or Version(0, 0))
    if toolkit.newest_gcc is None or toolkit.include is None:
        return table
    newest_clang = table.clang if toolkit.newest_clang is None else toolkit.newest_clang
    return Bounds(toolkit.newest_gcc, newest_clang, str(toolkit.include / "crt" / "host_config.h"))


def accepted(compiler: HostCompiler, bounds: Bounds, minimum: Mapping[str, int]) -> str | None:
    """Return None when the toolkit and we accept ``compiler``, else why not."""
    newest = bounds.gcc if compiler.family == "gcc" else bounds.clang
    if compiler.version.major > newest:
        return (
            f"{compiler.family} {compiler.version.text} is newer than {newest}, the newest that {bounds.source} allows"
        )
    if compiler.version.major < minimum[compiler.family]:
        return f"{compiler.family} {compiler.version.text} is older than {minimum[compiler.family]}"
    return None


def newest_accepted(
    compilers: Iterable[HostCompiler], bounds: Bounds, minimum: Mapping[str, int]
) -> HostCompiler | None:
    """Choose the newest gcc that is accepted, else the newest clang; of equals the default one."""
    legal = [compiler for compiler in compilers if accepted(compiler, bounds, minimum) is None]
    return max(legal, key=lambda one: (one.family == "gcc", one.version, one.default), default=None)


def probe_glibc(places: Places) -> Version | None:
    """Ask ldd for the version of the C library, None when it is another or says nothing."""
    for folder in places.path_folders():
        ldd = folder / "ldd"
        if is_file(ldd):
            answer = ask([ldd, "--version"], places.environment)
            line = next(iter(answer.output.splitlines()), "")
            found = (
                re.search(r"(?<!\d)(\d{1,6})\.(\d{1,6})\s*$", line)
                if "GLIBC" in line.upper() or "GNU LIBC" in line.upper()
                else None
            )
            return Version(int(found[1]), int(found[2])) if found else None
    return None


def glibc_known_to(toolkit: Toolkit, matrix: Matrix) -> Version:
    """Return the newest C library whose maths functions the toolkit's headers expect.

    From 2.41 on glibc declares sinpi, cospi and others, from 2.42 rsqrt, with an exception specification that clashes
    with CUDA's own declarations. Headers that know of it name the release.
    """
    return toolkit.newest_glibc or matrix.glibc_for(toolkit.version or Version(0, 0))
