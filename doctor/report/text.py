"""The report for a terminal: what needs somebody on top, then each section, then one line that counts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from coli.doctor.checks.finding import Finding, Row, Status
from coli.doctor.checks.table import SECTIONS
from coli.doctor.report.document import Anomaly, Report, find_anomalies
from coli.doctor.stages import StageRow
from coli.printable import printable

__all__ = ["Line", "render_text"]

Line = tuple[tuple[str, str], ...]
"""Pieces of one line, each a text and its style (as rich names them; "" is plain)."""

_WORDS: dict[Status, str] = {
    "ok": "ok",
    "note": "note",
    "skip": "-",
    "warn": "WARN",
    "fail": "FAIL",
    "timeout": "TIME",
    "crash": "CRASH",
}
_SYMBOLS: dict[Status, str] = {
    "ok": "✓",
    "note": "•",
    "skip": "·",
    "warn": "▲",
    "fail": "✗",
    "timeout": "✗",
    "crash": "✗",
}
_STYLES: dict[Status, str] = {
    "ok": "green",
    "note": "cyan",
    "skip": "dim",
    "warn": "bold yellow",
    "fail": "bold red",
    "timeout": "bold red",
    "crash": "bold red",
}
_MOST_LINES = 3  # of one piece of evidence; all of them with `verbose`
_LABELS = 9  # columns of "evidence "


def render_text(report: Report, width: int, *, ascii: bool = False, verbose: bool = False) -> list[Line]:
    """Return the lines of a terminal of ``width`` columns. Commands are never wrapped: somebody copies them.

    ``ascii``: ASCII characters only. ``verbose``: evidence of every finding, and codes.
    """
    return list(_Renderer(min(max(width, 40), 160), ascii, verbose).lines(report))


class _Renderer:
    def __init__(self, width: int, ascii: bool, verbose: bool) -> None:
        self._width = width
        self._ascii = ascii
        self._verbose = verbose

    def lines(self, report: Report) -> Iterator[Line]:
        anomalies = find_anomalies(report.rows)
        known = sum(row.status != "skip" for row in report.rows)
        yield from self._top(anomalies, known, len(report.rows))
        for section in dict.fromkeys(row.section for row in report.rows):
            yield ()
            yield ((SECTIONS.get(section, section.upper()), "bold"),)
            told: set[str] = set()
            for row in report.rows:
                if row.section == section:
                    yield from self._row(row, told)
        if report.stages:
            yield ()
            yield (("Stages", "bold"),)
            yield from self._stages(report.stages)
        yield ()
        yield from self._count(report, bool(anomalies))

    def _top(self, anomalies: Sequence[Anomaly], known: int, of: int) -> Iterator[Line]:
        if not anomalies:
            enough = 2 * known >= of
            yield (("nothing is wrong" if enough else f"too little is known: {known} of {of} checks", "bold"),)
            return
        failed = sum(one.finding.status != "warn" for one in anomalies)
        warned = len(anomalies) - failed
        words = [_count(failed, "problem")] * bool(failed) + [_count(warned, "warning")] * bool(warned)
        yield ((" and ".join(words), "bold"),)
        for one in anomalies:
            yield ()
            yield from self._finding(one.finding, whole=True)
            if one.hides:
                yield from self._labelled("hides", f"not run because of it: {', '.join(one.hides)}")

    def _row(self, row: Row, told: set[str]) -> Iterator[Line]:
        for finding in row.findings:
            # One missing thing keeps several checks from being run; it is said once.
            if finding.status == "skip" and not self._verbose:
                if finding.summary in told:
                    continue
                told.add(finding.summary)
            # What stands on top in whole is only named here.
            on_top = finding.status in ("warn", "fail", "timeout", "crash")
            yield from self._finding(finding, whole=self._verbose or finding.status == "note", short=on_top)

    def _finding(self, finding: Finding, *, whole: bool, short: bool = False) -> Iterator[Line]:
        status = finding.status
        word = _WORDS[status] if self._ascii else f"{_SYMBOLS[status]} {_WORDS[status]}".removesuffix(" -")
        lead = f"  {word:<8}"
        code = f"  [{finding.code}]" if status not in ("ok", "skip") or self._verbose else ""
        for number, text in enumerate(self._wrapped(_plain(finding.summary + code), len(lead))):
            if number == 0:
                yield ((lead, _STYLES[status]), (text, ""))
            else:
                yield ((" " * len(lead), ""), (text, ""))
        if short and not self._verbose:
            return
        if not whole:
            return
        if self._verbose or status not in ("ok", "note"):
            for one in finding.evidence:
                yield from self._labelled("seen", f"{_plain(one.text)} ({_plain(one.source)})", _MOST_LINES)
        if finding.cost and status != "ok":
            yield from self._labelled("cost", _plain(finding.cost))
        if finding.fix and finding.fix not in finding.commands:
            yield from self._labelled("fix", _plain(finding.fix))
        for command in finding.commands:
            yield ((" " * 10 + " " * _LABELS, ""), ("$ ", "dim"), (_plain(command), "bold"))

    def _labelled(self, label: str, text: str, most: int | None = None) -> Iterator[Line]:
        lead = " " * 10 + f"{label:<{_LABELS}}"
        parts = self._wrapped(text, len(lead))
        if most is not None and len(parts) > most and not self._verbose:
            parts = [*parts[:most], "..."]
        for number, part in enumerate(parts):
            yield ((lead if number == 0 else " " * len(lead), "dim"), (part, ""))

    def _stages(self, rows: Sequence[StageRow]) -> Iterator[Line]:
        groups: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            part = "" if row.weights == row.of else f" ({row.weights} of {row.of} weights)"
            groups.setdefault((row.backend, row.why), []).append(row.stage + part)
        for (backend, why), stages in groups.items():
            yield (("  ", ""), (_plain(backend), "bold"), (f": {_count(len(stages), 'stage')}, {_plain(why)}", ""))
            for part in self._wrapped(", ".join(stages), 10):
                yield ((" " * 10 + part, ""),)

    def _count(self, report: Report, anomalies: bool) -> Iterator[Line]:
        counts = report.counts
        names = (
            ("ok", "ok"),
            ("note", "to note"),
            ("warn", "warned"),
            ("fail", "failed"),
            ("timeout", "not in time"),
            ("crash", "crashed"),
            ("skip", "not run or not known"),
        )
        words: Sequence[tuple[Status, str]] = names  # type: ignore[assignment]
        shown = ", ".join(f"{counts[status]} {word}" for status, word in words if counts[status])
        yield ((f"{_count(len(report.rows), 'check')}: {shown or 'nothing to report'}", _STYLES[report.status]),)
        if anomalies:
            yield (("`coli explain CODE` says more about a [code]", "dim"),)

    def _wrapped(self, text: str, indent: int) -> list[str]:
        if self._ascii:
            text = text.encode("ascii", "backslashreplace").decode("ascii")
        lines = []
        for part in text.split("\n"):
            lines += textwrap.wrap(
                part, max(20, self._width - indent), break_long_words=False, break_on_hyphens=False
            ) or [""]
        return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _plain(text: str) -> str:
    return printable(text, "\n")
