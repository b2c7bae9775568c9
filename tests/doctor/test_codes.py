"""Every code that the sources show has a page, and `coli explain` finds it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from coli.build_matrix.classify import CLASSES
from coli.cli import main
from coli.doctor.codes import find_page, load_pages
from coli.errors import UsageError

from .codes_in_sources import ROOT, every_code

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = sorted((ROOT / "doctor" / "codes").glob("*.toml"))


def test_every_code_of_the_sources_has_a_page() -> None:
    codes, pages = every_code(), load_pages()
    assert len(codes) > 250
    assert {code: place for code, place in codes.items() if code not in pages} == {}


@pytest.mark.parametrize(
    "code",
    ["driver.mismatch", "file.writable", "checkpoint.truncated", "usage.size", "stage.bind-scale", "slots.absent"],
)
def test_the_collector_sees_each_way_in_which_a_code_is_written(code: str) -> None:
    assert code in every_code()


def test_rules_and_causes_of_builds_have_pages() -> None:
    matrix = tomllib.loads((ROOT / "build_matrix" / "matrix.toml").read_text("utf-8"))
    pages = load_pages()
    for rule in matrix["rule"]:
        assert pages[f"build.{rule['id']}"].fix == rule["fix"]
    assert all(f"log.{cause.id}" in pages for cause in CLASSES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_pages_are_whole_and_stand_once(path: Path) -> None:
    others = [tomllib.loads(other.read_text("utf-8")) for other in FILES if other != path]
    for code, page in tomllib.loads(path.read_text("utf-8")).items():
        assert set(page) == {"what", "why", "fix"}, code
        assert all(text.strip().endswith(".") for text in page.values()), code
        assert not any(code in other for other in others), code


@pytest.mark.parametrize("command", re.findall(r"`(coli [a-z]+)", "".join(path.read_text("utf-8") for path in FILES)))
def test_commands_that_pages_name_are_commands(command: str) -> None:
    # `coli plan` comes with the plan.
    assert command.split()[1] in {
        "build",
        "backends",
        "config",
        "doctor",
        "explain",
        "families",
        "plan",
        "run",
        "verify",
    }


def test_explain_shows_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "driver.mismatch"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "driver.mismatch what The kernel still runs the module of an older driver" in shown
    assert "fix Reboot." in shown


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("backend.file.writable", "file.writable"),  # as an error shows a gate's code
        ("[driver.mismatch]", "driver.mismatch"),  # as the report shows it
        ("glibc-math-clash", "log.glibc-math-clash"),
        ("native-without-gpu", "build.native-without-gpu"),
    ],
)
def test_codes_are_found_as_they_are_shown(given: str, code: str) -> None:
    assert find_page(given, load_pages()).code == code


def test_an_unknown_code_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        find_page("driver.mismach", load_pages())
    assert caught.value.fix == "did you mean driver.mismatch?"
    assert caught.value.exit_code == 2


def test_a_section_lists_its_codes() -> None:
    with pytest.raises(UsageError) as caught:
        find_page("gpu", load_pages())
    assert caught.value.expected == "one of gpu.used, gpu.none, gpu.not-known"


def test_json_of_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "os.closed", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "coli.explain/1"
    assert [page["code"] for page in document["pages"]] == ["os.closed"]


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(load_pages())
