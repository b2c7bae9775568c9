"""What `coli doctor` must not answer with "nothing is wrong", and what it must not write over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coli.cli import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "memory", "--skip", "memory"], "no check is left"),
        (["--only", "checkpoint"], "give MODEL"),
        (["--deep"], "needs MODEL"),
        (["--measure"], "needs MODEL"),
        (["--root", "/proc/version"], "is not a folder"),
        (["--root", "/nowhere/at/all"], "is not a folder"),
        (["--machine", "/nowhere/at/all"], "--record FILE"),
        (["--only", "memory", "--set", "ram.total=8", "--set", "ram.available=9"], "set ram.total first"),
        (["--only", "devices", "--set", "gpu.0.vram=4", "--set", "gpu.0.free=5"], "set its vram first"),
    ],
)
def test_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments, "--json"]) == 2
    done = capsys.readouterr()
    assert words in done.err
    assert json.loads(done.out)["error"]["exit_code"] == 2


def test_little_known_is_not_nothing_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "machine.json").write_text('{"schema": "coli.machine/1", "facts": {}}')
    assert main(["doctor", "--machine", str(tmp_path / "machine.json")]) == 0
    assert capsys.readouterr().out.startswith("too little is known")


def test_a_number_in_place_of_a_path_is_the_files_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"toolkits": [{"root": 7}]}
    (tmp_path / "machine.json").write_text(json.dumps({"schema": "coli.machine/1", "facts": facts}))
    assert main(["doctor", "--machine", str(tmp_path / "machine.json")]) == 2
    assert "not the file of a machine" in capsys.readouterr().err


def test_a_gpu_that_a_variable_asks_for_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`coli run` would be refused with it."""
    monkeypatch.setenv("COLI_GPU", "7")
    assert main(["doctor", "--json"]) == 1
    checks = {row["id"]: row["status"] for row in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["gpu.7"] in ("fail", "skip")
    assert "memory.limit" in checks


def test_a_name_in_a_record_is_shown_and_not_obeyed(
    tmp_path: Path, oracle_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b]0;owned\x07<script>alert(1)</script>"
    record, page = tmp_path / "machine.json", tmp_path / "page.html"
    main(["doctor", "--only", "memory", "--record", str(record)])
    document = json.loads(record.read_text(encoding="utf-8"))
    document["facts"]["name"] = hostile
    record.write_text(json.dumps(document), encoding="utf-8")
    changes = ("gpu.0.vram=8", "gpu.0.capability=8.6", f"gpu.0.name={hostile}")
    gpu = [word for change in changes for word in ("--set", change)]
    assert main(["plan", str(oracle_path), "--machine", str(record), *gpu]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "owned" in shown
    main(["doctor", "--machine", str(record), "--html", str(page), *gpu])
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text and "\x1b" not in text
    assert "\x1b" not in capsys.readouterr().out
