"""Space and rights of the folders that coli writes to. A tree tells no free bytes, so they are put in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coli.backends.devices.facts import Fact
from coli.doctor.checks.graph import choose_checks, run_checks
from coli.doctor.checks.table import CHECKS
from coli.doctor.facts.storage import StorageFacts

from ..machines import Machine


@pytest.mark.parametrize(
    ("free", "read_only", "code", "status"),
    [
        (Fact.of(300 << 20, "statvfs"), False, "storage.full", "warn"),
        (Fact.of(0, "statvfs"), False, "storage.full", "warn"),
        (Fact.of(50 << 30, "statvfs"), False, "storage.space", "ok"),
        (Fact.of(50 << 30, "statvfs"), True, "storage.read-only", "warn"),
        (Fact[int].unknown("it did not answer"), True, "storage.read-only", "warn"),
        (Fact[int].unknown("it did not answer"), False, "storage.not-known", "skip"),
    ],
)
def test_space(free: Fact[int], read_only: bool, code: str, status: str, tmp_path: Path) -> None:
    facts = Machine(tmp_path).facts(fields=())
    place = StorageFacts(
        "cache", "/home/user/.cache/coli", mount_point=Fact.of("/home", "x"), read_only=Fact.of(read_only, "x")
    )
    facts = replace(facts, storage=(replace(place, free_bytes=free),))
    (row,) = run_checks(choose_checks(CHECKS, ("storage.space",), model=False), facts)
    assert [(finding.code, finding.status) for finding in row.findings] == [(code, status)]
