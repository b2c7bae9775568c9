"""The report as one page: a picture of the memory, then the findings. It needs nothing beside itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape as escape_markup
from typing import TYPE_CHECKING

from coli.doctor.checks.finding import Finding, Status
from coli.doctor.checks.table import SECTIONS
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.report.document import Report, find_anomalies, find_notable
from coli.doctor.stages import StageRow
from coli.printable import printable
from coli.units import render_size

if TYPE_CHECKING:
    from coli.doctor.plan.planning import Planned

__all__ = ["Bar", "Part", "memory_bars", "render_html"]


_ROLE_COLOURS = 10  # in the style sheet below


@dataclass(frozen=True)
class Part:
    """A stretch of a bar, in bytes. ``kind`` colours it: used, kept, room, free, or a role."""

    name: str
    nbytes: int
    kind: str


@dataclass(frozen=True)
class Bar:
    """One memory: a tier, or what a model consists of."""

    name: str
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all parts."""
        return sum(part.nbytes for part in self.parts)


def memory_bars(facts: MachineFacts, planned: Planned | None = None) -> tuple[Bar, ...]:
    """Return a bar for RAM, for each GPU's memory, for the model's disk, and for the model itself. Pure.

    With a plan the memories that it fills are shown as it fills them. What is not known has no bar.
    """
    tiers = () if planned is None else tuple(_planned(planned))
    ram = [bar for bar in tiers if bar.name == "RAM"] or _ram(facts)
    device = [bar for bar in tiers if bar.name != "RAM"]
    others = [bar for bar in _vram(facts) if not any(bar.name.endswith(f": {one.name}") for one in device)]
    return tuple(bar for bar in (*ram, *device, *others, *_disk(facts), *_model(facts)) if bar.nbytes > 0)


def _planned(planned: Planned) -> Iterator[Bar]:
    from coli.doctor.plan.report import tier_documents

    for tier in tier_documents(planned.plan, planned.subject.demand):
        items = [Part(i["name"], i["bytes"], f"role{n % _ROLE_COLOURS}") for n, i in enumerate(tier["items"])]
        parts = (
            Part("others", tier["others_bytes"] or 0, "used"),
            Part("driver's context", tier["context_bytes"], "used"),
            *items,
            Part("not filled", tier["limit_bytes"] - tier["planned_bytes"], "room"),
            Part("left free", tier["left_free_bytes"], "kept"),
        )
        device = planned.machine.device
        yield Bar("RAM" if tier["tier"] == "ram" or device is None else device.name, parts)


def _ram(facts: MachineFacts) -> Iterator[Bar]:
    if facts.memory is None:
        return
    total, available = facts.memory.host.total_bytes.value, facts.memory.host.available_bytes.value
    if total is None or available is None:
        return
    budget = min(facts.memory.budget_bytes.value or 0, available)
    parts = (
        Part("in use", max(0, total - available), "used"),
        Part("left to others", available - budget, "kept"),
        Part("for coli", budget, "free"),
    )
    yield Bar("RAM", parts)


def _vram(facts: MachineFacts) -> Iterator[Bar]:
    for gpu in facts.devices.gpus if facts.devices is not None else ():
        memory = gpu.memory
        total, free, reserved = memory.total_bytes.value, memory.free_bytes.value, memory.reserved_bytes.value or 0
        if total is None or free is None or memory.kind.value == "unified":
            continue
        used = max(0, total - free - reserved)
        parts = (Part("in use", used, "used"), Part("driver", reserved, "kept"), Part("free", free, "free"))
        yield Bar(f"GPU {gpu.index}: {gpu.name.value or 'name not known'}", parts)


def _disk(facts: MachineFacts) -> Iterator[Bar]:
    size = facts.checkpoint.weight_bytes.value if facts.checkpoint is not None else None
    for storage in facts.storage or ():
        total, free = storage.total_bytes.value, storage.free_bytes.value
        if storage.role != "model" or total is None or free is None:
            continue
        model = min(size or 0, total - free)
        parts = (
            Part("in use", max(0, total - free - model), "used"),
            Part("this model", model, "model"),
            Part("free", free, "free"),
        )
        yield Bar(f"Disk of the model ({storage.kind.value or 'kind not known'})", parts)


def _model(facts: MachineFacts) -> Iterator[Bar]:
    roles = facts.checkpoint.roles.value if facts.checkpoint is not None else None
    if roles:
        ordered = sorted(roles, key=lambda role: -role.nbytes)
        parts = tuple(
            Part(role.kind, role.nbytes, f"role{number % _ROLE_COLOURS}") for number, role in enumerate(ordered)
        )
        yield Bar("The model, by role", parts)


def render_html(report: Report) -> str:
    """Return the page. Everything in it that comes from the machine is escaped."""
    body = "".join(
        (
            _head(report),
            _bars(memory_bars(report.facts, report.planned)),
            _top(report),
            _stages(report),
            _sections(report),
        )
    )
    title = f"coli doctor: {report.status}"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style>\n</head>\n'
        f"<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def _head(report: Report) -> str:
    counts = ", ".join(f"{number} {_WORDS[status]}" for status, number in report.counts.items() if number)
    versions = report.facts.versions
    release = f"coli {versions.coli.value or ''}" if versions is not None else "coli"
    model = f"<p>Model: <code>{escape(report.facts.model)}</code></p>\n" if report.facts.model else ""
    return f"<h1>{_badge(report.status)} coli doctor</h1>\n<p>{escape(release)}: {escape(counts)}</p>\n{model}"


