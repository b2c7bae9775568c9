"""`coli build`: what it lists and explains. That it builds is for tests/build_matrix and the long stages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coli.build_matrix.matrix import load_matrix


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


def test_a_misspelt_cell_is_a_usage_error(run: Any) -> None:
    done = run("build", "--cell", "cuda13-portable")
    assert done.code == 2 and "--list shows the cells" in done.err
