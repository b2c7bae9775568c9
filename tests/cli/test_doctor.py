"""`coli doctor` on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coli.cli import main
from coli.doctor.checks.table import CHECKS


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main(["doctor", *arguments]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_the_list_names_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "--list", "--json")
    assert {row["id"] for row in json.loads(out)["list"]} == {check.id for check in CHECKS}
    out, _ = run(capsys, "--list", "--only", "memory")
    assert "memory.limit" in out
    assert "driver.state" not in out


def test_json_is_one_document_and_reads_only_what_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "--json", "--only", "memory.limit")
    document: dict[str, Any] = json.loads(out)
    assert [row["id"] for row in document["checks"]] == ["memory.limit"]
    assert sorted(document["times"]) == ["memory", "versions"]
    assert document["facts"]["devices"] is None
    assert err == ""


def test_a_model_adds_its_checks(oracle_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, str(oracle_path), "--json", "--only", "checkpoint")
    document = json.loads(out)
    assert {row["status"] for row in document["checks"] if row["id"] != "checkpoint.values"} == {"ok"}
    assert document["facts"]["checkpoint"]["weight_bytes"]["known"] is True


def test_a_broken_model_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v4"}', encoding="utf-8")
    out, _ = run(capsys, str(tmp_path), "--only", "checkpoint", code=1)
    assert "FAIL" in out
    assert "[checkpoint." in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "memroy"], "did you mean memory?"),
        (["--skip", "nothing"], "--list"),
        (["--set", "ram.totl=5"], "did you mean ram.total?"),
        (["--machine", "/nowhere/at/all"], "cannot be read"),
    ],
)
def test_wrong_use_is_exit_code_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, *arguments, code=2)
    assert words in err


def test_strict_makes_a_warning_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--only", "memory", "--set", "ram.available=1GiB"]
    run(capsys, *few)
    out, _ = run(capsys, *few, "--strict", code=1)
    assert "1 warning" in out


def test_a_card_that_is_imagined_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    changes = [f"--set=gpu.0.{change}" for change in ("vram=10GiB", "capability=7.5", "name=Old")]
    out, _ = run(capsys, "--only", "devices.capability", *changes)
    assert "Old is not used: capability 7.5, the kernels need 8.0 or later" in " ".join(out.split())


def test_an_imagined_card_needs_a_capability(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "--only", "devices.capability", "--set=gpu.0.vram=10GiB", code=2)
    assert "add --set gpu.0.capability=8.6" in err


def test_gpu_answers_on_one_screen(oracle_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["--set=gpu.0.vram=10GiB", "--set=gpu.0.capability=8.6", "--set=gpu.0.name=RTX 3080"]
    assert main(["doctor", str(oracle_path), "--gpu", "0", *changes, "--ascii"]) in (0, 1)
    out = capsys.readouterr().out
    assert len(out.splitlines()) < 50
    assert "RTX 3080 could be used, and no CUDA backend is installed" in " ".join(out.split())
    assert "Stages" in out


def test_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "--gpu", "7", "--set=gpu.0.vram=10GiB", "--set=gpu.0.capability=8.6", code=1)
    assert "there is no GPU 7: there are 0: GPU" in " ".join(out.split())


def test_a_page_is_written_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "--only", "memory", "--html", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_nothing_is_written_unless_asked(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "coli", "doctor"], env=environment, cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    assert list(tmp_path.rglob("*")) == []


def test_the_doctor_loads_neither_numpy_nor_the_extension() -> None:
    code = (
        "import sys; from coli.cli import main; main(['doctor', '--json']); "
        "sys.exit(sorted({'numpy', 'coli.backends._host', 'tokenizers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
