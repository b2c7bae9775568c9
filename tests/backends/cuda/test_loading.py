"""The loader's child process and the dispatcher with a device backend that serves some stages only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cases
import native
import numpy as np
from building import Build

from coli.backends.dispatch import Dispatcher, Fallback, Format
from coli.backends.gates import judge_answer
from coli.backends.loader import CANARY
from coli.backends.probe import probe_library
from coli.backends.vectors import read_vectors, write_vectors


@dataclass(frozen=True)
class Opened:
    """A library and the address of its table, as the dispatcher wants it."""

    name: str
    address: int


def opened(path: Path) -> Opened:
    from coli.backends._probe import open_library, query_table

    address = query_table(open_library(path))
    assert address
    return Opened(path.stem, address)


def test_gates_let_it_through(shim_path: Path) -> None:
    findings = {finding.gate: finding for finding in judge_answer(probe_library(shim_path, CANARY, 60, "cuda"))}
    assert {finding.verdict for finding in findings.values()} == {"ok"}, findings
    said = findings["canary"].evidence
    assert "every bit as recorded; left to the CPU: " in said
    assert "matmul_fp4" not in said and "attention" in said


def test_who_declines_everything_is_refused(shim_path: Path, tmp_path: Path) -> None:
    every = read_vectors(CANARY.read_bytes())
    canary = tmp_path / "canary.bin"
    canary.write_bytes(write_vectors([case for case in every if case.stage == "attention"]))
    findings = {finding.gate: finding for finding in judge_answer(probe_library(shim_path, canary, 60, "cuda"))}
    assert (findings["canary"].verdict, findings["canary"].code) == ("refused", "canary.nothing-served")


def test_a_cpu_library_may_decline_nothing(shim_path: Path) -> None:
    findings = {finding.gate: finding for finding in judge_answer(probe_library(shim_path, CANARY, 60, "cpu"))}
    assert findings["canary"].code == "canary.bits" and "declined" in findings["canary"].evidence


def test_chain_ends_with_the_cpu(native_build: Build, shim_path: Path) -> None:
    told: list[Fallback] = []
    chain = [opened(shim_path), opened(native_build.libraries["portable"])]
    make = cases.Maker(3)
    spec, x = make.weight(native.FP4, 8, 64), make.floats(2, 64)
    with Dispatcher(chain, 1, native.workspace_bytes(1), told.append) as dispatcher:
        weight = dispatcher.bind("w", Format.FP4_GROUP, 8, 64, spec.codes, spec.scales)
        y, total = np.zeros((2, 8), np.float32), np.ones((2, 64), np.float32)
        dispatcher.matmul_fp4(weight, x, 1, y)
        dispatcher.add(x, total)
    np.testing.assert_array_equal(total, x + 1)
    assert {(fallback.stage, fallback.backend) for fallback in told} == {
        ("matmul_fp4", "libcoli_cuda_shim"),
        ("add", "libcoli_cuda_shim"),
    }
    assert "the weight was not uploaded" in told[0].reason
