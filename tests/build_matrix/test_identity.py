"""What makes another build and what does not, for every option and every fact that reaches a compiler.

test_rebuild.py and test_rebuild_cuda.py show that a build follows its key; here is which key each change has.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_decide import GCC, MATRIX, headers, tool

from coli.build_matrix.compilers import HostCompiler
from coli.build_matrix.decide import Facts, decide_cell
from coli.build_matrix.plan import Plan, plan_cuda
from coli.build_matrix.recipe import Recipe
from coli.build_matrix.request import read_request
from coli.build_matrix.version import Version

TOOL = tool("13.0.88", cublas="13.0.2")
FACTS = Facts((TOOL,), GCC, deepgemm_pinned=headers("/headers"))
BASE = {"NO_TC": "1", "CUDA_ARCH": "sm_86"}


def planned(facts: Facts = FACTS, flavour: str = "generic", **variables: str) -> Plan:
    decided = decide_cell(read_request({**BASE, **variables}), facts, MATRIX, flavour)
    assert isinstance(decided, Recipe), decided
    return plan_cuda(decided, Path("/backends"))


@pytest.mark.parametrize(
    "variables",
    [
        {"CUDA_ARCH": "SM_86"},
        {"CUDA_ARCH": "8.6"},
        {"NVCC_APPEND_FLAGS": " "},
        {"DEEPGEMM": "1"},  # a second library beside this one
        {"NVCC_CCBIN": "g++-12"},  # what is chosen anyway
    ],
    ids=str,
)
def test_another_spelling_is_the_same_build(variables: dict[str, str]) -> None:
    facts = replace(FACTS, compilers=tuple(one for one in GCC if one.version.major == 12) or GCC)
    if "NVCC_CCBIN" in variables:
        variables = {"NVCC_CCBIN": str(facts.compilers[0].path)}
    assert planned(facts, **variables).key == planned(facts).key


@pytest.mark.parametrize(
    ("variables", "same_cell"),
    [
        ({"CUDA_ARCH": "sm_89"}, False),
        ({"CUDA_ARCH": "sm_86,compute_86"}, False),
        ({"NO_TC": "0"}, False),
        ({"NVCC_APPEND_FLAGS": "-lineinfo"}, True),
        ({"NVCC_APPEND_FLAGS": "-lineinfo -Xptxas=-v"}, True),
    ],
    ids=str,
)
def test_another_flag_is_another_build(variables: dict[str, str], same_cell: bool) -> None:
    base, other = planned(), planned(**variables)
    assert other.key != base.key
    assert (other.cell.id == base.cell.id) is same_cell


def test_another_flavour_is_another_build() -> None:
    base, other = planned(), planned(flavour="deepgemm", DEEPGEMM="1")
    assert other.key != base.key and other.cell.id != base.cell.id


def test_another_standard_of_the_matrix_is_another_build() -> None:
    decided = decide_cell(read_request(BASE), FACTS, replace(MATRIX, cuda_standard=20), "generic")
    assert isinstance(decided, Recipe)
    other = plan_cuda(decided, Path("/backends"))
    assert other.key != planned().key and "-DCMAKE_CUDA_STANDARD=20" in other.arguments


@pytest.mark.parametrize(
    "toolkit",
    [replace(TOOL, root=Path("/opt/other")), tool("13.0.91", cublas="13.0.2")],
    ids=["another place", "another update"],
)
def test_another_toolkit_is_another_build(toolkit: object) -> None:
    other = planned(replace(FACTS, toolkits=(toolkit,)))  # type: ignore[arg-type]
    assert other.key != planned().key and other.cell.id == planned().cell.id


@pytest.mark.parametrize("change", [{"path": Path("/usr/bin/g++-x")}, {"version": Version(12, 9)}], ids=str)
def test_another_host_compiler_is_another_build(change: dict[str, object]) -> None:
    one = HostCompiler(Path("/usr/bin/g++-12"), ("g++-12",), "gcc", Version(12, 2), True)
    keys = {planned(replace(FACTS, compilers=(each,))).key for each in (one, replace(one, **change))}  # type: ignore[arg-type]
    assert len(keys) == 2


def test_the_bytes_of_a_compiler_count_and_so_does_the_place_of_the_sources(tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_bytes(b"12.2.0-14")
    facts = replace(FACTS, compilers=(HostCompiler(compiler, ("g++",), "gcc", Version(12, 2), True),))
    first = planned(facts).key
    assert planned(facts).key == first
    compiler.write_bytes(b"12.2.0-14+deb12u1")
    assert planned(facts).key != first
    compiler.write_bytes(b"12.2.0-14")
    assert planned(facts).key == first
    decided = decide_cell(read_request(BASE), facts, MATRIX, "generic")
    assert isinstance(decided, Recipe)
    assert plan_cuda(decided, tmp_path).key != first
