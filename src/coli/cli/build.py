"""`coli build`: compile backend libraries for this machine, and say what was taken from where."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from coli.cli.options import with_settings
from coli.cli.terminal import Terminal
from coli.errors import UsageError
from coli.paths import cache_folder, data_folder
from coli.settings import Resolved
from coli.settings.environment import Environment

if TYPE_CHECKING:
    from coli.build_matrix.matrix import Cell
    from coli.build_matrix.order import Outcome, Refused
    from coli.build_matrix.plan import Plan
    from coli.build_matrix.tools import Tools
    from coli.build_matrix.wheels import Download

__all__ = ["command"]

_EXIT_FAILED = 1
_SCHEMA = "coli.build/1"
_LOG_LINE = 300


@click.command("build")
@with_settings("build")
def command(settings: Resolved) -> None:
    """Compile backend libraries for this machine and install them where `coli backends` looks.

    Without --cell: every CPU level, and one CUDA library, with a toolkit made from pinned wheels where none is
    installed. CUDA_ARCH, NO_TC, DEEPGEMM, DEEPGEMM_HOME, CUDA_HOME, NVCC_CCBIN and NVCC_APPEND_FLAGS are honoured.
    """
    with _ending_at_once():
        _build(settings)


@contextlib.contextmanager
def _ending_at_once() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a build as Ctrl-C does: with its compilers, and without what is half made."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one, and may
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _build(settings: Resolved) -> None:
    from coli.build_matrix.matrix import load_matrix

    start = time.monotonic()
    terminal = Terminal.from_settings(sys.stderr if settings["json"] else sys.stdout, settings)
    matrix = load_matrix()
    tagged = _tagged(settings["tag"], list(matrix.cells.values()))
    if settings["list_cells"]:
        _list(tagged, settings, terminal)
        return
    from coli.build_matrix.finish import finish_library
    from coli.build_matrix.machine import gather_facts, this_machine
    from coli.build_matrix.order import (
        Refused,
        build_all,
        decide_downloads,
        names_deepgemm,
        plan_cells,
        tensor_core_toolkits,
        wants_cuda,
    )
    from coli.build_matrix.request import read_request
    from coli.build_matrix.tools import find_tools

    environment = Environment().for_tools()
    named = [settings["explain_cell"]] if settings["explain_cell"] else list(settings["cells"])
    if settings["tag"] is not None:
        if named:
            raise UsageError("--tag", "it chooses cells, and so does naming them", observed=named[0], fix="give one")
        named = [cell.id for cell in tagged]
    request = read_request(environment, toolkit=settings["toolkit"], anyway=settings["anyway"])
    facts = gather_facts(
        request,
        environment,
        cache_folder(),
        wants_cuda=wants_cuda(named),
        names_deepgemm=names_deepgemm(named, every=settings["all_cells"]),
        tensor_cores_for=tensor_core_toolkits(named, matrix, every=settings["all_cells"]),
        tell=lambda text: terminal.note(f"[coli] {text}"),
        fetch=not settings["explain_cell"],
    )
    planned = plan_cells(named, request, facts, matrix, this_machine(), _backends(), every=settings["all_cells"])
    if settings["explain_cell"]:
        _explain(planned[0], decide_downloads(planned[0], facts), settings, terminal)
        return
    for one in planned:
        if not isinstance(one, Refused):
            _show_notes(one, terminal)
    tools = find_tools(environment)
    terminal.line(_cache_line(tools))
    outcomes = build_all(
        planned,
        tools,
        builds=Path(settings["builds"]).absolute() if settings["builds"] else cache_folder() / "build",
        data_folder=data_folder(),
        environment=environment,
        jobs=settings["jobs"] or _cores(),
        tell=lambda plan, step: terminal.line(f"{plan.cell.id}: {step} ..."),
        finish=finish_library,
        done=lambda outcome: _show(outcome, terminal),
    )
    seconds = time.monotonic() - start
    terminal.line(f"in all {seconds:.1f} s")
    if settings["json"]:
        document = {
            "schema": _SCHEMA,
            "seconds": round(seconds, 3),
            "ccache": None if tools.ccache is None else str(tools.ccache),
            "cells": [_document(outcome) for outcome in outcomes],
        }
        click.echo(json.dumps(document, ensure_ascii=False))
    bad = [outcome for outcome in outcomes if _state(outcome) in ("failed", "refused")]
    expected = {cell.id for cell in matrix.cells.values() if cell.refused_by}
    if any(not isinstance(outcome, Refused) or outcome.cell not in expected for outcome in bad):
        raise click.exceptions.Exit(_EXIT_FAILED)


def _backends() -> Path:
    """Return the folder of the backends' sources: they are part of the package."""
    import coli.backends

    return Path(coli.backends.__file__).parent.resolve()


def _cores() -> int:
    from coli.engine.host_cpu import default_threads

    return default_threads()


def _tagged(tag: str | None, cells: list[Cell]) -> list[Cell]:
    """Return the cells with a tag, all without one. Raises UsageError for a tag that no cell has."""
    found = [cell for cell in cells if tag is None or tag in cell.tags]
    if not found:
        tags = sorted({tag for cell in cells for tag in cell.tags})
        raise UsageError(
            "--tag", "a cell must have it", observed=str(tag), expected=" or ".join(tags), code="build.tag"
        )
    return found


