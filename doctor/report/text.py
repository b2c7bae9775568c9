"""The report for a terminal: what needs somebody on top, then each section, then one line that counts."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from coli.doctor.checks.finding import Finding, Row, Status
from coli.doctor.checks.table import SECTIONS
from coli.doctor.report.document import Anomaly, Report, find_anomalies, find_notable
from coli.doctor.report.verdict import decide_verdicts
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
    return list(_Renderer(max(width, 40), ascii, verbose).lines(report))


class _Renderer:
    def __init__(self, width: int, ascii: bool, verbose: bool) -> None:
        self._width = width
        self._ascii = ascii
        self._verbose = verbose
        self._shown: Counter[Status] = Counter()  # findings in the sections

    def lines(self, report: Report) -> Iterator[Line]:
        anomalies, notable = find_anomalies(report.rows), find_notable(report.rows)
        yield ((_headline(anomalies, notable, report), "bold"),)
        for verdict in decide_verdicts(report):
            subject = f"{verdict.subject}: "
            for number, text in enumerate(self._wrapped(_plain(verdict.text), len(subject))):
                yield ((subject, "bold") if number == 0 else (" " * len(subject), ""), (text, ""))
        for one in anomalies:
            yield ()
            yield from self._finding(one.finding, whole=True)
            if one.hides:
                yield from self._labelled("hides", f"not run because of it: {', '.join(one.hides)}")
        if notable:
            yield ()
            yield (("Worth knowing", "bold"),)
            for finding in notable:
                yield from self._finding(finding, whole=True)
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
        yield from self._count(report)

    def _row(self, row: Row, told: set[str]) -> Iterator[Line]:
        for finding in row.findings:
            # One missing thing keeps several checks from being run; it is said once.
            if finding.status == "skip" and not self._verbose:
                if finding.summary in told:
                    continue
                told.add(finding.summary)
            # What stands on top in whole is only named here.
            on_top = finding.status in ("warn", "fail", "timeout", "crash") or finding.notable
            self._shown[finding.status] += 1
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
            shown = _in_ascii(_plain(command)) if self._ascii else _plain(command)
            yield ((" " * 10 + " " * _LABELS, ""), ("$ ", "dim"), (shown, "bold"))

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

    def _count(self, report: Report) -> Iterator[Line]:
        names = (
            ("ok", "ok"),
            ("note", "to note"),
            ("warn", "warned"),
            ("fail", "failed"),
            ("timeout", "not in time"),
            ("crash", "crashed"),
            ("skip", "not judged"),
        )
        words: Sequence[tuple[Status, str]] = names  # type: ignore[assignment]
        shown = ", ".join(f"{self._shown[status]} {word}" for status, word in words if self._shown[status])
        of = f" (of {_count(len(report.rows), 'check')})"
        yield ((f"{shown or 'nothing to report'}{of}", _STYLES[report.status]),)
        if any(self._shown[status] for status in ("note", "warn", "fail", "timeout", "crash")):
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


def _headline(anomalies: Sequence[Anomaly], notable: Sequence[Finding], report: Report) -> str:
    failed = sum(one.finding.status != "warn" for one in anomalies)
    warned = len(anomalies) - failed
    words = [_count(failed, "problem")] * bool(failed) + [_count(warned, "warning")] * bool(warned)
    if notable:
        return f"{' and '.join(words) or 'nothing failed'}, {_count(len(notable), 'thing')} worth knowing"
    known, of = sum(row.status != "skip" for row in report.rows), len(report.rows)
    well = "nothing is wrong" if 2 * known >= of else f"too little is known: {known} of {of} checks"
    return " and ".join(words) or well


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _in_ascii(command: str) -> str:
    """Return a command that does the same, in ASCII: quoted words with other letters as `$'...'` with octal bytes."""

    def bytes_of(found: re.Match[str]) -> str:
        if found[1].isascii():
            return found[0]
        coded = (chr(b) if 32 <= b < 127 and b != ord("\\") else f"\\{b:03o}" for b in found[1].encode())
        return f"$'{''.join(coded)}'"

    return re.sub(r"'([^']*)'", bytes_of, command).encode("ascii", "backslashreplace").decode("ascii")


def _plain(text: str) -> str:
    return printable(text, "\n")
