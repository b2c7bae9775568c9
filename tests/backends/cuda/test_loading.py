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
    findings = {finding.gate: finding for finding in judge_answer(probe_library(shim_path, CANARY, 60, "cuda"), "cuda")}
    assert {finding.verdict for finding in findings.values()} == {"ok"}, findings
    said = findings["canary"].evidence
    assert "every bit as recorded; left to the CPU: " in said
    assert "matmul_fp4" not in said and "attention" in said


def test_who_declines_everything_is_refused(shim_path: Path, tmp_path: Path) -> None:
    every = read_vectors(CANARY.read_bytes())
    canary = tmp_path / "canary.bin"
    canary.write_bytes(write_vectors([case for case in every if case.stage == "attention"]))
    findings = {finding.gate: finding for finding in judge_answer(probe_library(shim_path, canary, 60, "cuda"), "cuda")}
    assert (findings["canary"].verdict, findings["canary"].code) == ("refused", "canary.nothing-served")


def test_a_cpu_library_may_decline_nothing(shim_path: Path) -> None:
    findings = {finding.gate: finding for finding in judge_answer(probe_library(shim_path, CANARY, 60, "cpu"), "cpu")}
    assert findings["slots"].code == "slots.absent" and "rms_norm" in findings["slots"].evidence


def test_chain_ends_with_the_cpu(native_build: Build, shim_path: Path) -> None:
    told: list[Fallback] = []
    chain = [opened(shim_path), opened(native_build.libraries["portable"])]
    make = cases.Maker(3)
    specs, x = [make.weight(native.FP4, 8, 64) for _ in range(2)], make.floats(2, 64)
    with Dispatcher(chain, 1, native.workspace_bytes(1), told.append) as dispatcher:
        there, here = (dispatcher.bind("w", Format.FP4_GROUP, 8, 64, spec.codes, spec.scales) for spec in specs)
        assert dispatcher.upload(there)
        assert dispatcher.uploads() == [{"backend": "libcoli_cuda_shim", "weights": 1, "bytes": 8 * 32 + 8 * 2}]
        results = [np.zeros((2, 8), np.float32) for _ in range(4)]
        dispatcher.matmul_fp4(there, x, 1, results[0])
        dispatcher.matmul_fp4(here, x, 1, results[1])
        total = np.ones((2, 64), np.float32)
        dispatcher.add(x, total)
        rows = {(row["stage"], row["backend"]): row for row in dispatcher.rows()}
    np.testing.assert_array_equal(total, x + 1)
    reason = "the weight is not in the device's memory"
    assert told == [Fallback("matmul_fp4", "libcoli_cuda_shim", reason)]
    cpu = chain[1].name
    assert set(rows) == {("matmul_fp4", "libcoli_cuda_shim"), ("matmul_fp4", cpu), ("add", cpu)}
    assert rows["matmul_fp4", "libcoli_cuda_shim"]["calls"] == 1
    assert rows["matmul_fp4", cpu]["fallbacks"] == [{"backend": "libcoli_cuda_shim", "reason": reason, "count": 1}]
    assert rows["add", cpu]["absent_in"] == ["libcoli_cuda_shim"] and not rows["add", cpu]["fallbacks"]
    with Dispatcher(chain[1:], 1, native.workspace_bytes(1)) as alone:
        assert alone.device_memory() is None
        for spec, y in zip(specs, results[2:], strict=True):
            weight = alone.bind("w", Format.FP4_GROUP, 8, 64, spec.codes, spec.scales)
            assert not alone.upload(weight)
            alone.matmul_fp4(weight, x, 1, y)
    assert [y.tobytes() for y in results[:2]] == [y.tobytes() for y in results[2:]]


def test_a_full_device_leaves_weights_on_the_host(native_build: Build, shim_path: Path) -> None:
    told: list[Fallback] = []
    chain = [opened(shim_path), opened(native_build.libraries["portable"])]
    with Dispatcher(chain, 1, native.workspace_bytes(1), told.append) as dispatcher:
        memory = dispatcher.device_memory()
        assert memory is not None and 0 < memory.free_bytes < memory.total_bytes and not memory.integrated
        rows = memory.free_bytes // 128 * 2
        codes = np.zeros(rows * 64, np.uint8)
        first, second = (dispatcher.bind(name, Format.BF16, rows // 2, 64, codes) for name in ("head.weight", "w"))
        assert dispatcher.upload(first) and not dispatcher.upload(second)
    assert [(fallback.stage, fallback.backend) for fallback in told] == [("upload", "libcoli_cuda_shim")]
