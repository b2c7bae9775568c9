"""`coli doctor`: what is wrong with a machine, a build or a checkpoint, and what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coli.cli.options import with_settings
from coli.cli.terminal import Terminal
from coli.settings import Environment, Resolved

if TYPE_CHECKING:
    from coli.doctor.checks.finding import Check
    from coli.doctor.facts.machine import MachineFacts, Request

__all__ = ["command"]

# What answers "why is my GPU not used?" on one screen.
_GPU_SECTIONS = ("driver", "devices", "backends.usable", "backends.sound", "gpu")


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
    from coli.doctor.stages import predict_stages

    terminal = Terminal.from_settings(sys.stdout, settings)
    checks, only, gpu = CHECKS, settings["only"], settings["gpu"]
    if gpu not in (None, "none") and settings.origin("gpu").kind == "option":
        checks = (*CHECKS, gpu_check(gpu))
        only = only or (*_GPU_SECTIONS, *(["checkpoint.family"] if settings["model"] else []))
    if settings["list_checks"]:
        _list(choose_checks(checks, only, settings["skip"]), settings, terminal)
        return 0
    model = settings["model"] is not None or settings["machine"] is not None
    chosen = choose_checks(checks, only, settings["skip"], model=model)
    times: dict[str, float] = {}
    facts = _facts(settings, chosen, terminal, times)
    if facts.model is None:
        chosen = tuple(check for check in chosen if not check.model)
    stages = predict_stages(facts.backends, facts.stages) if facts.backends and facts.stages else ()
    report = Report(run_checks(chosen, facts), facts, stages, settings["strict"], times)
    if settings["html"] is not None:
        from coli.doctor.record.write import write_atomically
        from coli.doctor.report.html import render_html

        write_atomically(Path(settings["html"]), render_html(report))
    if settings["json"]:
        click.echo(json.dumps(to_document(report), ensure_ascii=False, indent=2))
    else:
        terminal.pieces(render_text(report, terminal.width, ascii=terminal.is_ascii, verbose=settings["verbose"]))
    return decide_exit_code(report)


def _facts(settings: Resolved, checks: tuple[Check, ...], terminal: Terminal, times: dict[str, float]) -> MachineFacts:
    """Return the facts that the checks read: of this machine, of a tree, or of a record; then changed by --set."""
    from coli.doctor.facts.machine import FIELDS, probe_machine
    from coli.doctor.record.changes import change_facts

    if settings["machine"] is not None:
        from coli.doctor.record.machine_file import read_machine
        from coli.errors import UsageError

        for other in ("model", "root", "record", "deep", "measure"):
            if settings[other] and settings.origin(other).kind == "option":
                raise UsageError(
                    "--machine",
                    f"takes no {'MODEL' if other == 'model' else f'--{other}'}",
                    fix="the file holds what was found; leave one of them out",
                    code="usage.machine",
                )
        return change_facts(read_machine(Path(settings["machine"])), settings["changes"])
    wanted = {field for check in checks for field in check.reads} | {"versions"}
    if settings["measure"]:
        wanted.add("measured")
    if settings["model"] is not None and "backends" in wanted:
        wanted.add("stages")
    request = _request(settings, terminal)
    if settings["record"] is None:
        return change_facts(probe_machine(request, wanted, times), settings["changes"])
    from coli.doctor.record.machine_file import write_machine
    from coli.doctor.record.raw import Recorder

    with Recorder(request.root) as recorder:
        facts = probe_machine(request, FIELDS, times)
    write_machine(Path(settings["record"]), facts, recorder.raw(), request.environment)
    return change_facts(facts, settings["changes"])


def _request(settings: Resolved, terminal: Terminal) -> Request:
    from coli.backends.cpu_level import machine_below
    from coli.build_matrix.machine import this_machine
    from coli.cli.session import backend_search
    from coli.doctor.facts.machine import Request
    from coli.paths import cache_folder, data_folder

    plugins = settings["plugins"]
    root = Path(settings["root"] or "/").absolute()
    tree = machine_below(root) if root != Path("/") else None
    return Request(
        settings,
        Environment().for_tools(),
        backend_search(settings),
        root=root,
        machine=tree or this_machine(),
        model=None if settings["model"] is None else Path(settings["model"]).absolute(),
        folders=(("cache", cache_folder()), ("data", data_folder())),
        cache=cache_folder(),
        plugins=None if plugins is None else tuple(plugins),
        deep=settings["deep"],
        measure=settings["measure"],
        progress=lambda done, total: terminal.progress("reading weights", done, total),
    )


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
