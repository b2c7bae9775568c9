"""What `coli build` needs beside a compiler is noted before it is missed."""

from __future__ import annotations

from coli.backends.devices.facts import Fact
from coli.doctor.checks.graph import choose_checks, run_checks
from coli.doctor.checks.table import CHECKS
from coli.doctor.facts.machine import CompilerFacts, MachineFacts


def codes(missing: Fact[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    facts = MachineFacts(compilers=CompilerFacts((), missing_tools=missing))
    rows = run_checks(choose_checks(CHECKS, ["compiler.host"]), facts)
    return {finding.code: finding.commands for row in rows for finding in row.findings}


def test_missing_tools_are_a_note_with_the_way_out() -> None:
    assert codes(Fact.of(("ninja",), "PATH"))["compiler.tools-missing"] == ("pip install ninja",)
    assert "compiler.tools-missing" not in codes(Fact.of((), "PATH"))
    assert "compiler.tools-missing" not in codes(Fact.unknown("another machine"))
