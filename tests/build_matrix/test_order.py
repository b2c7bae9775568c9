"""Which cells a build makes: a machine's defaults, named ones, and what the sources of this version do not hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_decide import GCC, MATRIX, headers, tool

from coli.build_matrix.arch import Card
from coli.build_matrix.decide import Facts
from coli.build_matrix.machine import decide_toolkit_wheels
from coli.build_matrix.order import Refused, names_deepgemm, plan_cells, tensor_core_toolkits, wants_cuda
from coli.build_matrix.plan import Plan
from coli.build_matrix.request import read_request
from coli.build_matrix.toolkits import Toolkit
from coli.build_matrix.version import Version
from coli.build_matrix.wheels import load_bundles

FACTS = Facts((tool("13.0.88", cublas="13.0.2"),), GCC, deepgemm_pinned=headers("/headers"))


def planned(named: tuple[str, ...] = (), every: bool = False, **variables: str) -> list[Plan | Refused]:
    return list(plan_cells(named, read_request(variables), FACTS, MATRIX, "x86_64", Path("/backends"), every=every))


def test_the_default_is_every_level_and_one_cuda_library() -> None:
    ids = [one.cell.id for one in planned() if isinstance(one, Plan)]
    assert ids == ["cpu-portable", "cpu-x86-64-v3", "cpu-x86-64-v4", "cuda13.0-portable-tc-generic"]


def test_tensor_cores_follow_the_headers_unless_no_tc_says_otherwise() -> None:
    for variables, word in (({}, "tc"), ({"NO_TC": "0"}, "tc"), ({"NO_TC": "1"}, "notc")):
        cuda = planned(**variables)[-1]
        assert isinstance(cuda, Plan) and cuda.cell.id == f"cuda13.0-portable-{word}-generic"
        assert f"-DCOLI_NO_TC={'ON' if word == 'notc' else 'OFF'}" in cuda.arguments
        folder = "-DCOLI_CUBLAS_INCLUDE=/usr/local/cuda-13.0/include"
        assert (folder in cuda.arguments) is (word == "tc")


def test_a_named_cell_with_tensor_cores_takes_the_toolkit_that_has_the_headers() -> None:
    facts = Facts((tool("13.0.88", origin="PATH"), tool("13.0.88", cublas="13.0.2", root="/made")), GCC)
    named = ("cuda13.0-portable-tc-generic", "cuda13.0-portable-notc-generic")
    tc, notc = plan_cells(named, read_request({}), facts, MATRIX, "x86_64", Path("/backends"), every=False)
    assert isinstance(tc, Plan) and "-DCUDAToolkit_ROOT=/made" in tc.arguments
    assert isinstance(notc, Plan) and "-DCUDAToolkit_ROOT=/usr/local/cuda-13.0" in notc.arguments


def test_which_toolkits_need_cublas_headers() -> None:
    named = ("cpu-portable", "cuda13.0-portable-notc-generic", "cuda12.8-sm_90-tc-generic")
    assert tensor_core_toolkits(named, MATRIX, every=False) == {Version(12, 8)}
    assert Version(13, 0) in tensor_core_toolkits((), MATRIX, every=True)
    assert tensor_core_toolkits((), MATRIX, every=False) == frozenset()


@pytest.mark.parametrize(
    ("toolkits", "toolkit", "variables", "named", "wanted", "options"),
    [
        ((), None, {}, (), "pypi:13.0", ()),
        ((), None, {"NO_TC": "0"}, (), "pypi:13.0", ("cublas",)),
        ((), None, {"NO_TC": "1"}, (), "pypi:13.0", ()),
        ((tool("12.4.131"),), None, {"NO_TC": "0"}, (), None, ()),  # refused by name: what is installed counts
        ((tool("12.4.131"),), "pypi:13.0", {"NO_TC": "0"}, (), "pypi:13.0", ("cublas",)),
        ((tool("13.0.88"),), None, {}, (Version(13, 0),), "pypi:13.0", ("cublas",)),
        ((tool("13.0.88", cublas="13.0.2"),), None, {}, (Version(13, 0),), None, ()),
        ((tool("13.0.88"),), None, {}, (Version(12, 4),), None, ()),
    ],
)
def test_cublas_headers_are_fetched_for_those_who_insist(
    toolkits: tuple[Toolkit, ...],
    toolkit: str | None,
    variables: dict[str, str],
    named: tuple[Version, ...],
    wanted: str | None,
    options: tuple[str, ...],
) -> None:
    request = read_request(variables, toolkit=toolkit)
    bundle, got = decide_toolkit_wheels(request, frozenset(named), toolkits, load_bundles(), MATRIX)
    assert (bundle.id if bundle else None, got) == (wanted, options)


def test_deepgemm_is_a_library_of_its_own() -> None:
    generic, flavour = planned(DEEPGEMM="1", CUDA_ARCH="8.6", NO_TC="1")[-2:]
    assert isinstance(generic, Plan) and isinstance(flavour, Plan)
    assert (generic.library, flavour.library) == ("libcoli_cuda.so", "libcoli_cuda_dg.so")
    assert (generic.target, flavour.target) == ("coli_cuda", "coli_cuda")
    assert "-DCOLI_FLAVOUR=generic" in generic.arguments
    assert not any("DEEPGEMM" in argument for argument in generic.arguments)
    assert {"-DCOLI_FLAVOUR=deepgemm", "-DCOLI_DEEPGEMM_INCLUDE=/headers"} <= set(flavour.arguments)
    # Other bytes of the headers, in the same folder, are another build.
    changed = replace(FACTS, deepgemm_pinned=replace(headers("/headers"), sha256="1"))
    cells = ("cuda13.0-sm_86-notc-deepgemm",)
    keys = [
        one.key
        for facts in (FACTS, changed)
        for one in plan_cells(cells, read_request({}), facts, MATRIX, "x86_64", Path("/backends"), every=False)
        if isinstance(one, Plan)
    ]
    assert len(set(keys)) == 2


@pytest.mark.parametrize(
    ("named", "every", "wanted"),
    [
        ((), False, False),
        ((), True, True),
        (("cuda13.0-portable-notc-generic",), False, False),
        (("cpu-portable", "cuda13.0-portable-notc-deepgemm"), False, True),
    ],
)
def test_headers_are_fetched_for_a_cell_that_is_named(named: tuple[str, ...], every: bool, wanted: bool) -> None:
    assert names_deepgemm(named, every=every) is wanted


@pytest.mark.parametrize(
    ("capability", "variables", "built"),
    [
        ((12, 0), {}, True),
        ((12, 0), {"DEEPGEMM": "0"}, False),
        ((12, 1), {}, False),
        ((8, 9), {}, False),
        (None, {}, False),
        ((8, 9), {"DEEPGEMM": "1"}, True),
    ],
)
def test_deepgemm_unasked_only_for_its_own_card(
    capability: tuple[int, int] | None, variables: dict[str, str], built: bool
) -> None:
    facts = replace(FACTS, cards=(Card(0, "one", (8, 6)), Card(1, "other", capability)))
    cells = plan_cells((), read_request(variables), facts, MATRIX, "x86_64", Path("/backends"), every=False)
    libraries = [one.library for one in cells if isinstance(one, Plan)]
    assert ("libcoli_cuda_dg.so" in libraries) is built
    if built and not variables:
        last = cells[-1]
        assert isinstance(last, Plan)
        assert last.notes[0].startswith("DeepGEMM's library is built as well: GPU 1 (other) is of exactly 12.0")


def test_what_nobody_asked_for_and_cannot_be_is_a_note() -> None:
    facts = replace(FACTS, cards=(Card(0, "RTX 5090", (12, 0)),), deepgemm_pinned=None)
    cells = plan_cells((), read_request({}), facts, MATRIX, "x86_64", Path("/backends"), every=False)
    assert not any(isinstance(one, Refused) for one in cells)
    last = cells[-1]
    assert isinstance(last, Plan) and last.library == "libcoli_cuda.so"
    assert last.notes[-1].startswith("no DeepGEMM library, though GPU 0 (RTX 5090) is of exactly 12.0")
    assert "the pinned headers are not here" in last.notes[-1]
    asked = plan_cells((), read_request({"DEEPGEMM": "1"}), facts, MATRIX, "x86_64", Path("/backends"), every=False)[-1]
    assert isinstance(asked, Refused) and asked.refusal.rule == "deepgemm-needs-headers"


def test_options_reach_the_library_and_the_levels_stay() -> None:
    cuda = planned(CUDA_ARCH="8.6", NVCC_CCBIN="g++-13")[-1]
    assert isinstance(cuda, Plan)
    assert cuda.cell.id == "cuda13.0-sm_86-tc-generic"
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
    facts = Facts(tools, GCC, deepgemm_pinned=headers("/headers"))
    cells = plan_cells(tuple(refused), read_request({}), facts, MATRIX, "x86_64", Path("/backends"), every=False)
    assert len(refused) == 4
    assert {one.cell: one.refusal.rule for one in cells if isinstance(one, Refused)} == refused
