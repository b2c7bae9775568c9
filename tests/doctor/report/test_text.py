"""The report on a terminal: widths, the ASCII twin, commands that can be copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from coli.doctor.checks.finding import Evidence, Finding, Row
from coli.doctor.checks.graph import choose_checks, run_checks
from coli.doctor.checks.table import CHECKS
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.report.document import Report
from coli.doctor.report.text import render_text
from coli.doctor.stages import StageRow

from ..machines import case_facts

LONG = "/a/long/path/" + "folder/" * 20


def lines(report: Report, width: int = 80, **options: bool) -> list[str]:
    return ["".join(text for text, _ in line) for line in render_text(report, width, **options)]


def report(*rows: Row) -> Report:
    return Report(rows, MachineFacts())


BROKEN = report(
    Row(
        "driver.state",
        "driver",
        (
            Finding(
                "driver.mismatch",
                "fail",
                "the driver was upgraded",
                (Evidence("kernel module 550", "/proc/driver/nvidia/version"),),
                fix="reboot",
                commands=(f"cp {LONG} ~/",),
                cost="no GPU is used",
            ),
        ),
    ),
    Row(
        "devices.visible",
        "devices",
        (Finding("doctor.not-run", "skip", "not run: needs driver.state"),),
        "driver.state",
    ),
    Row("cpu.level", "cpu", (Finding("cpu.level", "ok", "level x86-64-v3"),)),
)


def test_the_whole_of_it() -> None:
    assert lines(BROKEN, ascii=True) == [
        "1 problem",
        "",
        "  FAIL    the driver was upgraded  [driver.mismatch]",
        "          seen     kernel module 550 (/proc/driver/nvidia/version)",
        "          cost     no GPU is used",
        "          fix      reboot",
        f"                   $ cp {LONG} ~/",
        "          hides    not run because of it: devices.visible",
        "",
        "Driver",
        "  FAIL    the driver was upgraded  [driver.mismatch]",
        "",
        "GPUs",
        "  -       not run: needs driver.state",
        "",
        "Processor",
        "  ok      level x86-64-v3",
        "",
        "1 ok, 1 failed, 1 not judged (of 3 checks)",
        "`coli explain CODE` says more about a [code]",
    ]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("case", ["A-D02", "A-D12", "A-D15", "A-T02"])
def test_nothing_but_commands_is_wider_than_the_terminal(case: str, width: int, tmp_path: Path) -> None:
    facts = case_facts(case, tmp_path)
    shown = lines(Report(run_checks(choose_checks(CHECKS, model=False), facts), facts), width)
    long = [line for line in shown if len(line) > width and "$ " not in line]
    assert [line for line in long if str(tmp_path) not in line] == []  # a path is never broken


def test_the_ascii_twin_has_only_ascii(tmp_path: Path) -> None:
    facts = case_facts("A-D11", tmp_path)
    rows = run_checks(choose_checks(CHECKS, model=False), facts)
    odd = Row("cpu.level", "cpu", (Finding("cpu.level", "ok", "Prozessor mit ü und 处理器"),))
    for verbose in (False, True):
        shown = "\n".join(lines(Report((*rows, odd), facts), ascii=True, verbose=verbose))
        assert shown.isascii()


def test_what_a_tool_printed_is_shown_and_not_obeyed() -> None:
    finding = Finding("driver.failed", "fail", "it said \x1b[2J\x07", (Evidence("\x1b]0;title\x07", "tool\x1b[31m"),))
    shown = "\n".join(lines(report(Row("driver.state", "driver", (finding,)))))
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown


def test_the_same_thing_that_is_missing_is_said_once() -> None:
    rows = [Row(f"devices.{n}", "devices", (Finding("devices.none", "skip", "no GPU"),)) for n in range(3)]
    assert [line for line in lines(report(*rows), ascii=True) if "no GPU" in line] == ["  -       no GPU"]
    assert len([line for line in lines(report(*rows), verbose=True) if "no GPU" in line]) == 3


def test_verbose_shows_the_evidence_of_what_is_well() -> None:
    row = Row("cpu.level", "cpu", (Finding("cpu.level", "ok", "fine", (Evidence("avx2", "/proc/cpuinfo"),)),))
    assert not any("avx2" in line for line in lines(report(row)))
    assert any("seen     avx2 (/proc/cpuinfo)" in line for line in lines(report(row), verbose=True))


def test_stages_are_grouped_by_backend_and_reason() -> None:
    stages = (
        StageRow("embed", "cpu-portable", "cuda leaves it to the CPU"),
        StageRow("matmul_fp8", "cuda", "on RTX 3080"),
        StageRow("moe", "cpu-portable", "cuda leaves it to the CPU"),
    )
    shown = lines(Report((), MachineFacts(), stages))
    assert "  cpu-portable: 2 stages, cuda leaves it to the CPU" in shown
    assert "          embed, moe" in shown
    assert "  cuda: 1 stage, on RTX 3080" in shown
