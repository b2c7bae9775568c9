"""Where stages will run: the prediction by hand, and equal to what a run then reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coli.backends.devices import Fact, Gpu, VisibleDevice
from coli.backends.trace import GATES, Candidate, CandidateTrace, Trace, ok
from coli.cli import main
from coli.doctor.stages import StageRow, predict_stages
from coli.engine.budget import Demand, Product, Traffic
from coli.engine.ledger import Item

FINE = tuple(ok(gate, "fine") for gate in GATES)
CPU = CandidateTrace(
    Candidate(Path("/lib/libcoli_cpu_portable.so"), "cpu-portable", "package"),
    FINE,
    kind="cpu",
    stages=("embed", "matmul_fp8", "moe"),
)
CARD = VisibleDevice(Gpu(0, name=Fact.of("RTX 3080", "test")))
CUDA = CandidateTrace(
    Candidate(Path("/lib/libcoli_cuda.so"), "cuda", "user data"),
    FINE,
    kind="cuda",
    devices=(CARD,),
    stages=("matmul_fp8",),
)


def trace(*candidates: CandidateTrace) -> Trace:
    chain = tuple(range(len(candidates)))
    return Trace("x86_64, portable", None, (), candidates, 0 if candidates else None, "best", chain)


def test_the_first_of_the_chain_that_serves_a_stage_has_it() -> None:
    assert predict_stages(trace(CUDA, CPU), ("embed", "matmul_fp8")) == (
        StageRow("embed", "cpu-portable", "cuda leaves it to the CPU"),
        StageRow("matmul_fp8", "cuda", "on RTX 3080"),
    )


def test_alone_the_cpu_has_everything() -> None:
    assert [row.backend for row in predict_stages(trace(CPU), ("embed", "moe"))] == ["cpu-portable", "cpu-portable"]


def test_without_a_backend_nothing_is_predicted() -> None:
    assert predict_stages(trace(), ("embed",)) == ()
    assert predict_stages(replace(trace(CPU), chosen=None, chain=()), ("embed",)) == ()


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


ITEM = Item("copy of b", "vram", 10)
DEMAND = Demand(
    lambda context, chunk: (),
    Traffic(0, 0, 0),
    products=(
        Product("a", "matmul_fp8", Item("copy of a", "vram", 10)),
        Product("b", "matmul_fp8", ITEM),
        Product("c", "matmul_f32", None),
    ),
    idle_stages=frozenset(("moe",)),
)


@pytest.mark.parametrize(
    ("copies", "rows"),
    [
        (("copy of a", "copy of b"), [("matmul_fp8", "cuda", 2)]),
        (("copy of b",), [("matmul_fp8", "cuda", 1), ("matmul_fp8", "cpu-portable", 1)]),
        ((), [("matmul_fp8", "cpu-portable", 2)]),
    ],
)
def test_a_device_serves_the_weights_that_have_a_copy_there(
    copies: tuple[str, ...], rows: list[tuple[str, str, int]]
) -> None:
    stages = ("embed", "matmul_f32", "matmul_fp8", "moe")
    found = predict_stages(trace(CUDA, CPU), stages, DEMAND, frozenset(copies))
    assert [(row.stage, row.backend, row.weights) for row in found] == [
        ("embed", "cpu-portable", None),
        ("matmul_f32", "cpu-portable", 1),
        *rows,
    ]
    assert [row.why for row in found if row.stage == "matmul_fp8" and row.backend != "cuda"] in (
        [],
        ["no room on RTX 3080 for these weights"],
        ["no room on RTX 3080 for its weights"],
    )


@pytest.mark.parametrize("backend", [(), ("--backend", "cpu-portable")])
def test_a_run_reports_what_the_doctor_predicted(
    backend: tuple[str, ...], oracle_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(oracle_path)
    predicted = document(capsys, "doctor", path, "--only", "backends", "--only", "budget", *backend)["stages"]
    prompt = ",".join(str(token) for token in range(1, 40))
    ran = document(capsys, "run", path, "--ids", prompt, "--max-tokens", "2", *backend)["stages"]
    assert len(ran) > 12
    assert {(row["stage"], row["backend"]) for row in predicted} == {(row["stage"], row["backend"]) for row in ran}
