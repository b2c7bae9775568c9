"""Which cells a build makes, and each of them from decision to installed library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coli.build_matrix.compilers import newest_accepted
from coli.build_matrix.decide import Facts, decide_cell, decide_cells
from coli.build_matrix.driver import Built, Failed, build
from coli.build_matrix.matrix import Bounds, Cell, Matrix, parse_cell
from coli.build_matrix.plan import Plan, plan_cpu, plan_cuda
from coli.build_matrix.recipe import Recipe, Refusal
from coli.build_matrix.request import Request, for_cell
from coli.build_matrix.tools import Tools
from coli.build_matrix.version import Version
from coli.build_matrix.wheels import Download

__all__ = [
    "Outcome",
    "Refused",
    "build_all",
    "cells_of_machine",
    "decide_downloads",
    "names_deepgemm",
    "plan_cells",
    "tensor_core_toolkits",
    "wants_cuda",
]


@dataclass(frozen=True)
class Refused:
    """A cell that is not built, and why."""

    cell: str
    refusal: Refusal


Outcome = Built | Failed | Refused

_ENDED_BY_A_DOWNLOAD = (
    "toolkit-missing",
    "toolkit-incomplete",
    "tensor-cores-need-cublaslt",
    "deepgemm-needs-headers",
)
_NO_BOUNDS = Bounds(gcc=1000, clang=1000, source="CPU libraries take any newer compiler")


def cells_of_machine(matrix: Matrix, machine: str, kind: str) -> tuple[Cell, ...]:
    """Return the cells of a kind that this machine can build."""
    return tuple(cell for cell in matrix.cells.values() if cell.kind == kind and machine in cell.machines)


def wants_cuda(named: Sequence[str]) -> bool:
    """Tell whether any toolkit matters to these cells; none named means the default ones."""
    return not named or any(parse_cell(text).kind == "cuda" for text in named)


def names_deepgemm(named: Sequence[str], *, every: bool) -> bool:
    """Tell whether a cell with DeepGEMM's kernels is among these, or among all of the matrix (``every``)."""
    return every or any(parse_cell(text).flavour == "deepgemm" for text in named)


def tensor_core_toolkits(named: Sequence[str], matrix: Matrix, *, every: bool) -> frozenset[Version]:
    """Return the toolkits of the cells with cuBLASLt block scaling among these, or among all (``every``)."""
    cells = list(matrix.cells.values()) if every else [parse_cell(text) for text in named]
    return frozenset(cell.toolkit for cell in cells if cell.tensor_cores and cell.toolkit is not None)


def plan_cells(
    named: Sequence[str], request: Request, facts: Facts, matrix: Matrix, machine: str, backends: Path, *, every: bool
) -> tuple[Plan | Refused, ...]:
    """Decide each cell: those that are named, all of the matrix (``every``), or the default ones of this machine.

    The default is every CPU level, the CUDA library that the request describes, and DeepGEMM's when it is asked for or
    a card is there that it is for.
    """
    if not named and not every:
        cells = cells_of_machine(matrix, machine, "cpu")
        cuda = [_planned("cuda", decided, backends) for decided in decide_cells(request, facts, matrix)]
        return (*(_plan_cpu(cell, facts, matrix, backends) for cell in cells), *cuda)
    planned: list[Plan | Refused] = []
    for cell in [parse_cell(text) for text in named] or list(matrix.cells.values()):
        if cell.kind == "cpu":
            planned.append(_plan_cpu(cell, facts, matrix, backends))
        else:
            decided = decide_cell(for_cell(request, cell), facts, matrix, cell.flavour)
            planned.append(_planned(cell.id, _own_rule_first(cell, decided, matrix), backends))
    return tuple(planned)


def decide_downloads(planned: Plan | Refused, facts: Facts) -> tuple[Download, ...]:
    """Return what a cell waits for that was not to be fetched; empty when it is decided without. Pure."""
    if not isinstance(planned, Refused) or planned.refusal.rule not in _ENDED_BY_A_DOWNLOAD:
        return ()
    toolkit = parse_cell(planned.cell).toolkit
    toolkits = [one for one in facts.not_fetched if one.id.startswith("pypi:")]
    # A toolkit of another release does not help this cell.
    if toolkits and (toolkit is None or toolkits[0].id != f"pypi:{toolkit.short}"):
        return ()
    return facts.not_fetched


def _own_rule_first(cell: Cell, decided: Recipe | Refusal, matrix: Matrix) -> Recipe | Refusal:
    """Return the refusal that the matrix knows of, whatever else stands in the way: no toolkit changes it."""
    listed = matrix.cells.get(cell.id)
    if listed is None or listed.refused_by is None or not isinstance(decided, Refusal):
        return decided
    if decided.rule == listed.refused_by or cell.toolkit is None:
        return decided
    rule = matrix.rule(listed.refused_by)
    return Refusal(rule.id, cell.id, rule.reason, rule.fix, observed=f"a cell for CUDA {cell.toolkit.short}")


def _planned(name: str, decided: Recipe | Refusal, backends: Path) -> Plan | Refused:
    return Refused(name, decided) if isinstance(decided, Refusal) else plan_cuda(decided, backends)


def build_all(
    planned: Sequence[Plan | Refused],
    tools: Tools,
    *,
    builds: Path,
    data_folder: Path,
    environment: Mapping[str, str],
    jobs: int,
    tell: Callable[[Plan, str], None],
    finish: Callable[[Plan, Path, str], None],
    done: Callable[[Outcome], None],
) -> tuple[Outcome, ...]:
    """Build one cell after the other (Ninja keeps the cores busy); a failure does not stop the others."""
    outcomes: list[Outcome] = []
    for one in planned:
        outcome: Outcome = (
            one
            if isinstance(one, Refused)
            else build(
                one,
                tools,
                builds=builds,
                data_folder=data_folder,
                environment=environment,
                jobs=jobs,
                tell=lambda step, plan=one: tell(plan, step),  # type: ignore[misc]
                finish=finish,
            )
        )
        outcomes.append(outcome)
        done(outcome)
    return tuple(outcomes)


def _plan_cpu(cell: Cell, facts: Facts, matrix: Matrix, backends: Path) -> Plan | Refused:
    compiler = newest_accepted(facts.compilers, _NO_BOUNDS, matrix.minimum_compiler)
    if compiler is None:
        rule = matrix.rule("host-compiler-missing")
        listed = ", ".join(one.label for one in facts.compilers) or "none on PATH"
        oldest = " or ".join(f"{family} {version}" for family, version in sorted(matrix.minimum_compiler.items()))
        refusal = Refusal(
            rule.id,
            f"compiler for {cell.id}",
            "its sources are C++17",
            "apt install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora, RHEL)",
            observed=listed,
            expected=f"{oldest}, or later",
        )
        return Refused(cell.id, refusal)
    return plan_cpu(cell, compiler, backends)
