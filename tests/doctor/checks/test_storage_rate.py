"""The measured rate of the model's disk."""

from __future__ import annotations

import pytest

from coli.backends.devices import Fact
from coli.doctor.checks.graph import choose_checks, run_checks
from coli.doctor.checks.table import CHECKS
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.facts.measure import Measured


@pytest.mark.parametrize(
    ("rate", "status", "code", "summary"),
    [
        (6.1e9, "ok", "storage.bandwidth", "/data (/dev/nvme0n1) reads experts at 6.10 GB/s"),
        (0.15e9, "warn", "storage.slow", "/data (/dev/nvme0n1) reads experts at 0.15 GB/s"),
        (None, "skip", "storage.not-known", "not known: how fast /data (/dev/nvme0n1) reads experts: too few records"),
    ],
)
def test_what_was_measured(rate: float | None, status: str, code: str, summary: str) -> None:
    fact: Fact[float] = Fact.unknown("too few records") if rate is None else Fact.of(rate, "direct reads")
    facts = MachineFacts(measured=Measured("/data (/dev/nvme0n1)", "2026-01-02T03:04:05+00:00", fact))
    (row,) = run_checks(choose_checks(CHECKS, ["storage.bandwidth"]), facts)
    assert (row.status, row.findings[0].code, row.findings[0].summary) == (status, code, summary)


def test_what_was_not_measured_names_the_command() -> None:
    (row,) = run_checks(choose_checks(CHECKS, ["storage.bandwidth"]), MachineFacts(model="/my models/x"))
    assert row.findings[0].commands == ("coli doctor '/my models/x' --measure",)
