"""Every machine of tests/machines through the whole `coli doctor`, against what its raw inputs say, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coli.doctor.checks.graph import choose_checks, run_checks
from coli.doctor.checks.table import CHECKS
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.record.plain import from_plain
from coli.doctor.report.document import Report
from coli.doctor.report.text import Line, render_text

from .replayed import Laid, doctor, expected, flat, lay_out, names
from .report.test_document import SCHEMA, faults

NAMES = names()
# What every machine says, whatever else is of interest there.
ALWAYS = {"gpus", "backend", "findings", "hidden", "exit"}


def examine(laid: Laid) -> dict[str, Any]:
    code, out, errors = doctor(laid, "--json")
    assert errors == ""
    document: dict[str, Any] = json.loads(out)
    assert document["exit_code"] == code
    return document


def timeless(document: dict[str, Any]) -> str:
    return json.dumps({**document, "times": None})


def rendered(facts: MachineFacts) -> list[Line]:
    chosen = choose_checks(CHECKS, (), ("checkpoint",), model=facts.model is not None)
    return render_text(Report(run_checks(chosen, facts), facts), 80, ascii=True, verbose=True)


def test_there_are_enough_of_them() -> None:
    assert len(NAMES) >= 40
    assert [name for name in NAMES if not set(expected(name)["expect"]) >= ALWAYS] == []


@pytest.mark.parametrize("name", NAMES)
def test_machine(name: str, tmp_path: Path) -> None:
    laid = lay_out(name, tmp_path / "root")
    document = examine(laid)
    facts = from_plain(document["facts"], MachineFacts)
    found, wanted = flat(document, facts, laid), expected(name)["expect"]
    assert {key: found[key] for key in wanted} == wanted
    assert faults(document, SCHEMA) == []
    assert str(tmp_path) not in json.dumps(document)  # where the tree lies is no fact of the machine
    assert timeless(examine(laid)) == timeless(document)
    lines = ["".join(text for text, _ in line) for line in rendered(facts)]
    assert [line for line in lines if not line.isascii()] == []
    # Commands are for copying and are not cut; a word that is longer than the line is not either.
    long = [line for line in lines if len(line) > 80 and " $ " not in line and len(line.split()[-1]) < 40]
    assert long == []
