"""The hosted workflow asks the matrix for its cells, and only for what is there."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from coli.build_matrix.matrix import load_matrix
from coli.cli import main

ROOT = Path(__file__).parents[2]
FILE = ROOT / ".github" / "workflows" / "build.yml"
TEXT = FILE.read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load(TEXT)
JOBS = WORKFLOW["jobs"]


def steps() -> list[dict[str, Any]]:
    return [step for job in JOBS.values() for step in job["steps"]]


def test_the_matrix_is_what_the_build_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (step,) = [step for step in JOBS["matrix"]["steps"] if step.get("id") == "list"]
    found = re.search(r"^document=\$\(nox -s build -- (.+)\)$", step["run"], re.MULTILINE)
    assert found and '"document=$document" >> "$GITHUB_OUTPUT"' in step["run"]
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main(["build", *shlex.split(found[1])]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1, "an output of a step is one line"
    document = json.loads(printed)
    assert JOBS["matrix"]["outputs"] == {"document": "${{ steps.list.outputs.document }}"}
    assert JOBS["cell"]["needs"] == "matrix"
    assert JOBS["cell"]["strategy"]["matrix"] == {"cell": "${{ fromJSON(needs.matrix.outputs.document).cells }}"}
    cells = document["cells"]
    assert [cell["id"] for cell in cells] == [cell.id for cell in load_matrix().cells.values() if "ci" in cell.tags]
    assert all("x86_64" in cell["machines"] for cell in cells), "the runners are of x86-64"
    used = set(re.findall(r"matrix\.cell\.(\w+)", TEXT))
    assert used and all(used <= set(cell) for cell in cells)


def test_every_cell_of_the_matrix_is_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nox", "nox.command"):  # which need not be in this environment: only the list is asked for
        monkeypatch.setitem(sys.modules, name, MagicMock())
    cells = runpy.run_path(str(ROOT / "noxfile.py"))["_cells"]()
    assert cells == [(cell.id, list(cell.tags)) for cell in load_matrix().cells.values()]
    assert 'nox -s "cell($CELL)"' in {step.get("run") for step in JOBS["cell"]["steps"]}


def test_actions_are_pinned_and_have_what_they_need() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[a-z-]+@v\d+", name) for name in used)
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in JOBS.values())
    cell = JOBS["cell"]
    cached = [step["with"]["path"] for step in cell["steps"] if step.get("uses", "").startswith("actions/cache@")]
    assert cell["env"]["CCACHE_DIR"].endswith(cached[0]) and cached[1].startswith("build/cache/")
    assert any("sha256sum" in step.get("run", "") for step in cell["steps"])


def test_no_text_of_the_matrix_becomes_a_part_of_a_script() -> None:
    assert [step["run"] for step in steps() if "${{" in step.get("run", "")] == []


@pytest.mark.skipif(sys.platform != "linux", reason="not run: shell scripts")
def test_the_sessions_are_those_of_the_noxfile() -> None:
    named = set(re.findall(r'nox -s "?(\w+)', TEXT))
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    assert named == {"build", "cell", "package"}
    assert all(re.search(rf"^def {name}\(session", noxfile, re.MULTILINE) for name in named)
