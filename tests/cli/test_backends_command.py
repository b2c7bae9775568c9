"""`coli backends` on the libraries that are installed here, and on folders that hold none or bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

GATES = ["file", "container", "dependencies", "manifest", "cpu", "driver", "devices", "architecture", "memory"]
GATES += ["open", "handshake", "slots", "canary"]


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_list(run: Any) -> None:
    result = run("backends")
    assert result.code == 0
    assert "cpu-portable" in result.out and "chosen" in result.out


def test_json(run: Any) -> None:
    document = json.loads(run("backends", "--json").out)
    assert document["schema"] == "coli.backends/1"
    chosen = [row for row in document["candidates"] if row["path"] == document["chosen"]]
    assert len(chosen) == 1 and chosen[0]["verdict"] == "ok"
    assert all([gate["gate"] for gate in row["gates"]] == GATES for row in document["candidates"])


def test_name_that_is_asked_for(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cpu-portable: asked for by --backend" in run("backends", "--backend", "portable").out
    monkeypatch.setenv("COLI_BACKEND", "portable")
    assert "cpu-portable: asked for by COLI_BACKEND" in run("backends").out


def test_unknown_name(run: Any) -> None:
    result = run("backends", "--backend", "portabel")
    assert result.code == 5
    assert "portabel: --backend names a backend that is not known" in result.err
    assert "cpu-portable" in result.err and "Traceback" not in result.err
    assert run("backends", "--backend", "portabel", "--json").code == 5


def test_file_that_is_refused(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "libcoli_cpu_text.so"
    path.write_text("hello", encoding="utf-8")
    result = run("backends", "--backend", str(path))
    assert result.code == 5
    assert "refused by gate container" in result.err
    result = run("backends", "explain", str(path))
    assert result.code == 5
    assert [gate for gate in GATES if f"\n{gate:<13}" in result.out] == GATES
    document = json.loads(run("backends", "explain", str(path), "--json").out)
    assert [row["path"] for row in document["candidates"]] == [str(path)]
    assert document["candidates"][0]["gates"][1]["code"] == "container.not-a-library"


def test_explain(run: Any) -> None:
    result = run("backends", "explain", "portable")
    assert result.code == 0
    assert "every bit as recorded" in result.out
    assert run("backends", "explain", "cpu-nowhere").code == 5


def test_relative_folder_is_a_usage_error(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLI_BACKEND_PATH", "build/lib")
    result = run("backends")
    assert result.code == 2
    assert "COLI_BACKEND_PATH: every folder must be absolute" in result.err


def test_driver_and_devices_are_shown(run: Any) -> None:
    assert "driver" in run("backends").out
    document = json.loads(run("backends", "--json").out)
    assert document["devices"]["driver"]["state"]


def test_explain_says_where_cublaslt_was_looked_for(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (source,) = [
        Path(row["path"])
        for row in json.loads(run("backends", "--json").out)["candidates"]
        if row["name"] == "cpu-portable"
    ]
    library = tmp_path / "libcoli_cuda.so"
    library.write_bytes(source.read_bytes())
    manifest = json.loads(source.with_name(source.name + ".json").read_text("utf-8"))
    manifest |= {"file": library.name, "kind": "cuda", "toolkit": "13.0", "targets": ["sm_120"], "cublaslt": 99}
    library.with_name(library.name + ".json").write_text(json.dumps(manifest), encoding="utf-8")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "libraries"))
    shown = " ".join(run("backends", "explain", str(library)).out.split())
    assert "cublaslt libcublasLt.so.99 is not found" in shown
    assert f"LD_LIBRARY_PATH: {tmp_path}/libraries/libcublasLt.so.99: absent" in shown
    assert f"CUDA_HOME: {tmp_path}/toolkit: absent" in shown
    document = json.loads(run("backends", "explain", str(library), "--json").out)
    found = document["candidates"][0]["cublaslt"]
    assert (found["name"], found["path"], found["needed"]) == ("libcublasLt.so.99", None, False)
    assert [place["origin"] for place in found["places"]][:1] == ["LD_LIBRARY_PATH"]
