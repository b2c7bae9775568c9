"""Plan against run: bytes of a tier as planned, as the ledger held them and as the system counted them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coli.engine.run_record import RunRecord

__all__ = ["AuditRow", "audit_rows"]

# Planned and measured may differ by this share or this much, whichever is more: pages of libraries, threads' stacks.
_SHARE = 0.02
_BYTES = 8 << 20


@dataclass(frozen=True)
class AuditRow:
    """One tier. ``verdict``: `agrees`, `below` (the run did not fill what was planned) or `above`."""

    tier: str
    planned_bytes: int
    reserved_bytes: int
    measured_bytes: int | None
    verdict: str

    @property
    def difference_bytes(self) -> int:
        """Return measured less planned."""
        return (self.reserved_bytes if self.measured_bytes is None else self.measured_bytes) - self.planned_bytes


def audit_rows(planned: Mapping[str, int], record: RunRecord) -> tuple[AuditRow, ...]:
    """Return a row for each tier. ``planned``: bytes by tier."""
    rows = []
    for tier, nbytes in planned.items():
        reported: Mapping[str, Any] = record.tiers.get(tier, {})
        reserved = int(reported.get("peak_bytes", 0))
        # The system counts the RAM of a process; of device memory only the ledger knows.
        measured = record.peak_resident_bytes if tier == "ram" else None
        rows.append(AuditRow(tier, nbytes, reserved, measured, _verdict(nbytes, measured, reserved)))
    return tuple(rows)


def _verdict(planned: int, measured: int | None, reserved: int) -> str:
    found = reserved if measured is None else measured
    allowed = max(_BYTES, int(_SHARE * planned))
    return "agrees" if abs(found - planned) <= allowed else "above" if found > planned else "below"
