"""Choose checks, order them by what they need, and run them: a root cause keeps its consequences from being shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coli.doctor.checks.commands import as_root
from coli.doctor.checks.finding import BLOCKING, Check, Evidence, Finding, Row
from coli.doctor.facts.bounded import Task, Unfinished
from coli.doctor.facts.machine import MachineFacts
from coli.errors import UsageError
from coli.settings.names import nearest

__all__ = ["CHECK_DEADLINE_S", "choose_checks", "ordered", "run_checks"]

CHECK_DEADLINE_S = 10.0  # a check only looks at facts: one that takes this long hangs


def choose_checks(
    checks: Sequence[Check], only: Iterable[str] = (), skip: Iterable[str] = (), *, model: bool = True
) -> tuple[Check, ...]:
    """Return the checks to run, with all that they need, in order.

    ``only`` and ``skip`` name checks or sections; what is skipped counts as passed for those that need it. ``model``
    False leaves out the checks of a model. Raises UsageError for a name that is not known.
    """
    by_id = {check.id: check for check in checks}
    wanted = _named(checks, only, "--only") if (only := tuple(only)) else set(by_id)
    queue = list(wanted)
    while queue:
        for need in by_id[queue.pop()].needs:
            if need not in wanted:
                wanted.add(need)
                queue.append(need)
    wanted -= _named(checks, skip, "--skip")
    return tuple(check for check in ordered(checks) if check.id in wanted and (model or not check.model))


def _named(checks: Sequence[Check], names: Iterable[str], option: str) -> set[str]:
    found: set[str] = set()
    for name in names:
        matching = {check.id for check in checks if name in (check.id, check.section)}
        if not matching:
            known = [*(check.id for check in checks), *dict.fromkeys(check.section for check in checks)]
            close = nearest(name, known)
            raise UsageError(
                option,
                "is neither a check nor a section",
                observed=repr(name),
                expected="a name that `coli doctor --list` shows",
                fix=f"did you mean {close}?" if close else None,
                code="usage.check",
            )
        found |= matching
    return found


def ordered(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return the checks so that each stands behind what it needs, else as they are. Raises ValueError for a circle."""
    placed: dict[str, Check] = {}
    waiting = list(checks)
    while waiting:
        ready = next((check for check in waiting if all(need in placed for need in check.needs)), None)
        if ready is None:
            raise ValueError(f"checks that need each other or what is not there: {[check.id for check in waiting]}")
        placed[ready.id] = ready
        waiting.remove(ready)
    return tuple(placed.values())


def run_checks(checks: Sequence[Check], facts: MachineFacts, deadline_s: float = CHECK_DEADLINE_S) -> tuple[Row, ...]:
    """Run ordered checks. A crash, a time-out and a check that is not run are rows as well."""
    rows: dict[str, Row] = {}
    first: dict[str, str] = {}  # field of the facts -> the check that tells that its probe did not finish
    unfinished = {problem.field for problem in facts.problems}
    for check in checks:
        cause = next((_cause(rows[need]) for need in check.needs if need in rows and _blocks(rows[need])), None)
        cause = cause or next((first[field] for field in check.reads if field in first), None)
        if cause is None:
            first.update((field, check.id) for field in check.reads if field in unfinished)
        else:
            finding = Finding("doctor.not-run", "skip", f"not run: needs {cause}")
            rows[check.id] = Row(check.id, check.section, (finding,), cause)
            continue
        rows[check.id] = Row(check.id, check.section, _findings(check, facts, deadline_s))
    return tuple(rows.values())


def _blocks(row: Row) -> bool:
    return row.cause is not None or row.status in BLOCKING


def _cause(row: Row) -> str:
    return row.cause or row.check


def _findings(check: Check, facts: MachineFacts, deadline_s: float) -> tuple[Finding, ...]:
    unfinished = [problem for problem in facts.problems if problem.field in check.reads]
    if unfinished:
        return tuple(_unfinished(f"the probe of {one.field}", one.kind, one.text, facts) for one in unfinished)
    outcome = Task(lambda: tuple(check.run(facts)), deadline_s).result()
    if isinstance(outcome, Unfinished):
        return (_unfinished(f"the check {check.id}", outcome.kind, outcome.text, facts),)
    if not outcome:
        return (_unfinished(f"the check {check.id}", "crash", "it found nothing, not even that all is well", facts),)
    return outcome


def _unfinished(what: str, kind: str, text: str, facts: MachineFacts) -> Finding:
    if kind == "timeout":
        return Finding(
            "doctor.timeout",
            "timeout",
            f"{what} did not end in time",
            (Evidence(text, "doctor"),),
            fix="run it again when the machine is idle; a disk or a driver that hangs shows in the kernel's log",
            commands=(as_root("dmesg | tail -n 50", facts),),
        )
    return Finding(
        "doctor.crash",
        "crash",
        f"{what} crashed, a mistake in coli itself",
        (Evidence(text, "doctor"),),
        fix="report it, with the file that this writes",
        commands=("coli doctor --record machine.json",),
    )