def _bars(bars: Sequence[Bar]) -> str:
    if not bars:
        return ""
    rows = []
    for bar in bars:
        pieces = "".join(
            f'<div class="part {escape(part.kind)}" style="flex-grow:{part.nbytes}" '
            f'title="{escape(part.name)}: {render_size(part.nbytes)}"></div>'
            for part in bar.parts
            if part.nbytes
        )
        legend = "".join(
            f'<li><span class="key {escape(part.kind)}"></span>{escape(part.name)} {render_size(part.nbytes)}</li>'
            for part in bar.parts
            if part.nbytes
        )
        rows.append(
            f"<section class=tier><h3>{escape(bar.name)} <small>{render_size(bar.nbytes)}</small></h3>\n"
            f'<div class=bar role="img" aria-label="{escape(bar.name)}">{pieces}</div>\n<ul>{legend}</ul></section>\n'
        )
    return "<h2>Memory</h2>\n" + "".join(rows)


def _top(report: Report) -> str:
    anomalies, notable = find_anomalies(report.rows), find_notable(report.rows)
    worth = "<h2>Worth knowing</h2>\n" + "".join(map(_finding, notable)) if notable else ""
    if not anomalies:
        return worth or "<h2>Nothing needs you</h2>\n"
    shown = []
    for one in anomalies:
        hides = f"<p class=cost>Not run because of it: {escape(', '.join(one.hides))}</p>" if one.hides else ""
        shown.append(_finding(one.finding, hides))
    return "<h2>What needs you</h2>\n" + "".join(shown) + worth


def _finding(finding: Finding, more: str = "") -> str:
    evidence = "".join(
        f"<li>{escape(one.text)} <small>({escape(one.source)})</small></li>" for one in finding.evidence if one.text
    )
    commands = "\n".join(finding.commands)
    return (
        f'<article class="{finding.status}">\n<p>{_badge(finding.status)} <b>{escape(finding.summary)}</b> '
        f"<small>{escape(finding.code)}</small></p>\n"
        + (f"<p class=cost>Cost: {escape(finding.cost)}</p>\n" if finding.cost else "")
        + (f"<p>Fix: {escape(finding.fix)}</p>\n" if finding.fix else "")
        + (f"<pre>{escape(commands)}</pre>\n" if commands else "")
        + (f"<details><summary>Evidence</summary><ul>{evidence}</ul></details>\n" if evidence else "")
        + f"{more}</article>\n"
    )


def _stages(report: Report) -> str:
    if not report.stages:
        return ""
    rows = "".join(
        f"<tr><td>{escape(row.stage)}<td>{escape(row.backend)}<td>{_weights(row)}<td>{escape(row.why)}"
        for row in report.stages
    )
    return f"<h2>Stages</h2>\n<table><tr><th>stage<th>backend<th>weights<th>why{rows}</table>\n"


def _weights(row: StageRow) -> str:
    return "" if row.of is None else f"all {row.of}" if row.weights == row.of else f"{row.weights} of {row.of}"


def _sections(report: Report) -> str:
    shown = []
    for section in dict.fromkeys(row.section for row in report.rows):
        rows = "".join(
            f"<li>{_badge(finding.status)} {escape(finding.summary)}</li>"
            for row in report.rows
            if row.section == section
            for finding in row.findings
        )
        shown.append(f"<h3>{escape(SECTIONS.get(section, section))}</h3>\n<ul class=rows>{rows}</ul>\n")
    return "<h2>All checks</h2>\n" + "".join(shown)


_WORDS: dict[Status, str] = {
    "ok": "ok",
    "note": "to note",
    "skip": "not run or not known",
    "warn": "warned",
    "fail": "failed",
    "timeout": "not in time",
    "crash": "crashed",
}


def _badge(status: Status) -> str:
    return f'<span class="badge {status}">{status}</span>'


_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; } h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
small, .cost { color: #777; } code, pre { font: .9em ui-monospace, monospace; }
pre { background: #8881; padding: .6rem; overflow-x: auto; border-radius: .3rem; margin: .4rem 0; }
.badge { font-size: .75rem; font-weight: bold; padding: .1rem .45rem; border-radius: .3rem; color: #fff;
background: #777; }
.badge.ok { background: #2a7d3f; } .badge.note { background: #2166a5; } .badge.warn { background: #a86400; }
.badge.fail, .badge.crash, .badge.timeout { background: #b3261e; }
article { border-left: .3rem solid #a86400; padding: .1rem .8rem; margin: 1rem 0; }
article.fail, article.crash, article.timeout { border-color: #b3261e; } article p { margin: .3rem 0; }
.bar { display: flex; height: 1.6rem; border-radius: .3rem; overflow: hidden; border: 1px solid var(--line); }
.part { min-width: 2px; } .key { display: inline-block; width: .8rem; height: .8rem; margin-right: .3rem;
border-radius: .2rem; }
.used { background: #8d8d8d; } .kept { background: #c9c2a5; } .free { background: #5aa469; } .model { background:
#4d7fc4; }
.role0 { background: #4d7fc4; } .role1 { background: #5aa469; } .role2 { background: #c98a3a; } .role3 {
background: #9b6fb3; }
.role4 { background: #b9574f; } .role5 { background: #57a3a8; } .role6 { background: #b0a63c; }
.role7 { background: #cf7fae; } .role8 { background: #6f6f9e; } .role9 { background: #8a6642; }
.room { background: #e6e2d3; }
.tier ul { list-style: none; padding: 0; margin: .3rem 0; display: flex; flex-wrap: wrap; gap: .2rem 1rem;
font-size: .85rem; }
.rows { list-style: none; padding: 0; } .rows li { margin: .2rem 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-size: .9rem; } td, th { text-align: left; padding: .2rem .8rem .2rem 0;
border-bottom: 1px solid var(--line); }
"""


def escape(text: str) -> str:
    """Return text of any origin as it may stand in the page."""
    return escape_markup(printable(text, "\n"))
