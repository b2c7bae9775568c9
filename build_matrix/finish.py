"""Audit a fresh library, try it where this machine can, and write the manifest that ties the evidence to its bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from coli.backends.abi import ABI_MAJOR, ABI_MINOR
from coli.backends.candidates import Search
from coli.backends.cpu_level import cpu_level
from coli.backends.files import globbed
from coli.backends.loader import Machine, examine
from coli.backends.manifest import SCHEMA, ManifestError, file_sha256, manifest_path, read_manifest
from coli.backends.targets import parse_target
from coli.backends.trace import Candidate
from coli.build_matrix.audit import audit_library
from coli.build_matrix.matrix import Cell
from coli.build_matrix.plan import Plan
from coli.errors import ColiError

__all__ = ["AUDITED", "evidence_of", "finish_library"]

AUDITED = "compiled and audited"


def finish_library(plan: Plan, library: Path, sources_sha256: str) -> None:
    """Write the manifest beside ``library``. Raises ColiError with everything that the audit found."""
    recipe = plan.recipe
    own = None if recipe is None or recipe.flavour_arch is None else parse_target(f"sm_{recipe.flavour_arch}")
    needs = () if recipe is None or recipe.shared_cudart is None else (recipe.shared_cudart,)
    problems = audit_library(library, None if recipe is None else recipe.targets, own, needs=needs)
    if problems:
        raise ColiError(
            str(library),
            "the library that was built is not the one that was asked for",
            observed="; ".join(problems),
            fix=f"report this with the log of {plan.cell.id}",
            code="build.audit",
        )
    document: dict[str, object] = {
        "schema": SCHEMA,
        "file": library.name,
        "sha256": file_sha256(library),
        "name": _table_name(plan),
        "kind": plan.cell.kind,
        "abi": [ABI_MAJOR, ABI_MINOR],
        "cell": plan.cell.id,
        "compiler": f"{plan.compiler.family} {plan.compiler.version.text}",
        "arguments": [_without_paths(argument) for argument in plan.arguments],
        "sources_sha256": sources_sha256,
        "evidence": AUDITED,
    }
    if recipe is None:
        document["level"] = (plan.cell.level or "").replace("-", "_")
    else:
        document["toolkit"] = recipe.toolkit.version.short if recipe.toolkit.version else ""
        document["targets"] = [target.name for target in recipe.all_targets]
        document["flavour_arch"] = f"sm_{recipe.flavour_arch}" if recipe.flavour_arch else None
        document["no_tc"] = recipe.no_tc
        cublas = recipe.toolkit.cublas
        document["cublaslt"] = None if recipe.no_tc or cublas is None else cublas.major
        document["shared_cudart"] = recipe.shared_cudart
        document["unpinned"] = list(recipe.unpinned)
    _write(library, document)
    ran = _try(plan, library)
    if ran is not None:
        _write(library, document | {"evidence": ran})


def evidence_of(cell: Cell, data_folder: Path) -> str:
    """Return the evidence of the installed library of a cell; it counts only for the bytes that it was given for."""
    folder = data_folder / "backends" / cell.id
    for manifest_file in globbed(folder, "*.json"):
        library = manifest_file.with_suffix("")
        try:
            manifest = read_manifest(library)
            same = file_sha256(library) == manifest.sha256
        except (ManifestError, OSError) as error:
            return f"unverified: {error}"
        return manifest.evidence if same else "unverified: the library is not that of its manifest"
    return "not built"


def _try(plan: Plan, library: Path) -> str | None:
    """Run every gate and the canary; return the evidence, None where this machine cannot run the library."""
    search = Search()
    machine = Machine(cpu_level(), search)
    trace = examine(Candidate(library, _table_name(plan), "build"), machine, search)
    return f"ran on {machine.cpu.best}: every bit of the canary" if trace.accepted and plan.recipe is None else None


def _table_name(plan: Plan) -> str:
    if plan.recipe is None:
        return plan.cell.id
    if plan.recipe.flavour_arch is None:
        return "cuda-generic"
    return f"cuda-deepgemm-sm{parse_target(f'sm_{plan.recipe.flavour_arch}').number}"


def _without_paths(argument: str) -> str:
    """Keep what was decided, not where this machine keeps its tools: two machines write the same manifest."""
    return re.sub(r"=.*[/\\]([^/\\]+)$", r"=\1", argument)


def _write(library: Path, document: dict[str, object]) -> None:
    path = manifest_path(library)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    fresh.chmod(0o644)  # whatever the umask: nobody else may write what the loader believes
    fresh.replace(path)
