"""What CMake is asked for one cell: the same shape for a CPU level and for a CUDA library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coli.backends.manifest import file_sha256
from coli.build_matrix.compilers import HostCompiler
from coli.build_matrix.matrix import Cell
from coli.build_matrix.recipe import NOT_OURS, Recipe

__all__ = ["Plan", "combined_sha256", "plan_cpu", "plan_cuda", "sources_of"]

_SOURCE_SUFFIXES = frozenset({".cpp", ".h", ".inc", ".map", ".cu", ".cuh", ".txt"})
_SHARED_SOURCES = ("abi", "common", "cpu")  # CUDA includes coli_math.h and the shared checks


@dataclass(frozen=True)
class Plan:
    """One build. ``identity``: what makes it another build; ``environment``: variables to set, or None to unset."""

    cell: Cell
    source: Path
    arguments: tuple[str, ...]
    target: str
    library: str
    identity: Mapping[str, object]
    compiler: HostCompiler
    environment: Mapping[str, str | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    recipe: Recipe | None = None

    @property
    def key(self) -> str:
        """Return the hash of the identity: another key is another build, and shares no object with this one."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()


def plan_cpu(cell: Cell, compiler: HostCompiler, backends: Path) -> Plan:
    """Plan a CPU level; ``backends`` is the folder that holds cpu/, cuda/ and abi/."""
    level = (cell.level or "").replace("-", "_")
    return Plan(
        cell=cell,
        source=backends / "cpu",
        arguments=("-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_CXX_COMPILER={compiler.path}"),
        target=f"coli_cpu_{level}",
        library=f"libcoli_cpu_{level}.so",
        identity={
            "cell": cell.id,
            "host_compiler": [str(compiler.path), compiler.family, compiler.version.text],
            **_found_here(backends / "cpu", compiler.path),
        },
        compiler=compiler,
        environment=dict.fromkeys(NOT_OURS),
        notes=(f"host compiler: {compiler.label}",),
    )


def plan_cuda(recipe: Recipe, backends: Path) -> Plan:
    """Plan a CUDA cell from its recipe."""
    return Plan(
        cell=recipe.cell,
        source=backends / "cuda",
        arguments=recipe.cmake_arguments(),
        target="coli_cuda",
        library="libcoli_cuda_dg.so" if recipe.cell.flavour == "deepgemm" else "libcoli_cuda.so",
        identity={
            **recipe.identity(),
            **_found_here(backends / "cuda", recipe.host_compiler.path, recipe.nvcc),
        },
        compiler=recipe.host_compiler,
        environment=recipe.environment_changes(),
        notes=recipe.notes,
        warnings=recipe.warnings,
        recipe=recipe,
    )


def _found_here(source: Path, *compilers: Path) -> dict[str, object]:
    """Return what no flag says: which sources these are, and the compilers' bytes (an update may keep its version)."""
    return {
        "source": str(source),
        "abi": _tree_sha256(source.parent / "abi"),
        "compilers": [file_sha256(path) if path.is_file() else None for path in compilers],
    }


def sources_of(plan: Plan) -> dict[str, str]:
    """Return every source that the plan's library may be made from, by its absolute path, with its sha256."""
    backends = plan.source.parent
    own = ("deepgemm",) if plan.cell.flavour == "deepgemm" else ()
    folders = dict.fromkeys((*(backends / name for name in (*_SHARED_SOURCES, *own)), plan.source))
    return {
        str(path): file_sha256(path) for folder in folders if folder.is_dir() for path in _sources_in(folder)
    }


def combined_sha256(plan: Plan, sources: Mapping[str, str]) -> str:
    """Return one sha256 for what ``sources_of`` returned, the same wherever the sources lie."""
    digest = hashlib.sha256()
    for path, sha256 in sources.items():
        digest.update(f"{Path(path).relative_to(plan.source.parent).as_posix()}\0{sha256}\0".encode())
    return digest.hexdigest()


def _tree_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in _sources_in(folder):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{file_sha256(path)}\0".encode())
    return digest.hexdigest()


def _sources_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in _SOURCE_SUFFIXES and path.is_file())
