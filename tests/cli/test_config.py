from __future__ import annotations

import json
from typing import Any

import pytest

from coli.settings import SETTINGS


def test_show(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLI_RAM", "12")
    lines = dict(line.split(maxsplit=1) for line in run("config", "show").out.splitlines())
    assert lines["ram"] == "12GiB"
    assert lines["context"] == "4096"
    assert "raw" not in lines  # an option only: it has no standing value


def test_origin(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    file = tmp_path / "my.toml"
    file.write_text("seed = 3")
    monkeypatch.setenv("COLI_CONFIG", str(file))
    monkeypatch.setenv("COLI_CTX", "99")
    out = run("config", "show", "--origin").out
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert "COLI_CTX" in rows["context"] and "--ctx" in rows["context"]
    assert "my.toml" in out and "default" in rows["threads"]


def test_json(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLI_RAM", "12GB")
    document = json.loads(run("config", "show", "--json").out)
    assert document["schema"] == "coli.config/1"
    rows = {row["name"]: row for row in document["settings"]}
    assert set(rows) == {setting.name for setting in SETTINGS}
    assert rows["ram"]["value"] == 12_000_000_000
    assert rows["ram"]["origin"] == {"kind": "variable", "text": "COLI_RAM"}


def test_ascii_twin(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLI_ASCII", "1")
    out = run("config", "show", "--origin").out
    assert out.isascii() and "|" in out
