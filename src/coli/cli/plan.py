"""`coli plan`: which bytes go into which tier, how fast that will be, and the command that runs it so."""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coli.cli.failure import EXIT_FAILED
from coli.cli.machine import machine_request, recorded_facts
from coli.cli.options import with_settings
from coli.cli.session import backend_search, model_path
from coli.cli.terminal import Terminal
from coli.errors import UsageError
from coli.settings import Environment, Resolved, find
from coli.units import render_size

if TYPE_CHECKING:
    from coli.doctor.facts.machine import MachineFacts
    from coli.doctor.plan.opened import Opened
    from coli.doctor.plan.planning import Audit, Planned
    from coli.doctor.plan.report import Kept, Report

__all__ = ["command"]

_SETTABLE = ("context", "prefill_chunk", "ram", "vram", "gpu", "threads", "io", "backend")
_VARIABLES = ("COLI_BACKEND_PATH", "COLI_PLUGINS", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES")
_MIB = 1 << 20


@click.command("plan")
@click.argument("model", required=False)
@with_settings("plan")
def command(settings: Resolved) -> int:
    """Plan the memory of the checkpoint MODEL, from its headers, and forecast how fast it will answer.

    Exit code 4 when it does not fit; with --audit 1 when the last run took more than was planned.
    """
    from coli.doctor.facts.settings import run_options
    from coli.doctor.plan.machine import machine_of
    from coli.doctor.plan.opened import open_subject
    from coli.doctor.plan.planning import audit_run, plan_subject
    from coli.doctor.plan.report import plan_document

    search = backend_search(settings)
    if settings["machine"] is not None:  # whose card is no card of this one
        search = replace(search, gpu=None)
    given = [f"--{name}" for name in ("ram", "vram", "gpu") if settings[name] not in (None, "none")]
    opened = open_subject(Path(model_path(settings)), search=search, plugins=settings["plugins"], given=given)
    facts = _facts(settings, opened)
    machine = machine_of(facts, settings["threads"], settings["gpu"])
    terminal = Terminal.from_settings(sys.stdout, settings)
    if settings["audit"]:
        if facts.last_run is None:
            raise UsageError(
                opened.subject.path,
                "no run of this model is on record",
                fix=f"coli run {shlex.quote(opened.subject.path)} ..., then audit",
                code="plan.no-run",
            )
        audit = audit_run(opened.subject, machine, facts.last_run)
        _show_audit(opened.subject.path, audit, settings, terminal)
        return EXIT_FAILED if any(row.verdict == "above" for row in audit.rows) else 0
    planned = plan_subject(opened.subject, machine, run_options(settings), facts.last_run)
    report = _report(settings, opened, planned)
    document = plan_document(report)
    if settings["json"]:
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        _show(document, report, terminal)
    return 0


def _facts(settings: Resolved, opened: Opened) -> MachineFacts:
    """Return the machine of `--machine`, or this one, whose devices and backends the loader saw.

    Of another or a changed machine the question is what it could do, so no library has to be there for its GPU.
    """
    from coli.doctor.facts.machine import probe_machine
    from coli.doctor.plan.machine import FIELDS
    from coli.doctor.record.changes import change_facts

    if settings["machine"] is not None:
        # The run that is on record there may be of another model.
        return replace(recorded_facts(settings), last_run=None, backends=None)
    trace = opened.loaded.trace
    facts = probe_machine(machine_request(settings), [field for field in FIELDS if field != "devices"])
    kept = None if settings["changes"] else trace
    return change_facts(replace(facts, devices=trace.devices, backends=kept), settings["changes"])


def _report(settings: Resolved, opened: Opened, planned: Planned) -> Report:
    from coli.doctor.plan.report import Report
    from coli.doctor.plan.sensitivity import changes

    subject, machine = planned.subject, planned.machine
    return Report(
        model=subject.path,
        family=subject.family,
        machine=machine.name,
        threads=machine.threads,
        backend=opened.loaded.name,
        device=machine.device.name if machine.device else None,
        plan=planned.plan,
        demand=subject.demand,
        kept=_kept(settings),
        argv=_argv(settings, planned),
        environment={} if settings["machine"] else _environment(),
        changes=changes(
            planned.plan,
            planned.basis,
            subject.demand,
            planned.speeds,
            threads=machine.threads,
            history=planned.history,
        ),
        notes=_notes(planned),
    )


def _notes(planned: Planned) -> tuple[str, ...]:
    notes = []
    if planned.plan.budgets.vram is not None and planned.subject.demand.device:
        notes.append("what is left of the card stays empty: a prefill bank and copies of experts need a later version")
    if planned.machine.unmeasured is not None:
        notes.append(
            f"the forecast rests on a guess for the disk, which could not be measured: {planned.machine.unmeasured}"
        )
    elif not planned.machine.speeds.measured:
        measure = f"`coli doctor {shlex.quote(planned.subject.path)} --measure`"
        notes.append(f"the forecast rests on guesses or rated values: {measure}, on that machine, measures")
    return tuple(notes)


def _kept(settings: Resolved) -> tuple[Kept, ...]:
    from coli.doctor.plan.report import Kept

    found = []
    for name in _SETTABLE:
        origin = settings.origin(name)
        if origin.kind != "default":
            setting = find(name)
            found.append(Kept(setting.option or name, setting.kind.show(settings[name]), origin.text))
    return tuple(found)


def _argv(settings: Resolved, planned: Planned) -> tuple[str, ...]:
    """Return the command that runs the model as planned."""
    subject, machine, plan = planned.subject, planned.machine, planned.plan
    best = plan.best
    limit = plan.budgets.ram.limit_bytes
    ram = f"{limit // _MIB}MiB" if limit % _MIB == 0 else f"{limit}B"
    words = ["coli", "run", subject.path, "--ctx", str(best.choice.context), "--prefill-chunk", str(best.chunk)]
    words += ["--ram", ram, "--threads", str(machine.threads)]
    if plan.budgets.vram is not None:
        # What was planned, not the limit: the run may then copy nothing that the plan did not count.
        words += ["--vram", f"{-(-best.nbytes('vram') // _MIB)}MiB"]
    if settings["gpu"] is not None:
        words += ["--gpu", settings["gpu"]]
    if settings["backend"] is not None:
        words += ["--backend", str(settings["backend"])]
    return tuple(words)


def _environment() -> dict[str, str]:
    """Return the variables in force for which a run has no option."""
    variables = Environment().for_tools()
    return {name: variables[name] for name in _VARIABLES if name in variables}


def _show_audit(path: str, audit: Audit, settings: Resolved, terminal: Terminal) -> None:
    record, forecast, speed = audit.record, audit.placement.forecast, audit.tokens_per_s
    if settings["json"]:
        document: dict[str, Any] = {
            "schema": "coli.plan/1",
            "model": path,
            "audit": [
                {
                    "tier": row.tier,
                    "planned_bytes": row.planned_bytes,
                    "reserved_bytes": row.reserved_bytes,
                    "measured_bytes": row.measured_bytes,
                    "verdict": row.verdict,
                }
                for row in audit.rows
            ],
            "forecast": {"low": forecast.low, "high": forecast.high, "measured_tokens_per_s": speed},
        }
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
        return
    terminal.line(f"last run: context {record.context}, chunk {record.prefill_chunk}, {record.threads} threads")
    terminal.table(
        ("tier", "planned", "reserved by the run", "measured", "difference", "verdict"),
        [
            (
                row.tier,
                render_size(row.planned_bytes),
                render_size(row.reserved_bytes),
                "-" if row.measured_bytes is None else render_size(row.measured_bytes),
                f"{row.difference_bytes / _MIB:+.1f}MiB",
                {"below": "below: the run did not fill its caches"}.get(row.verdict, row.verdict),
            )
            for row in audit.rows
        ],
        numeric=frozenset(("planned", "reserved by the run", "measured", "difference")),
    )
    if speed is not None:
        terminal.line(
            f"decode: {speed:.2f} tokens/s in the run, {forecast.low:.2f} to {forecast.high:.2f} in the forecast"
        )


def _show(document: dict[str, Any], report: Report, terminal: Terminal) -> None:
    from coli.doctor.plan.report import bar, describe_kept

    forecast = document["forecast"]
    terminal.facts(
        [
            ("model", f"{document['model']}: {document['family']}"),
            ("machine", f"{document['machine']}, {document['threads']} threads, backend {document['backend']}"),
            ("context", f"{document['context']} positions, prefill in chunks of {document['prefill_chunk']}"),
        ]
    )
    for tier in document["tiers"]:
        shown = f"{render_size(tier['planned_bytes'])} of {render_size(tier['limit_bytes'])}"
        drawn, legend = bar(tier, min(60, max(20, terminal.width - len(shown) - 8)))
        terminal.line()
        terminal.line(f"{tier['tier'].upper():4} {drawn} {shown}")
        for text in (legend, _whole(tier)):
            for line in textwrap.wrap(text, terminal.width - 5, break_long_words=False):
                terminal.line(f"     {line}")
    rows = [
        (
            tier["tier"],
            item["name"],
            "" if item["of"] == 1 else f"{item['count']} of {item['of']}",
            render_size(item["bytes"]),
        )
        for tier in document["tiers"]
        for item in tier["items"]
    ]
    rows.append(("nvme", "experts that RAM does not hold", str(document["nvme"]["experts"]), _size(document["nvme"])))
    terminal.table(("tier", "what", "count", "bytes"), rows, numeric=frozenset(("count", "bytes")))
    guess = "" if forecast["measured"] else ", a guess"
    lines = [
        ("forecast", f"{forecast['low']:g} to {forecast['high']:g} tokens/s{guess}"),
        ("basis", "\n".join(forecast["basis"])),
        ("binds", document["binds"]),
    ]
    second = document["runner_up"]
    if second is not None:
        device = f", device {' + '.join(second['device'])}" if second["device"] else ""
        lines.append(
            (
                "runner-up",
                f"context {second['context']}, {second['expert_slabs']} experts{device}: "
                f"{second['low']:g} to {second['high']:g} tokens/s",
            )
        )
    lines += [
        ("would bring", "\n".join(f"{c['change']}: {c['low']:g} to {c['high']:g}" for c in document["sensitivity"])),
        ("not changed", describe_kept(report.kept)),
        ("command", " ".join([*_assignments(document["environment"]), shlex.join(document["argv"])])),
    ]
    lines += [("note", text) for text in document["notes"]]
    width = terminal.width - max(len(name) for name, _ in lines) - 2
    # A command is copied: it stays one line.
    terminal.facts((name, value if name == "command" else _wrapped(value, width)) for name, value in lines)


def _wrapped(text: str, width: int) -> str:
    parts = [
        textwrap.wrap(line, max(20, width), break_long_words=False, break_on_hyphens=False) for line in text.split("\n")
    ]
    return "\n".join(line for part in parts for line in part)


def _assignments(environment: dict[str, str]) -> list[str]:
    return [f"{name}={shlex.quote(value)}" for name, value in environment.items()]


def _whole(tier: dict[str, Any]) -> str:
    """Say what the whole of a tier consists of."""
    limit = f"{render_size(tier['limit_bytes'])} to fill ({tier['why']})"
    if tier["others_bytes"] is None:
        return limit
    parts = []
    if tier["others_bytes"]:
        parts.append(f"{render_size(tier['others_bytes'])} held by {tier['held_by']}")
    if tier["context_bytes"]:
        parts.append(f"{render_size(tier['context_bytes'])} for the driver's context")
    parts += [f"{render_size(tier['left_free_bytes'])} left free", limit]
    return f"{render_size(tier['total_bytes'])} in all: {', '.join(parts)}"


def _size(entry: dict[str, Any]) -> str:
    return render_size(entry["bytes"])
