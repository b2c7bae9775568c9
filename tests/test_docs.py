"""The tables in docs/ are those of today, and what pages point at is there."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from coli.cli import main

ROOT = Path(__file__).parents[1]
WRITER = runpy.run_path(str(ROOT / "ci" / "write_docs.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("table", WRITER["TABLES"], ids=lambda table: f"{table[0]}-{table[1].split(':')[0][5:]}")
def test_tables_are_those_of_today(table: tuple[str, str, str, object]) -> None:
    name, begin, end, render = table
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert WRITER["replaced"](page, begin, end, render()) == page, "run: nox -s docs"  # type: ignore[operator]


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no"):
        WRITER["replaced"]("# Guide", "<!-- a -->", "<!-- b -->", "")


def test_every_slot_of_the_header_list_is_in_its_page() -> None:
    page = (ROOT / "docs" / "abi.md").read_text(encoding="utf-8")
    listed = (ROOT / "backends" / "abi" / "coli_slots.inc").read_text(encoding="utf-8")
    names = re.findall(r"^COLI_(?:SERVICE|STAGE)\(\w+, (\w+),", listed, re.MULTILINE)
    assert len(names) > 30
    assert [name for name in names if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_scripts_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    scripts = re.findall(r"`(?:python )?((?:ci|bench|tests|docs|backends|families)/[\w/.]+\.(?:py|h|inc|md))`", text)
    missing = [name for name in links if not (page.parent / name).exists()]
    missing += [name for name in scripts if not (ROOT / name).exists()]
    assert missing == []


def test_the_transcript_is_what_the_demo_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text) > 200
    assert " ".join(text.split()) in " ".join(readme.split())
