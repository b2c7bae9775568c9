"""Which cells a build makes: a machine's defaults, named ones, and what the sources of this version do not hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_decide import GCC, MATRIX, tool

from coli.build_matrix.decide import Facts
from coli.build_matrix.order import Refused, plan_cells, wants_cuda
from coli.build_matrix.plan import Plan
from coli.build_matrix.request import read_request

FACTS = Facts((tool("13.0.88", cublas="13.0.2"),), GCC, deepgemm_pinned=Path("/headers"))


def planned(named: tuple[str, ...] = (), every: bool = False, **variables: str) -> list[Plan | Refused]:
    return list(plan_cells(named, read_request(variables), FACTS, MATRIX, "x86_64", Path("/backends"), every=every))


def test_the_default_is_every_level_and_one_cuda_library() -> None:
    ids = [one.cell.id for one in planned() if isinstance(one, Plan)]
    assert ids == ["cpu-portable", "cpu-x86-64-v3", "cpu-x86-64-v4", "cuda13.0-portable-notc-generic"]


def test_what_the_sources_lack_is_said_and_not_built_as_something_else() -> None:
    cuda = planned()[-1]
    assert isinstance(cuda, Plan) and "-DCOLI_NO_TC=ON" in cuda.arguments
    assert "NO_TC=1 (the sources of this version): no cuBLASLt block scaling" in cuda.notes
    for variables, word in (({"NO_TC": "0"}, "tensor cores"), ({"DEEPGEMM": "1"}, "flavour deepgemm")):
        refused = planned(**variables)[-1]
        assert isinstance(refused, Refused) and refused.refusal.rule == "not-in-sources"
        assert word in str(refused.refusal.observed)
    named = planned(("cuda13.0-portable-tc-generic",))[0]
    assert isinstance(named, Refused) and named.refusal.rule == "not-in-sources"


def test_options_reach_the_library_and_the_levels_stay() -> None:
    cuda = planned(CUDA_ARCH="8.6", NVCC_CCBIN="g++-13")[-1]
    assert isinstance(cuda, Plan)
    assert cuda.cell.id == "cuda13.0-sm_86-notc-generic"
    assert "-DCMAKE_CUDA_ARCHITECTURES=86-real" in cuda.arguments
    assert "-DCMAKE_CUDA_HOST_COMPILER=/usr/bin/g++-13" in cuda.arguments


def test_every_cell_of_the_matrix_is_planned_or_refused_by_its_rule() -> None:
    outcomes = {one.cell if isinstance(one, Refused) else one.cell.id: one for one in planned(every=True)}
    for cell in MATRIX.cells.values():
        if cell.refused_by and cell.toolkit and cell.toolkit.short == "13.0":
            one = outcomes[cell.id]
            assert isinstance(one, Refused) and one.refusal.rule == cell.refused_by


def test_no_compiler_is_a_refusal() -> None:
    facts = Facts(toolkits=(), compilers=())
    cells = plan_cells(("cpu-portable",), read_request({}), facts, MATRIX, "x86_64", Path("/backends"), every=False)
    assert isinstance(cells[0], Refused) and cells[0].refusal.rule == "host-compiler-missing"


@pytest.mark.parametrize(
    ("named", "wanted"),
    [((), True), (("cpu-portable",), False), (("cpu-portable", "cuda13.0-portable-notc-generic"), True)],
)
def test_a_toolkit_is_looked_for_when_a_cell_needs_one(named: tuple[str, ...], wanted: bool) -> None:
    assert wants_cuda(named) is wanted


def test_every_cell_that_the_matrix_calls_refused_is_refused_by_that_rule() -> None:
    """A toolkit of each version that those cells name, with cuBLAS headers of the same version."""
    refused = {cell.id: cell.refused_by for cell in MATRIX.cells.values() if cell.refused_by}
    tools = (tool("12.4.131", cublas="12.4.5"), tool("13.0.88", cublas="13.0.2"))
    facts = Facts(tools, GCC, deepgemm_pinned=Path("/headers"))
    cells = plan_cells(tuple(refused), read_request({}), facts, MATRIX, "x86_64", Path("/backends"), every=False)
    assert len(refused) == 4
    assert {one.cell: one.refusal.rule for one in cells if isinstance(one, Refused)} == refused
