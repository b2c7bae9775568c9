"""A real nvcc 12.4 without cuBLAS and without the static runtime, from the decision to what the loader says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from old_releases import cuda_12_4

from coli.backends.candidates import Search
from coli.backends.containers import read_container
from coli.backends.cpu_level import cpu_level
from coli.backends.fatbin import read_fatbin
from coli.backends.gates import check_dependencies
from coli.backends.loader import Machine, examine
from coli.backends.trace import Candidate
from coli.build_matrix.decide import decide_cells
from coli.build_matrix.machine import gather_facts
from coli.build_matrix.matrix import load_matrix
from coli.build_matrix.recipe import Recipe, Refusal
from coli.build_matrix.request import read_request

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def root() -> Path:
    return cuda_12_4()


def decided(root: Path, cache: Path, **variables: str) -> Recipe | Refusal:
    environment = {**os.environ, "CUDA_HOME": str(root), **variables}
    request = read_request(environment)
    facts = gather_facts(
        request,
        environment,
        cache,
        wants_cuda=True,
        names_deepgemm=False,
        tensor_cores_for=frozenset(),
        tell=lambda text: None,
    )
    (outcome,) = decide_cells(request, facts, load_matrix())
    return outcome


def run_build(root: Path, tmp_path: Path, cell: str) -> tuple[int, dict[str, object]]:
    folders = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "DATA", "CONFIG")}
    environment = {**os.environ, **folders, "CUDA_HOME": str(root)}
    words = [sys.executable, "-m", "coli", "build", "--json", "--builds", str(tmp_path / "b ü"), "--cell", cell]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    document = json.loads(done.stdout)
    assert document["schema"] == "coli.build/1", done.stderr
    return done.returncode, document["cells"][0]


def test_the_cell_turns_no_tc_by_itself_and_says_so(root: Path, tmp_path: Path) -> None:
    recipe = decided(root, tmp_path)
    assert isinstance(recipe, Recipe), recipe
    assert (recipe.cell.id, recipe.toolkit.root) == ("cuda12.4-portable-notc-generic", root)
    assert [target.name for target in recipe.targets] == [
        "sm_80",
        "sm_86",
        "sm_89",
        "sm_90",
        "compute_80",
        "compute_90",
    ]
    notes = "\n".join(recipe.notes)
    assert f"NO_TC=1 by itself: no cuBLASLt headers in {root / 'include'}; block scaling needs 12.8 or later" in notes
    assert f"no libcudart_static.a in {root / 'lib64'}; the library needs libcudart.so.12" in notes


def test_no_tc_0_is_refused_by_name(root: Path, tmp_path: Path) -> None:
    refusal = decided(root, tmp_path, NO_TC="0")
    assert isinstance(refusal, Refusal)
    assert (refusal.rule, refusal.subject) == ("tensor-cores-need-cublaslt", "NO_TC=0 (environment)")
    code, cell = run_build(root, tmp_path, "cuda12.4-portable-tc-generic")
    assert (code, cell["state"], cell["rule"]) == (0, "refused", "tensor-cores-need-cublaslt")  # as matrix.toml has it


def test_it_builds_and_the_loader_says_what_it_needs(root: Path, tmp_path: Path) -> None:
    code, cell = run_build(root, tmp_path, "cuda12.4-portable-notc-generic")
    assert (code, cell["state"]) == (0, "built"), cell
    library = Path(str(cell["library"]))
    manifest = json.loads(library.with_name(library.name + ".json").read_text("utf-8"))
    assert (
        manifest["evidence"],
        manifest["toolkit"],
        manifest["no_tc"],
        manifest["shared_cudart"],
        manifest["unpinned"],
    ) == (
        "compiled and audited",
        "12.4",
        True,
        "libcudart.so.12",
        ["CUDA_HOME"],
    )
    fatbin = read_fatbin(library)
    assert fatbin is not None
    assert {str(target) for target in fatbin.targets} == {
        "sm_80",
        "sm_86",
        "sm_89",
        "sm_90",
        "compute_80",
        "compute_90",
    }
    container = read_container(library)
    assert "libcudart.so.12" in container.needed

    alone = check_dependencies(library, container)
    assert alone.verdict == "refused" and alone.evidence == "missing: libcudart.so.12 (needed by libcoli_cuda.so)"
    assert alone.fix is not None and alone.fix.startswith(
        "put the folder that has libcudart.so.12 (the CUDA 12 toolkit's"
    )
    assert check_dependencies(library, container, (root / "lib64",)).verdict == "ok"
    search = Search()
    trace = examine(Candidate(library, "cuda-generic", "build"), Machine(cpu_level(), search), search)
    found = {finding.gate: finding for finding in trace.findings}
    assert not trace.accepted and found["dependencies"] == alone
    assert found["manifest"].verdict == "ok"
