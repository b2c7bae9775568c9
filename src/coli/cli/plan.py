"""`coli plan`: which bytes go into which tier, how fast that will be, and the command that runs it so."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coli.cli.failure import EXIT_FAILED
from coli.cli.options import with_settings
from coli.cli.session import backend_search, model_path
from coli.cli.terminal import Terminal
from coli.errors import BudgetError, UsageError
from coli.settings import Environment, Resolved, find
from coli.units import render_size

if TYPE_CHECKING:
    from coli.doctor.plan.audit import AuditRow
    from coli.doctor.plan.core import Plan
    from coli.doctor.plan.forecast import History, Speeds
    from coli.doctor.plan.machine import PlanMachine
    from coli.doctor.plan.report import Kept, Report
    from coli.doctor.plan.subject import Subject
    from coli.engine.ledger import Item
    from coli.engine.run_record import RunRecord

__all__ = ["command"]

_SETTABLE = ("context", "prefill_chunk", "ram", "vram", "gpu", "threads", "io", "backend")
_VARIABLES = ("COLI_BACKEND_PATH", "COLI_PLUGINS", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES")
_MIB = 1 << 20
# What a driver and its context take of the RAM, until a run of this model has measured it.
_DRIVER_BYTES = 400 << 20


@click.command("plan")
@click.argument("model", required=False)
@with_settings("plan")
def command(settings: Resolved) -> int:
    """Plan the memory of the checkpoint MODEL, from its headers, and forecast how fast it will answer.

    Exit code 4 when it does not fit; with --audit 1 when the last run took more than was planned.
    """
    from coli.doctor.plan.subject import read_subject
    from coli.engine.host_cpu import default_threads

    threads = settings["threads"] or default_threads()
    path = Path(model_path(settings))
    search = backend_search(settings)
    if settings["machine"] is not None:  # whose card is no card of this one
        search = replace(search, gpu=None)
    subject = read_subject(path, search=search, plugins=settings["plugins"])
    _require_read(settings, subject)
    machine = _machine(settings, subject, threads)
    if settings["audit"]:
        return _audit(settings, subject, machine)
    report = _report(settings, subject, machine)
    from coli.doctor.plan.report import plan_document

    document = plan_document(report)
    if settings["json"]:
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        _show(document, report, Terminal.from_settings(sys.stdout, settings))
    return 0


def _require_read(settings: Resolved, subject: Subject) -> None:
    from coli.families.options import require_read

    given = [f"--{name}" for name in ("ram", "vram", "gpu") if settings[name] not in (None, "none")]
    require_read(subject.resolution.descriptor, given)


def _machine(settings: Resolved, subject: Subject, threads: int) -> PlanMachine:
    from coli.doctor.plan.machine import machine_of, probe_machine, read_plan_facts

    if settings["machine"] is not None:
        name, facts = read_plan_facts(Path(settings["machine"]))
        return machine_of(name, facts, settings["threads"], settings["gpu"])
    return probe_machine(subject.path, threads, subject.resident_bytes, subject.loaded)


def _basis(settings: Resolved, subject: Subject, machine: PlanMachine, limit_bytes: int) -> list[Item]:
    available = machine.memory.available_bytes.value
    driver = None
    if machine.device is not None:
        record = None if settings["machine"] else _record(subject)
        driver = _DRIVER_BYTES if record is None else _driver_bytes(record)
    return subject.basis(machine.threads, settings["io"], available, limit_bytes, driver)


def _speeds(settings: Resolved, subject: Subject, machine: PlanMachine, limit_bytes: int) -> Speeds:
    available = machine.memory.available_bytes.value
    cached = subject.page_cached(settings["io"], available, limit_bytes)
    return machine.speeds.with_page_cache() if cached else machine.speeds


def _driver_bytes(record: RunRecord) -> int:
    """Return what the driver took of the RAM in the last run: it shows only once a context is there."""
    from coli.engine.budget import driver_item

    items = record.tiers.get("ram", {}).get("items", ())
    return next((int(item["bytes"]) for item in items if item["name"] == driver_item(0).name), _DRIVER_BYTES)


def _plan(settings: Resolved, subject: Subject, machine: PlanMachine, record: RunRecord | None) -> Plan:
    from coli.doctor.plan.budgets import decide_budgets
    from coli.doctor.plan.core import decide_plan, least_ram_bytes

    demand = subject.demand
    budgets = decide_budgets(
        machine.memory,
        machine.device,
        resident=machine.resident_bytes,
        ram=settings["ram"],
        vram=settings["vram"],
    )
    given = settings["context"] if settings.origin("context").kind != "default" else None
    most = subject.resolution.context
    if given is not None and most is not None and given > most:
        raise UsageError(
            "--ctx", "it must fit the model", observed=str(given), expected=f"1 to {most}", code="usage.context"
        )
    basis = _basis(settings, subject, machine, budgets.ram.limit_bytes)
    try:
        return decide_plan(
            basis,
            demand,
            budgets,
            _speeds(settings, subject, machine, budgets.ram.limit_bytes),
            context=given,
            most_context=most,
            most_chunk=settings["prefill_chunk"],
            history=_history(record),
        )
    except BudgetError as error:
        least = -(-least_ram_bytes(basis, demand) // _MIB)
        raise BudgetError(
            error.subject,
            error.rule,
            observed=error.observed,
            expected=error.expected,
            fix=f"--ram {least}MiB or more runs it, with a context of 512 and prompts token by token",
            code=error.code,
        ) from None


def _history(record: RunRecord | None) -> History | None:
    """Return the hit rate of the last run, where it says something: the cache was smaller than the model, and used."""
    from coli.doctor.plan.forecast import History

    if record is None or record.expert_slabs >= record.experts:
        return None
    calls = record.expert_hits + record.expert_misses
    if calls <= 10 * record.expert_slabs:
        return None
    return History(record.expert_slabs / record.experts, record.expert_hits / calls)


def _report(settings: Resolved, subject: Subject, machine: PlanMachine) -> Report:
    from coli.doctor.plan.report import Report
    from coli.doctor.plan.sensitivity import changes

    record = None if settings["machine"] else _record(subject)
    plan = _plan(settings, subject, machine, record)
    limit = plan.budgets.ram.limit_bytes
    basis = _basis(settings, subject, machine, limit)
    speeds = _speeds(settings, subject, machine, limit)
    return Report(
        model=str(subject.path),
        family=f"{subject.resolution.descriptor.id} ({subject.resolution.name})",
        machine=machine.name,
        threads=machine.threads,
        backend=subject.loaded.name,
        device=machine.device.name if machine.device else None,
        plan=plan,
        demand=subject.demand,
        kept=_kept(settings),
        argv=_argv(settings, subject, machine, plan),
        environment={} if settings["machine"] else _environment(),
        changes=changes(plan, basis, subject.demand, speeds, threads=machine.threads, history=_history(record)),
        notes=_notes(subject, machine),
    )


def _notes(subject: Subject, machine: PlanMachine) -> tuple[str, ...]:
    notes = []
    if machine.device is not None and subject.demand.device:
        notes.append("what is left of the card stays empty: a prefill bank and copies of experts need a later version")
    if not machine.speeds.measured:
        measure = f"`coli doctor {shlex.quote(str(subject.path))} --measure`"
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


def _argv(settings: Resolved, subject: Subject, machine: PlanMachine, plan: Plan) -> tuple[str, ...]:
    """Return the command that runs the model as planned."""
    best = plan.best
    limit = plan.budgets.ram.limit_bytes
    ram = f"{limit // _MIB}MiB" if limit % _MIB == 0 else f"{limit}B"
    words = ["coli", "run", str(subject.path), "--ctx", str(best.choice.context), "--prefill-chunk", str(best.chunk)]
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


def _record(subject: Subject) -> RunRecord | None:
    from coli.engine.run_record import read_run_record
    from coli.paths import data_folder

    return read_run_record(data_folder() / "runs", subject.path)


def _audit(settings: Resolved, subject: Subject, machine: PlanMachine) -> int:
    from coli.doctor.plan.audit import audit_rows
    from coli.doctor.plan.budgets import Budgets, TierBudget
    from coli.doctor.plan.core import Choice, place

    record = _record(subject)
    if record is None:
        raise UsageError(
            str(subject.path),
            "no run of this model is on record",
            fix=f"coli run {shlex.quote(str(subject.path))} ..., then audit",
            code="plan.no-run",
        )
    # Planned again with what the run was given: the audit is of the arithmetic, not of the choices.
    limits = {tier: int(report["limit_bytes"] or 0) for tier, report in record.tiers.items()}
    budgets = Budgets(
        TierBudget("ram", None, None, 0, limits.get("ram", 0), "the run's limit"),
        TierBudget("vram", None, None, 0, limits["vram"], "the run's limit") if "vram" in limits else None,
    )
    groups = tuple(group.name for group in subject.demand.device) if limits.get("vram") else ()
    driver = _driver_bytes(record) if "vram" in limits else None
    basis = subject.basis(record.threads, record.io, None, limits.get("ram", 0), driver)
    speeds = _speeds(settings, subject, machine, limits.get("ram", 0))
    placement = place(basis, subject.demand, budgets, speeds, Choice(record.context, record.prefill_chunk, groups))
    rows = audit_rows({tier: placement.nbytes(tier) for tier in limits}, record)
    speed = record.decoded.tokens / record.decoded.seconds if record.decoded.seconds > 0 else None
    forecast = placement.forecast
    if settings["json"]:
        document: dict[str, Any] = {
            "schema": "coli.plan/1",
            "model": str(subject.path),
            "audit": [
                {
                    "tier": row.tier,
                    "planned_bytes": row.planned_bytes,
                    "reserved_bytes": row.reserved_bytes,
                    "measured_bytes": row.measured_bytes,
                    "verdict": row.verdict,
                }
                for row in rows
            ],
            "forecast": {"low": forecast.low, "high": forecast.high, "measured_tokens_per_s": speed},
        }
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        _show_audit(rows, record, Terminal.from_settings(sys.stdout, settings))
        if speed is not None:
            Terminal.from_settings(sys.stdout, settings).line(
                f"decode: {speed:.2f} tokens/s in the run, {forecast.low:.2f} to {forecast.high:.2f} in the forecast"
            )
    return EXIT_FAILED if any(row.verdict == "above" for row in rows) else 0


def _show_audit(rows: tuple[AuditRow, ...], record: RunRecord, terminal: Terminal) -> None:
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
            for row in rows
        ],
        numeric=frozenset(("planned", "reserved by the run", "measured", "difference")),
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
        drawn, legend = bar(tier)
        terminal.line()
        planned, limit = render_size(tier["planned_bytes"]), render_size(tier["limit_bytes"])
        terminal.line(f"{tier['tier'].upper():4} {drawn} {planned} of {limit}")
        terminal.line(f"     {legend}")
        terminal.line(f"     {_whole(tier)}")
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
    terminal.facts(lines)


def _assignments(environment: dict[str, str]) -> list[str]:
    return [f"{name}={shlex.quote(value)}" for name, value in environment.items()]


def _whole(tier: dict[str, Any]) -> str:
    if tier["total_bytes"] is None or tier["free_bytes"] is None:
        return str(tier["why"])
    return (
        f"{render_size(tier['total_bytes'])} in all, {render_size(tier['free_bytes'])} free, "
        f"{render_size(tier['others_bytes'])} held by {tier['held_by']}; "
        f"{render_size(tier['left_free_bytes'])} stays free ({tier['why']})"
    )


def _size(entry: dict[str, Any]) -> str:
    return render_size(entry["bytes"])
