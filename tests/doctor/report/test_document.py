"""The document `coli.doctor/1`: its schema, its exit codes, and that the same machine gives the same bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import coli.doctor.report
from coli.doctor.checks.finding import Finding, Row
from coli.doctor.checks.graph import choose_checks, run_checks
from coli.doctor.checks.table import CHECKS
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.report.document import Report, decide_exit_code, find_anomalies, to_document
from coli.doctor.stages import StageRow

from ..machines import Machine, case_facts

SCHEMA = json.loads((Path(coli.doctor.report.__file__).parent / "coli.doctor.1.schema.json").read_text("utf-8"))
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def faults(value: Any, schema: dict[str, Any], at: str = "$") -> list[str]:
    """Return where ``value`` does not follow ``schema``: the part of JSON Schema that ours uses."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    known = {
        "type",
        "const",
        "enum",
        "pattern",
        "minimum",
        "minItems",
        "required",
        "properties",
        "items",
        "description",
    }
    assert set(schema) <= known | {"additionalProperties", "$schema", "$id", "title", "$defs"}
    found = []
    names = schema.get("type", [])
    kinds = [TYPES[name] for name in ([names] if isinstance(names, str) else names)]
    if kinds and not any(isinstance(value, kind) and not (kind is int and value is True) for kind in kinds):
        return [f"{at}: {type(value).__name__}"]
    if "const" in schema and value != schema["const"]:
        found.append(f"{at}: {value!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r}")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"{at}: {value!r}")
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{at}: {value}")
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            found.append(f"{at}: {len(value)} items")
        found += [
            fault
            for number, item in enumerate(value)
            for fault in faults(item, schema.get("items", {}), f"{at}[{number}]")
        ]
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        found += [f"{at}: {name} is missing" for name in schema.get("required", ()) if name not in value]
        for name, item in value.items():
            if name in properties:
                found += faults(item, properties[name], f"{at}.{name}")
            elif others is False:
                found.append(f"{at}: {name} is not in the schema")
            elif isinstance(others, dict):
                found += faults(item, others, f"{at}.{name}")
    return found


def report_of(facts: MachineFacts) -> Report:
    stages = (StageRow("matmul_fp8", "cpu-portable", "it serves every stage"),)
    checks = choose_checks(CHECKS, model=facts.model is not None)
    return Report(run_checks(checks, facts), facts, stages, times={"devices": 0.25})


def row(check: str, status: str, cause: str | None = None) -> Row:
    return Row(check, check.partition(".")[0], (Finding(f"{check}-x", status, "so"),), cause)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ["A-D02", "A-D11", "A-D15", "A-T02", "A-D13"])
def test_documents_follow_the_schema(case: str, tmp_path: Path) -> None:
    document = json.loads(json.dumps(to_document(report_of(case_facts(case, tmp_path)))))
    assert faults(document, SCHEMA) == []


def test_the_validator_sees_what_is_wrong(tmp_path: Path) -> None:
    document = to_document(report_of(Machine(tmp_path).facts()))
    broken = json.loads(json.dumps(document))
    broken["status"] = "fine"
    broken["checks"][0]["findings"] = []
    broken["more"] = 1
    del broken["version"]
    assert faults(broken, SCHEMA) == [
        "$: version is missing",
        "$.status: 'fine'",
        "$.checks[0].findings: 0 items",
        "$: more is not in the schema",
    ]


def test_the_same_machine_gives_the_same_bytes_apart_from_times(tmp_path: Path) -> None:
    machine = Machine(tmp_path).file("usr/lib/x86_64-linux-gnu/libcuda.so.1", "no library")
    first, second = (to_document(report_of(machine.facts())) for _ in range(2))
    first["times"] = second["times"] = None
    assert json.dumps(first) == json.dumps(second)


@pytest.mark.parametrize(
    ("statuses", "strict", "code"),
    [
        (["ok", "note", "skip"], True, 0),
        (["ok", "warn"], False, 0),
        (["ok", "warn"], True, 1),
        (["ok", "fail"], False, 1),
        (["fail", "timeout"], False, 3),
        (["ok", "crash"], False, 3),
    ],
)
def test_exit_codes(statuses: list[str], strict: bool, code: int) -> None:
    rows = tuple(row(f"a.{number}", status) for number, status in enumerate(statuses))
    assert decide_exit_code(Report(rows, MachineFacts(), strict=strict)) == code


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [(["ok", "skip"], "ok"), (["note", "skip", "ok"], "note"), (["skip", "warn"], "warn"), (["skip"], "skip")],
)
def test_what_was_left_out_is_no_fault(statuses: list[str], worst: str) -> None:
    rows = tuple(row(f"a.{number}", status) for number, status in enumerate(statuses))
    assert to_document(Report(rows, MachineFacts()))["status"] == worst


def test_root_causes_come_first() -> None:
    rows = (
        row("a.1", "warn"),
        row("b.1", "fail"),
        row("c.1", "fail"),
        row("d.1", "skip", "c.1"),
        row("e.1", "skip", "c.1"),
        row("f.1", "ok"),
    )
    found = [(one.row.check, one.hides) for one in find_anomalies(rows)]
    assert found == [("c.1", ("d.1", "e.1")), ("b.1", ()), ("a.1", ())]
