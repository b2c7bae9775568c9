"""Flash's real layer shapes, cut to six layers of 32 experts: memory stays within what the ledger says."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .sparse_flash import flash_shards

pytestmark = pytest.mark.full

NEEDS_BYTES = 6 << 30
SYNTHETIC = Path(__file__).parents[2] / "bench" / "synthetic.py"
PROMPT = [(7919 * i + 11) % 129280 for i in range(48)]

# Runs the program as a child and adds its peak resident memory, in bytes, to its document.
_CHILD = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(json.dumps({"code": done.returncode, "err": done.stderr, "peak": peak, "out": done.stdout}))
"""


def synthetic() -> ModuleType:
    spec = importlib.util.spec_from_file_location("synthetic", SYNTHETIC)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["synthetic"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("flash")
    free = shutil.disk_usage(folder).free
    if free < NEEDS_BYTES:
        pytest.skip(f"not run: needs {NEEDS_BYTES} bytes of disk, {folder} has {free}")
    module = synthetic()
    assert module.write_checkpoint(folder, module.Slice()) > 5_500_000_000
    yield folder
    shutil.rmtree(folder)  # pytest keeps its folders for three runs


def run(checkpoint: Path, ram: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "coli", "run", str(checkpoint), "--ids", ",".join(map(str, PROMPT)), "--json"]
    command += [
        "--max-tokens",
        "12",
        "--temperature",
        "0",
        "--ctx",
        "256",
        "--threads",
        "2",
        "--ram",
        f"{ram >> 20}MiB",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COLI_")}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *command],
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_memory_and_tokens_at_three_budgets(checkpoint: Path) -> None:
    refused = run(checkpoint, 1 << 30)
    assert refused["code"] == 4 and "--ram" in refused["err"]
    least = int(json.loads(refused["out"])["error"]["observed"].split()[0]) + (80 << 20)  # and what is held already
    answers = []
    for ram in (least, least + (1 << 30), least + (4 << 30)):
        report = run(checkpoint, ram)
        assert report["code"] == 0, report["err"]
        document = json.loads(report["out"])
        memory = document["memory"]
        print(
            ram >> 20,
            "MiB:",
            report["peak"] >> 20,
            "MiB at most,",
            memory["expert_slabs"],
            "slabs,",
            document["timing"],
        )
        assert report["peak"] <= memory["ram_reserved_bytes"] <= memory["ram_limit_bytes"] <= ram
        answers.append((document["token_ids"], memory["expert_slabs"]))
    assert len(answers[0][0]) == 12
    assert answers[0][0] == answers[1][0] == answers[2][0]
    assert 6 <= answers[0][1] < answers[1][1] < answers[2][1] == 6 * 32


def test_names_and_shapes_are_those_of_the_release() -> None:
    module = synthetic()
    released = {name: (dtype, shape) for shard in flash_shards() for name, dtype, shape in shard}
    maker = module.Maker(module.Slice(layers=4, experts=8), 1)
    for layer in (0, 2, 3):
        for tensor in maker.layer(layer):
            shape = list(released[tensor.name][1])
            if tensor.name.endswith((".gate.weight", ".gate.bias")):
                shape[0] = 8
            assert (tensor.dtype, list(tensor.bits.shape)) == (released[tensor.name][0], shape), tensor.name
    for tensor in itertools.chain(maker.embedding(), maker.head()):
        assert (tensor.dtype, tensor.bits.shape) == released[tensor.name], tensor.name
