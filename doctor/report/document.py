"""The report as data: what the checks found, the exit code, and the document `coli.doctor/1`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coli.doctor.checks.finding import BLOCKING, FINAL, STATUSES, Finding, Row, Status
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.record.plain import to_plain
from coli.doctor.stages import StageRow

if TYPE_CHECKING:
    from coli.doctor.plan.planning import Planned

__all__ = [
    "EXIT_UNFINISHED",
    "SCHEMA",
    "Anomaly",
    "Report",
    "decide_exit_code",
    "find_anomalies",
    "find_notable",
    "to_document",
]

SCHEMA = "coli.doctor/1"
EXIT_UNFINISHED = 3
_ORDER = ("fail", "timeout", "crash", "warn")


@dataclass(frozen=True)
class Report:
    """Everything that a renderer shows. ``stages``: where each stage of the model will run, if that is known.

    ``planned``: which bytes go into which tier, if that is known.

    ``times``: seconds by probe, and nothing else in the report depends on when it was made.
    """

    rows: tuple[Row, ...]
    facts: MachineFacts
    stages: tuple[StageRow, ...] = ()
    strict: bool = False
    times: dict[str, float] = field(default_factory=dict)
    planned: Planned | None = None

    @property
    def counts(self) -> dict[Status, int]:
        """Return how many checks have each status."""
        return {status: sum(row.status == status for row in self.rows) for status in STATUSES}

    @property
    def status(self) -> Status:
        """Return the worst status of what was judged, ``skip`` when nothing was: to leave something out is no fault."""
        judged = [row.status for row in self.rows if row.status != "skip"]
        return max(judged, key=STATUSES.index, default="skip")


@dataclass(frozen=True)
class Anomaly:
    """A finding that asks for something. ``hides``: the checks that were not run because of its check."""

    row: Row
    finding: Finding
    hides: tuple[str, ...]


def find_anomalies(rows: Sequence[Row]) -> tuple[Anomaly, ...]:
    """Return warnings and failures: by status, then what nothing here can change, then root causes of most. Pure."""
    found = []
    for row in rows:
        hides = tuple(other.check for other in rows if other.cause == row.check)
        for finding in row.findings:
            if finding.status in _ORDER:
                # A warning beside a failure hides nothing.
                found.append(Anomaly(row, finding, hides if finding.status in BLOCKING else ()))

    def rank(one: Anomaly) -> tuple[int, bool, int]:
        return _ORDER.index(one.finding.status), one.finding.code not in FINAL, -len(one.hides)

    return tuple(sorted(found, key=rank))


def find_notable(rows: Sequence[Row]) -> tuple[Finding, ...]:
    """Return the notes that are shown at the top. Pure."""
    return tuple(finding for row in rows for finding in row.findings if finding.status == "note" and finding.notable)


def decide_exit_code(report: Report) -> int:
    """Return 3 when a check or probe did not finish, 1 for a failure (with ``strict`` for a warning too), else 0."""
    statuses = {row.status for row in report.rows}
    if statuses & {"crash", "timeout"}:
        return EXIT_UNFINISHED
    return 1 if "fail" in statuses or (report.strict and "warn" in statuses) else 0


def to_document(report: Report) -> dict[str, Any]:
    """Return the document `coli.doctor/1`; `coli.doctor.1.schema.json` beside this module describes it."""
    versions = report.facts.versions
    return {
        "schema": SCHEMA,
        "version": versions.coli.value if versions is not None else None,
        "model": report.facts.model,
        "status": report.status,
        "strict": report.strict,
        "exit_code": decide_exit_code(report),
        "counts": report.counts,
        "anomalies": [
            {"check": one.row.check, "code": one.finding.code, "status": one.finding.status, "hides": list(one.hides)}
            for one in find_anomalies(report.rows)
        ],
        "checks": [_row(row) for row in report.rows],
        "stages": [row.as_dict() for row in report.stages],
        "facts": to_plain(report.facts),
        "times": {name: round(seconds, 3) for name, seconds in sorted(report.times.items())},
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "id": row.check,
        "section": row.section,
        "status": row.status,
        "needs_first": row.cause,
        "findings": [
            {
                "code": finding.code,
                "status": finding.status,
                "summary": finding.summary,
                "evidence": [{"text": one.text, "source": one.source} for one in finding.evidence],
                "fix": finding.fix,
                "commands": list(finding.commands),
                "cost": finding.cost,
            }
            for finding in row.findings
        ],
    }
