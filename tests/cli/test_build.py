"""`coli build`: what it lists and explains. That it builds is for tests/build_matrix and the long stages."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import coli.cli.build as build_command
from coli.build_matrix.matrix import load_matrix

sys.path.insert(0, str(Path(__file__).parents[1] / "build_matrix"))
from machines import program, toolkit


def test_the_list_has_every_cell_of_the_matrix(run: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    document = json.loads(run("build", "--list", "--json").out)
    assert document["schema"] == "coli.build/1"
    assert [row["id"] for row in document["cells"]] == list(load_matrix().cells)
    assert {row["evidence"] for row in document["cells"]} == {"not built"}
    shown = run("build", "--list", "--ascii").out
    assert shown.isascii() and "refused: arch-dropped-by-toolkit" in shown


def test_a_cell_is_explained_and_nothing_is_built(run: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run("build", "--explain", "cpu-portable")
    assert done.code == 0 and "host compiler: " in done.out and "libcoli_cpu_portable.so" in done.out
    assert not list(tmp_path.iterdir())


def test_explaining_downloads_nothing(run: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that is not installed, but for the pinned wheels; docs/build.md says how much those are."""
    for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("coli.build_matrix.machine.find_toolkits", lambda places: ())
    monkeypatch.setattr("coli.build_matrix.machine.make_bundle", lambda *a, **k: pytest.fail("it was to be fetched"))
    for cell, said in {
        "cuda13.0-portable-notc-generic": ["would download 104 MB: pypi:13.0"],
        "cuda13.0-portable-tc-generic": ["would download 525 MB: pypi:13.0"],
        "cuda13.0-portable-notc-deepgemm": ["would download 104 MB: pypi:13.0", "would download 5 MB: deepgemm"],
    }.items():
        (row,) = json.loads(run("build", "--explain", cell, "--json").out)["cells"]
        assert (row["id"], row["state"], row["library"], row["notes"]) == (cell, "planned", None, said)
    shown = run("build", "--explain", "cuda13.0-portable-notc-generic")
    assert shown.code == 0 and "would download 104 MB: pypi:13.0" in shown.out
    for cell, rule in {
        "cuda12.8-portable-tc-generic": "toolkit-missing",  # the wheels are of another release
        "cuda12.4-sm_120-notc-generic": "arch-needs-toolkit",  # its own rule, whatever is installed
        "cuda13.0-sm_101-notc-generic": "arch-dropped-by-toolkit",
    }.items():
        refused = run("build", "--explain", cell, "--json")
        assert refused.code in (2, 5) and json.loads(refused.out)["error"]["code"] == f"build.{rule}"
    assert not list(tmp_path.iterdir())


def test_a_misspelt_cell_is_a_usage_error(run: Any) -> None:
    done = run("build", "--cell", "cuda13-portable")
    assert done.code == 2 and "`coli build --list` shows the cells" in done.err


def test_a_tag_narrows_the_list_and_an_unknown_one_is_refused(run: Any) -> None:
    listed = json.loads(run("build", "--list", "--json", "--tag", "ci").out)["cells"]
    assert [row["id"] for row in listed] == [cell.id for cell in load_matrix().cells.values() if "ci" in cell.tags]
    for options in (("--list", "--tag", "CI"), ("--cell", "cpu-portable", "--tag", "ci")):
        refused = run("build", *options)
        assert refused.code == 2 and "--tag" in refused.err


def documented() -> dict[str, tuple[set[str], set[str]]]:
    """Return the keys of document and cells that docs/build.md names, by call."""
    page = (Path(__file__).parents[2] / "docs" / "build.md").read_text(encoding="utf-8")
    table = page.partition("<!-- documents -->")[2].partition("<!-- end of documents -->")[0]
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    return {call: (set(document.split(", ")), set(cell.split(", "))) for call, document, cell in rows}


def test_documents_have_the_keys_that_the_page_names(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that is none: the build fails at its first step, with all that a failure says."""
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    said = documented()
    calls = {
        "`--list --json`": ("--list", "--json"),
        "`--explain ID --json`": ("--explain", "cpu-portable", "--json"),
        "`--json`, refused": (
            "--cell",
            "cuda13.0-sm_101-notc-generic",
            "--toolkit",
            str(toolkit(tmp_path / "t", "13.0.88")),
            "--json",
        ),
    }
    for call, options in calls.items():
        document = json.loads(run("build", *options).out)
        assert (set(document), set(document["cells"][0])) == said[call], call
    fake = program(tmp_path / "bin" / "g++", "g++ (GCC) 12.2.0\nCopyright (C) 2022 Free Software Foundation, Inc.\n")
    monkeypatch.setenv("NVCC_CCBIN", str(fake))
    monkeypatch.setenv("PATH", f"{fake.parent}:/bin-that-is-not")
    done = run("build", "--cell", "cpu-portable", "--json", "--builds", str(tmp_path / "builds"))
    document = json.loads(done.out)
    assert done.code == 1 and document["cells"][0]["state"] == "failed"
    assert (set(document), set(document["cells"][0])) == said["`--json`, failed"]
    assert f"in all {document['seconds']:.1f} s" in done.err and "compiler cache: " in done.err


@pytest.mark.full
def test_a_build_and_its_repetition_say_what_they_took(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real thing, for the smallest cell, and the same document when nothing is left to do."""
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "CCACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for state in ("built", "unchanged"):
        document = json.loads(run("build", "--cell", "cpu-portable", "--json", "--builds", str(tmp_path / "b")).out)
        (cell,) = document["cells"]
        assert cell["state"] == state and (set(document), set(cell)) == documented()["`--json`, built or unchanged"]
        assert hashlib.sha256(Path(cell["library"]).read_bytes()).hexdigest() == cell["sha256"]
        assert 0 <= cell["seconds"] <= document["seconds"]
    listed = json.loads(run("build", "--list", "--json").out)["cells"]
    evidence = {row["id"]: row["evidence"] for row in listed}
    assert evidence["cpu-portable"].startswith("ran on ") and evidence["cpu-neon"] == "not built"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_build_that_is_told_to_end_cleans_up_as_for_ctrl_c(name: str) -> None:
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended, build_command._ending_at_once():
            os.kill(os.getpid(), number)
        assert ended.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)  # nohup
        with build_command._ending_at_once():
            assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
