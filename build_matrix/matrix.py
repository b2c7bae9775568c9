"""The build matrix as frozen data, read from matrix.toml."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from coli.backends.targets import TEGRA, Capability
from coli.build_matrix.version import Version, parse_version
from coli.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "Architecture",
    "Axis",
    "Bounds",
    "Cell",
    "Matrix",
    "Rule",
    "load_matrix",
    "parse_cell",
    "read_matrix",
]

_FILE = Path(__file__).with_name("matrix.toml")
_CPU_CELL = re.compile(r"cpu-(portable|x86-64-v3|x86-64-v4|neon)", re.ASCII)
_TARGET = r"(?:sm|compute)_\d{1,3}[af]?"
_CUDA_CELL = re.compile(
    rf"cuda(\d{{1,2}}\.\d{{1,2}})-(portable|native|{_TARGET}(?:\+{_TARGET}){{0,31}})-(tc|notc)-(generic|deepgemm)",
    re.ASCII,
)


@dataclass(frozen=True)
class Axis:
    """One thing a user may set."""

    name: str
    default: str
    values: str
    reason: str


@dataclass(frozen=True)
class Rule:
    """Why something is refused or warned about, and what to do."""

    id: str
    reason: str
    fix: str


@dataclass(frozen=True)
class Architecture:
    """One architecture of NVIDIA's: ``number`` 86 is sm_86. ``forms`` maps "", "a", "f" to the first toolkit."""

    number: int
    forms: Mapping[str, Version]
    dropped: Version | None
    renamed: int | None
    chips: str
    generation: str

    @property
    def capability(self) -> tuple[int, int]:
        """Return (8, 6) for sm_86."""
        return divmod(self.number, 10)

    @property
    def tegra(self) -> bool:
        """Tell whether it is a system on a chip; the loader's gates ask the same table."""
        return Capability(*self.capability) in TEGRA


@dataclass(frozen=True)
class Cell:
    """One library that can be built. CPU cells have a ``level``, CUDA cells the other fields."""

    id: str
    kind: str
    level: str | None = None
    toolkit: Version | None = None
    arch: str | None = None
    tensor_cores: bool = False
    flavour: str = "generic"
    tags: tuple[str, ...] = ()
    machines: tuple[str, ...] = ("x86_64", "aarch64")
    refused_by: str | None = None


@dataclass(frozen=True)
class Bounds:
    """Newest major versions of host compilers, and where that is said."""

    gcc: int
    clang: int
    source: str


@dataclass(frozen=True)
class Matrix:
    """All of matrix.toml."""

    axes: tuple[Axis, ...]
    architectures: Mapping[int, Architecture]
    old_architectures: tuple[int, ...]
    minimum_arch: int
    portable_machine_code: tuple[int, ...]
    portable_ptx: tuple[int, ...]
    rules: Mapping[str, Rule]
    cells: Mapping[str, Cell]
    host_bounds: tuple[tuple[Version, int, int], ...]
    minimum_compiler: Mapping[str, int]
    deepgemm_minimum_compiler: Mapping[str, int]
    glibc_bounds: tuple[tuple[Version, Version], ...]
    minimum_cublas: Version
    deepgemm_arch: str
    deepgemm_minimum: Version
    deepgemm_api: str
    deepgemm_parameters: tuple[int, int]
    deepgemm_source: str
    cuda_standard: int
    minimum_cmake: Version
    minimum_cmake_for_f: Version

    def rule(self, id: str) -> Rule:
        """Return a rule by its id."""
        return self.rules[id]

    def bounds_for(self, toolkit: Version) -> Bounds:
        """Return the compiler bounds of this table, for toolkits whose own header cannot be read."""
        gcc, clang = next(
            ((gcc, clang) for since, gcc, clang in reversed(self.host_bounds) if since <= toolkit.release),
            self.host_bounds[0][1:],
        )
        return Bounds(gcc, clang, "table of matrix.toml")

    def glibc_for(self, toolkit: Version) -> Version:
        """Return the newest C library that headers of this toolkit expect, by the table."""
        return next(
            (glibc for since, glibc in reversed(self.glibc_bounds) if since <= toolkit.release),
            self.glibc_bounds[0][1],
        )


