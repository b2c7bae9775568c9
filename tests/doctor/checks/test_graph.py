"""The graph of checks: order, causes that hide their consequences, crashes and time-outs as rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest

from coli.doctor.checks.finding import Check, Finding
from coli.doctor.checks.graph import choose_checks, ordered, run_checks
from coli.doctor.checks.table import CHECKS, SECTIONS
from coli.doctor.facts.bounded import Task, Unfinished
from coli.doctor.facts.machine import FIELDS, MachineFacts, ProbeProblem
from coli.errors import UsageError

FACTS = MachineFacts()


def check(id: str, *needs: str, status: str = "ok", reads: tuple[str, ...] = (), model: bool = False) -> Check:
    finding = Finding(f"{id}-found", status, f"{id} is {status}")  # type: ignore[arg-type]
    return Check(id, needs, reads, "?", lambda facts: [finding], model)


def raising(id: str, function: Callable[[MachineFacts], Iterable[Finding]]) -> Check:
    return Check(id, (), (), "?", function)


def test_checks_stand_behind_what_they_need_and_else_where_they_were() -> None:
    checks = [check("c.1", "a.1"), check("b.1"), check("a.1", "d.1"), check("d.1")]
    assert [one.id for one in ordered(checks)] == ["b.1", "d.1", "a.1", "c.1"]


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="need each other"):
        ordered([check("a.1", "b.1"), check("b.1", "a.1")])


def test_a_failure_hides_what_needs_it_and_what_needs_that() -> None:
    rows = run_checks(
        ordered([check("a.1", status="fail"), check("b.1", "a.1"), check("c.1", "b.1"), check("d.1")]), FACTS
    )
    shown = [(row.check, row.status, row.cause, row.findings[0].summary) for row in rows]
    assert shown == [
        ("a.1", "fail", None, "a.1 is fail"),
        ("b.1", "skip", "a.1", "not run: needs a.1"),
        ("c.1", "skip", "a.1", "not run: needs a.1"),  # the cause, not the check between
        ("d.1", "ok", None, "d.1 is ok"),
    ]


@pytest.mark.parametrize("status", ["ok", "note", "skip", "warn"])
def test_anything_less_than_a_failure_hides_nothing(status: str) -> None:
    rows = run_checks([check("a.1", status=status), check("b.1", "a.1")], FACTS)
    assert rows[1].status == "ok"


def test_a_crash_is_a_row_that_says_where() -> None:
    def crash(facts: MachineFacts) -> Iterable[Finding]:
        raise ZeroDivisionError("on purpose")

    (row, after) = run_checks([raising("a.1", crash), check("b.1", "a.1")], FACTS)
    assert (row.status, row.findings[0].code) == ("crash", "doctor.crash")
    assert "ZeroDivisionError: on purpose" in row.findings[0].evidence[0].text
    assert after.cause == "a.1"


def test_a_check_that_says_nothing_is_a_crash() -> None:
    (row,) = run_checks([raising("a.1", lambda facts: [])], FACTS)
    assert row.status == "crash"


def test_a_check_that_hangs_is_a_row() -> None:
    gate = threading.Event()

    def hang(facts: MachineFacts) -> Iterable[Finding]:
        gate.wait(60)
        return [Finding("a.1", "ok", "")]

    (row,) = run_checks([raising("a.1", hang)], FACTS, deadline_s=0.05)
    gate.set()
    assert (row.status, row.findings[0].evidence[0].text) == ("timeout", "no answer within 0.05 s")


@pytest.mark.parametrize("kind", ["crash", "timeout"])
def test_a_probe_without_an_answer_is_a_row_of_each_check_that_reads_it(kind: str) -> None:
    problem = ProbeProblem("memory", kind, "what it said")  # type: ignore[arg-type]
    rows = run_checks(
        [check("a.1", reads=("memory",)), check("b.1", reads=("cpu",))], MachineFacts(problems=(problem,))
    )
    assert [row.status for row in rows] == [kind, "ok"]
    assert rows[0].findings[0].evidence[0].text == "what it said"


def test_only_brings_what_is_needed_and_skip_counts_as_passed() -> None:
    checks = [check("a.1"), check("b.1", "a.1"), check("c.1", "b.1"), check("d.1")]
    assert [one.id for one in choose_checks(checks, ["c.1"])] == ["a.1", "b.1", "c.1"]
    chosen = choose_checks(checks, ["c"], ["a.1"])
    assert [one.id for one in chosen] == ["b.1", "c.1"]
    assert {row.status for row in run_checks(chosen, FACTS)} == {"ok"}


def test_checks_of_a_model_are_left_out_without_one() -> None:
    checks = [check("a.1"), check("b.1", model=True)]
    assert [one.id for one in choose_checks(checks, model=False)] == ["a.1"]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        choose_checks(CHECKS, ["driver.stat"])
    assert (caught.value.code, caught.value.fix) == ("usage.check", "did you mean driver.state?")


def test_the_table_is_in_order_and_reads_what_there_is() -> None:
    assert len({one.id for one in CHECKS}) == len(CHECKS)
    assert {one.section for one in CHECKS} == set(SECTIONS)
    assert [name for one in CHECKS for name in one.reads if name not in FIELDS] == []
    ordered(CHECKS)


def test_a_task_gives_its_result_or_says_why_not() -> None:
    assert Task(lambda: 5, 10.0).result() == 5
    assert Task(lambda: None, 10.0).result() is None
    outcome = Task(lambda: [][0], 10.0).result()
    assert isinstance(outcome, Unfinished)
    assert (outcome.kind, outcome.text.split(" in ")[0]) == ("crash", "IndexError: list index out of range")


def test_a_probe_that_crashed_is_told_once() -> None:
    """The checks that read what it would have found are its consequences, not four problems."""
    facts = MachineFacts(problems=(ProbeProblem("storage", "crash", "played"),))
    rows = run_checks(choose_checks(CHECKS, ["storage"]), facts)
    assert [row.status for row in rows].count("crash") == 1
    assert {row.cause for row in rows[1:]} == {rows[0].check}
