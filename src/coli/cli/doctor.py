"""`coli doctor`: what is wrong with a machine, a build or a checkpoint, and what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coli.cli.machine import machine_request, recorded_facts
from coli.cli.options import with_settings
from coli.cli.terminal import Terminal
from coli.settings import Resolved

if TYPE_CHECKING:
    from coli.doctor.checks.finding import Check
    from coli.doctor.facts.machine import MachineFacts
    from coli.doctor.plan.planning import Planned
    from coli.doctor.stages import StageRow

__all__ = ["command"]

# What answers "why is my GPU not used?" on one screen.
_GPU_SECTIONS = ("driver", "devices", "backends.usable", "backends.sound", "gpu")
_GPU_OF_MODEL = ("checkpoint.family", "budget.vram")
_PIPE_WIDTH = 100  # columns: what is not a terminal is read in a mail or an issue


@click.command("doctor", short_help="Say what is wrong with machine, build or model.")
@click.argument("model", metavar="[MODEL]", required=False)
@with_settings("doctor")
def command(settings: Resolved) -> int:
    """Say what is wrong with a machine, a build or the checkpoint MODEL, and what to do.

    Nothing is changed. Exit code 0: healthy, or notes; 1: a check failed (or warned, with --strict); 2: usage; 3: a
    check or probe did not finish.
    """
    from coli.doctor.checks.gpu import gpu_check
    from coli.doctor.checks.graph import choose_checks, run_checks
    from coli.doctor.checks.table import CHECKS
    from coli.doctor.report.document import Report, decide_exit_code, to_document
    from coli.doctor.report.text import render_text

    terminal = Terminal.from_settings(sys.stdout, settings)
    checks, only, gpu = CHECKS, settings["only"], settings["gpu"]
    if gpu not in (None, "none"):  # whoever set it: a run would be refused where this GPU cannot be used
        checks = (*CHECKS, gpu_check(gpu))
        if settings.origin("gpu").kind == "option":
            only = only or (*_GPU_SECTIONS, *(_GPU_OF_MODEL if settings["model"] else ()))
    if settings["list_checks"]:
        _list(choose_checks(checks, only, settings["skip"]), settings, terminal)
        return 0
    _require_sense(settings)
    model = settings["model"] is not None or settings["machine"] is not None
    chosen = _require_some(choose_checks(checks, only, settings["skip"], model=model), model)
    times: dict[str, float] = {}
    facts = _facts(settings, chosen, terminal, times)
    if facts.model is None:
        chosen = _require_some(tuple(check for check in chosen if not check.model), False)
    planned, stages = _planned(facts)
    report = Report(run_checks(chosen, facts), facts, stages, settings["strict"], times, planned)
    if settings["html"] is not None:
        from coli.atomic_file import write_atomically
        from coli.doctor.report.html import render_html

        write_atomically(Path(settings["html"]), render_html(report))
    if settings["json"]:
        click.echo(json.dumps(to_document(report), ensure_ascii=False, indent=2))
    else:
        width = terminal.width if sys.stdout.isatty() else min(terminal.width, _PIPE_WIDTH)
        terminal.pieces(render_text(report, width, ascii=terminal.is_ascii, verbose=settings["verbose"]))
    return decide_exit_code(report)


def _require_sense(settings: Resolved) -> None:
    """Refuse what would be read and then do nothing, or the examination of a machine that is not there."""
    from coli.errors import UsageError

    for name in ("deep", "measure"):
        if settings[name] and settings["model"] is None and settings["machine"] is None:
            raise UsageError(
                f"--{name}", "needs MODEL", fix=f"coli doctor MODEL --{name}, with its folder", code="usage.model"
            )
    root = settings["root"]
    if root is not None and settings["machine"] is None and not Path(root).is_dir():
        raise UsageError(
            f"--root {root}",
            "is not a folder",
            expected="a folder with the files of a machine: proc, sys, etc, usr",
            code="usage.root",
        )


def _require_some(checks: tuple[Check, ...], model: bool) -> tuple[Check, ...]:
    """Return ``checks``, when there are any: a report of nothing would read like a clean bill of health."""
    if checks:
        return checks
    from coli.errors import UsageError

    raise UsageError(
        "--only, --skip",
        "no check is left to run",
        fix="name checks that are not skipped" + ("" if model else ", or give MODEL: checks of a model need one"),
        code="usage.check",
    )


def _planned(facts: MachineFacts) -> tuple[Planned | None, tuple[StageRow, ...]]:
    """Return the plan of the model, and where its stages will run; as far as they are known."""
    if facts.checkpoint is None:
        return None, ()
    from coli.doctor.plan.of_facts import plan_facts, stages_of

    return plan_facts(facts).planned, stages_of(facts)


def _facts(settings: Resolved, checks: tuple[Check, ...], terminal: Terminal, times: dict[str, float]) -> MachineFacts:
    """Return the facts that the checks read: of this machine, of a tree, or of a record; then changed by --set."""
    from coli.doctor.facts.machine import FIELDS, probe_machine
    from coli.doctor.record.changes import change_facts

    if settings["machine"] is not None:
        from coli.errors import UsageError

        for other in ("model", "root", "record", "deep", "measure"):
            if settings[other] and settings.origin(other).kind == "option":
                raise UsageError(
                    "--machine",
                    f"takes no {'MODEL' if other == 'model' else f'--{other}'}",
                    fix="the file holds what was found; leave one of them out",
                    code="usage.machine",
                )
        return recorded_facts(settings)
    wanted = {field for check in checks for field in check.reads} | {"versions"}
    if settings["measure"]:
        wanted.add("measured")
    if settings["model"] is not None and "backends" in wanted:
        wanted.add("stages")
    request = machine_request(settings, lambda done, total: terminal.progress("reading weights", done, total))
    if settings["record"] is None:
        return change_facts(probe_machine(request, wanted, times), settings["changes"])
    from coli.doctor.record.machine_file import write_machine
    from coli.doctor.record.raw import Recorder

    with Recorder(request.root) as recorder:
        facts = probe_machine(request, FIELDS, times)
    write_machine(Path(settings["record"]), facts, recorder.raw(), request.environment)
    return change_facts(facts, settings["changes"])


def _list(checks: tuple[Check, ...], settings: Resolved, terminal: Terminal) -> None:
    if settings["json"]:
        rows = [
            {"id": check.id, "asks": check.asks, "needs": list(check.needs), "model": check.model} for check in checks
        ]
        click.echo(json.dumps({"schema": "coli.doctor/1", "list": rows}, ensure_ascii=False, indent=2))
        return
    terminal.table(
        ("check", "asks", "needs"),
        [(check.id, check.asks, ", ".join([*(["MODEL"] if check.model else []), *check.needs])) for check in checks],
    )