def parse_cell(text: str) -> Cell:
    """Read a cell id, listed or not. Raises UsageError."""
    if found := _CPU_CELL.fullmatch(text):
        return Cell(text, "cpu", level=found[1])
    if (found := _CUDA_CELL.fullmatch(text)) and (toolkit := parse_version(found[1])):
        return Cell(text, "cuda", toolkit=toolkit, arch=found[2], tensor_cores=found[3] == "tc", flavour=found[4])
    raise UsageError(
        f"cell {text[:100]!r}",
        "a cell id must read as the matrix writes it",
        expected="cpu-x86-64-v4 or cuda13.0-portable-tc-generic: toolkit, architecture, tensor cores, flavour",
        fix="`coli build --list` shows the cells",
        code="build.cell-unknown",
    )


@lru_cache(maxsize=1)
def load_matrix() -> Matrix:
    """Read the matrix that the package carries."""
    return read_matrix(_FILE.read_text("utf-8"))


def read_matrix(text: str) -> Matrix:
    """Read a matrix from TOML. It is our own file: a mistake in it raises ValueError or KeyError."""
    data = tomllib.loads(text)
    if data["schema"] != 1:
        raise ValueError(f"matrix.toml: schema {data['schema']!r}, expected 1")
    rules = {row["id"]: Rule(row["id"], row["reason"], row["fix"]) for row in data["rule"]}
    architectures = {row["number"]: _architecture(row) for row in data["architecture"]}
    cells = [_cell(row) for row in data["cell"]]
    for cell in cells:
        if cell.refused_by is not None and cell.refused_by not in rules:
            raise ValueError(f"matrix.toml: cell {cell.id}: no rule {cell.refused_by}")
    for kind, rows in (("rule", data["rule"]), ("cell", cells), ("architecture", data["architecture"])):
        unique = {"rule": rules, "cell": {cell.id for cell in cells}, "architecture": architectures}[kind]
        if len(unique) != len(rows):
            raise ValueError(f"matrix.toml: a {kind} is there twice")
    host, deepgemm = data["host_compiler"], data["deepgemm"]
    return Matrix(
        axes=tuple(Axis(row["name"], row["default"], row["values"], row["reason"]) for row in data["axis"]),
        architectures=architectures,
        old_architectures=tuple(data["old_architectures"]["numbers"]),
        minimum_arch=data["backend"]["minimum_arch"],
        portable_machine_code=tuple(data["portable"]["machine_code"]),
        portable_ptx=tuple(data["portable"]["ptx"]),
        rules=rules,
        cells={cell.id: cell for cell in cells},
        host_bounds=tuple((_version(row["from"]), row["gcc"], row["clang"]) for row in host["bounds"]),
        minimum_compiler={"gcc": host["minimum_gcc"], "clang": host["minimum_clang"]},
        deepgemm_minimum_compiler={"gcc": host["deepgemm_minimum_gcc"], "clang": host["deepgemm_minimum_clang"]},
        glibc_bounds=tuple((_version(row["from"]), _version(row["glibc"])) for row in data["glibc"]["bounds"]),
        minimum_cublas=_version(data["tensor_cores"]["minimum_cublas"]),
        deepgemm_arch=deepgemm["arch"],
        deepgemm_minimum=_version(deepgemm["minimum"]),
        deepgemm_api=deepgemm["api"],
        deepgemm_parameters=(deepgemm["template_parameters"], deepgemm["parameters"]),
        deepgemm_source=deepgemm["source"],
        cuda_standard=data["standard"]["cuda"],
        minimum_cmake=_version(data["cmake"]["minimum"]),
        minimum_cmake_for_f=_version(data["cmake"]["minimum_for_f"]),
    )


def _version(text: str) -> Version:
    version = parse_version(text)
    if version is None:
        raise ValueError(f"matrix.toml: {text!r} is not a version")
    return version


def _architecture(row: Mapping[str, Any]) -> Architecture:
    forms = {"": _version(row["minimum"])}
    forms.update({suffix: _version(row[suffix]) for suffix in ("a", "f") if suffix in row})
    return Architecture(
        number=row["number"],
        forms=forms,
        dropped=_version(row["dropped"]) if "dropped" in row else None,
        renamed=row.get("renamed"),
        chips=row["chips"],
        generation=row["generation"],
    )


def _cell(row: Mapping[str, Any]) -> Cell:
    plain = parse_cell(row["id"])
    return Cell(
        **{
            **plain.__dict__,
            "tags": tuple(row["tags"]),
            "machines": tuple(row.get("machines", plain.machines)),
            "refused_by": row.get("refused_by"),
        }
    )