def _cache_line(tools: Tools) -> str:
    if tools.ccache is None:
        return "compiler cache: none (ccache beside Python or on PATH would be used)"
    return f"compiler cache: {tools.ccache}"


def _list(listed: list[Cell], settings: Resolved, terminal: Terminal) -> None:
    from coli.build_matrix.finish import evidence_of

    cells = [(cell, evidence_of(cell, data_folder())) for cell in listed]
    if settings["json"]:
        rows = [
            {
                "id": cell.id,
                "kind": cell.kind,
                "tags": cell.tags,
                "machines": cell.machines,
                "refused_by": cell.refused_by,
                "evidence": evidence,
            }
            for cell, evidence in cells
        ]
        click.echo(json.dumps({"schema": _SCHEMA, "cells": rows}, ensure_ascii=False))
        return
    terminal.table(
        ("cell", "machines", "evidence"),  # three, so that they fit 80 columns; --json has the tags
        [
            (
                cell.id,
                " ".join(cell.machines) if len(cell.machines) == 1 else "all",
                f"refused: {cell.refused_by}" if cell.refused_by else evidence,
            )
            for cell, evidence in cells
        ],
    )


def _explain(one: Plan | Refused, downloads: tuple[Download, ...], settings: Resolved, terminal: Terminal) -> None:
    from coli.build_matrix.order import Refused

    if isinstance(one, Refused) and downloads:
        notes = [download.text for download in downloads]
        if settings["json"]:
            cell = {
                "id": one.cell,
                "state": "planned",
                "library": None,
                "arguments": [],
                "notes": notes,
                "warnings": [],
            }
            click.echo(json.dumps({"schema": _SCHEMA, "cells": [cell]}, ensure_ascii=False))
            return
        terminal.line(one.cell)
        for note in notes:
            terminal.paragraph(note, 2)
        terminal.paragraph("what is compiled how is decided when that is here: `coli build` fetches it first", 2)
        return
    if isinstance(one, Refused):
        raise one.refusal.error()
    if settings["json"]:
        click.echo(json.dumps({"schema": _SCHEMA, "cells": [_plan_document(one)]}, ensure_ascii=False))
        return
    _show_notes(one, terminal)
    terminal.facts([("source", str(one.source)), ("library", one.library)])
    for argument in one.arguments:
        terminal.line(f"  {argument}")


def _show_notes(plan: Plan, terminal: Terminal) -> None:
    terminal.line(f"{plan.cell.id}")
    for note in plan.notes:
        terminal.paragraph(note, 2)
    for warning in plan.warnings:
        terminal.paragraph(f"warning: {warning}", 2)


def _state(outcome: Outcome) -> str:
    from coli.build_matrix.driver import Built, Failed

    return outcome.state if isinstance(outcome, Built) else "failed" if isinstance(outcome, Failed) else "refused"


def _show(outcome: Outcome, terminal: Terminal) -> None:
    from coli.build_matrix.driver import Built, Failed

    if isinstance(outcome, Built):
        terminal.line(f"{outcome.plan.cell.id}: {outcome.state} in {outcome.seconds:.1f} s: {outcome.library}")
    elif isinstance(outcome, Failed):
        terminal.line(f"{outcome.plan.cell.id}: FAILED in {outcome.step} after {outcome.seconds:.1f} s")
        terminal.paragraph(f"cause: {outcome.cause.id}: {outcome.cause.cause}", 2)
        if outcome.cause.fix:
            terminal.paragraph(f"fix:   {outcome.cause.fix}", 2)
        for line in outcome.tail:  # a compiler's command has a thousand characters
            terminal.line(f"  | {line if len(line) <= _LOG_LINE else line[:_LOG_LINE] + ' ...'}")
        terminal.line(f"  whole log: {outcome.log}")
    else:
        terminal.line(f"{outcome.cell}: refused ({outcome.refusal.rule})")
        for line in outcome.refusal.error().text().splitlines():
            terminal.paragraph(line.strip(), 2 + len(line) - len(line.lstrip()))


def _plan_document(plan: Plan) -> dict[str, Any]:
    return {
        "id": plan.cell.id,
        "state": "planned",
        "library": plan.library,
        "arguments": list(plan.arguments),
        "notes": list(plan.notes),
        "warnings": list(plan.warnings),
    }


def _document(outcome: Outcome) -> dict[str, Any]:
    from coli.build_matrix.driver import Built, Failed

    if isinstance(outcome, Built):
        made: dict[str, Any] = {
            "state": outcome.state,
            "library": str(outcome.library),
            "sha256": outcome.sha256,
            "seconds": round(outcome.seconds, 3),
            "log": str(outcome.log),
        }
        return _plan_document(outcome.plan) | made
    if isinstance(outcome, Failed):
        cause = {"class": outcome.cause.id, "cause": outcome.cause.cause, "fix": outcome.cause.fix}
        log = {"tail": list(outcome.tail), "seconds": round(outcome.seconds, 3), "log": str(outcome.log)}
        return _plan_document(outcome.plan) | {"state": "failed", "step": outcome.step, "cause": cause} | log
    refusal = outcome.refusal
    return {"id": outcome.cell, "state": "refused", "rule": refusal.rule, "error": refusal.error().as_dict()}
