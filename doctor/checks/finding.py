"""What a check is and what it finds: plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from coli.backends.devices.facts import Fact
from coli.doctor.facts.machine import MachineFacts

__all__ = ["BLOCKING", "FINAL", "STATUSES", "Check", "Evidence", "Finding", "Row", "Status", "not_known", "seen"]

Status = Literal["ok", "note", "skip", "warn", "fail", "timeout", "crash"]
STATUSES: tuple[Status, ...] = ("ok", "note", "skip", "warn", "fail", "timeout", "crash")
"""From the best to the worst. ``skip``: not judged; ``timeout`` and ``crash``: the doctor could not finish there."""

BLOCKING = frozenset(("fail", "timeout", "crash"))
"""What needs a check with one of these is not run: it would only repeat the cause."""


FINAL = frozenset(("family.no-engine", "family.unknown-type", "checkpoint.tokenizer-kind"))
"""Codes of models that cannot run here whatever is done to their files. They are said before what a download mends."""


@dataclass(frozen=True)
class Evidence:
    """What was seen, and where: a file, a tool, a variable."""

    text: str
    source: str


def seen(text: str, fact: Fact[Any] | str) -> Evidence:
    """Return evidence whose source is that of a fact."""
    return Evidence(text, fact if isinstance(fact, str) else fact.source)


@dataclass(frozen=True)
class Finding:
    """One finding. ``code`` is stable and has a page (`coli explain CODE`).

    ``summary``: one sentence. ``fix``: what to do, ``commands``: lines to paste that do it. ``cost``: what it costs the
    user as it is. ``notable``: a note that is shown at the top all the same, because it takes much of the machine away.
    """

    code: str
    status: Status
    summary: str
    evidence: tuple[Evidence, ...] = ()
    fix: str | None = None
    commands: tuple[str, ...] = ()
    cost: str | None = None
    notable: bool = False


def not_known(section: str, what: str, source: str) -> Finding:
    """Return that something cannot be judged, and why. It is never "ok"."""
    return Finding(f"{section}.not-known", "skip", f"not known: {what} ({source})", (Evidence(source, section),))


@dataclass(frozen=True)
class Check:
    """A pure function of facts. ``needs``: checks that must not have failed; ``reads``: fields of MachineFacts.

    ``asks``: what it answers, for `--list`. ``model``: it needs the argument MODEL.
    """

    id: str
    needs: tuple[str, ...]
    reads: tuple[str, ...]
    asks: str
    run: Callable[[MachineFacts], Iterable[Finding]]
    model: bool = False

    @property
    def section(self) -> str:
        """Return the part of the id before the dot."""
        return self.id.partition(".")[0]


@dataclass(frozen=True)
class Row:
    """A check with its findings, one at least. ``cause``: the check whose failure kept it from running."""

    check: str
    section: str
    findings: tuple[Finding, ...]
    cause: str | None = None

    @property
    def status(self) -> Status:
        """Return the worst status of its findings."""
        return max((finding.status for finding in self.findings), key=STATUSES.index)
