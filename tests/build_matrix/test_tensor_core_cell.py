"""A cell with tensor cores, built by `coli build` with the toolkit and the cuBLAS headers of the pinned wheels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from old_releases import KEPT, wheels

from coli.backends.containers import read_container

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))
import native

pytestmark = pytest.mark.full


def build(tmp_path: Path, name: str) -> tuple[dict[str, object], Path]:
    """Build the cell in folders of its own; the wheels are those that the test has fetched."""
    folders = {"XDG_CACHE_HOME": str(KEPT), "XDG_DATA_HOME": str(tmp_path / name), "XDG_CONFIG_HOME": str(tmp_path)}
    words = [sys.executable, "-m", "coli", "build", "--json", "--cell", "cuda13.0-sm_120-tc-generic"]
    words += ["--builds", str(tmp_path / f"builds of {name}")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **folders})
    assert done.returncode == 0, done.stdout + done.stderr
    (cell,) = json.loads(done.stdout)["cells"]
    return cell, Path(cell["library"])


def test_a_tensor_core_cell_is_built_twice_with_the_same_bytes(tmp_path: Path) -> None:
    wheels("pypi:13.0", "cublas")
    cell, library = build(tmp_path, "first")
    other, _ = build(tmp_path, "second ü")
    assert cell["sha256"] == other["sha256"]
    manifest = json.loads(library.with_name(library.name + ".json").read_text("utf-8"))
    assert (manifest["no_tc"], manifest["evidence"], manifest["shared_cudart"]) == (False, "compiled and audited", None)
    assert manifest["cublaslt"] == 13  # of the headers; the loader looks for the library of that major
    assert not [name for name in read_container(library).needed if "cu" in name]
    for stage in ("fast_matmul_fp8", "fast_matmul_fp4", "matmul_fp8"):
        assert native.Library(library).slots[stage].function
