"""`coli backends`: the compute backends that were found, what every gate says of them, and which one is chosen."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from coli.cli.options import with_settings
from coli.cli.session import backend_search
from coli.cli.terminal import Terminal
from coli.settings import Resolved

if TYPE_CHECKING:
    from pathlib import Path

    from coli.backends.devices import DeviceFacts
    from coli.backends.trace import Candidate, CandidateTrace, CublasLt

__all__ = ["command"]


@click.group("backends", invoke_without_command=True)
@with_settings("backends")
def command(settings: Resolved) -> None:
    """List compute backends, and explain which one is chosen."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        return
    from coli.backends.loader import refusal_of, survey

    search = backend_search(settings)
    trace = survey(search, with_devices=True)
    if settings["json"]:
        click.echo(json.dumps(trace.as_dict(), ensure_ascii=False, indent=2))
        if trace.chosen is None:
            ctx.exit(refusal_of(trace, search).exit_code)
        return
    terminal = Terminal.from_settings(sys.stdout, settings)
    places = {place.path for place in trace.places}
    terminal.table(
        ("backend", "verdict", "reason", "from", "file"),
        [
            (
                row.candidate.name,
                "chosen" if index == trace.chosen else "ok" if row.accepted else "refused",
                _reason(row),
                row.candidate.origin,
                _file(row.candidate, places),
            )
            for index, row in enumerate(trace.candidates)
        ],
    )
    terminal.facts([("machine", trace.machine), *((f"{p.origin} ({p.state})", str(p.path)) for p in trace.places)])
    if trace.devices is not None:
        terminal.facts(_device_lines(trace.devices))
    if trace.chosen is None:
        raise refusal_of(trace, search)
    terminal.line(f"{trace.candidates[trace.chosen].candidate.name}: {trace.why}")


@command.command("explain", short_help="Show what every gate says of a library.")
@click.argument("file", metavar="FILE")
@with_settings("backends")
def explain(settings: Resolved, file: str) -> None:
    """Show what every gate says of one library, by its file or its name. Exit code 5 when it is refused."""
    from coli.backends.loader import explain_selection

    trace = explain_selection(file, backend_search(settings))
    row = trace.candidates[0]
    if settings["json"]:
        click.echo(json.dumps(trace.as_dict(), ensure_ascii=False, indent=2))
    else:
        terminal = Terminal.from_settings(sys.stdout, settings)
        terminal.facts([("file", str(row.candidate.path)), ("name", row.candidate.name), ("machine", trace.machine)])
        for finding in row.findings:
            terminal.facts([(f"{finding.gate:<13}{finding.verdict:<8}", finding.evidence)])
            for word, text in (("expected", finding.expected), ("fix", finding.fix)):
                if text is not None:
                    terminal.facts([(" " * 21, f"{word}: {text}")])
        if row.cublaslt is not None:
            _show_cublaslt(terminal, row.cublaslt)
    if not row.accepted:
        click.get_current_context().exit(5)


def _show_cublaslt(terminal: Terminal, found: CublasLt) -> None:
    from coli.backends.cublas import render_cublaslt

    terminal.facts([(f"{'cublaslt':<21}", render_cublaslt(found))])
    for place in found.places:
        evidence = f", {place.evidence}" if place.evidence else ""
        terminal.facts([(" " * 21, f"{place.origin}: {place.where}: {place.state}{evidence}")])


def _file(candidate: Candidate, places: set[Path]) -> str:
    # The folders that were searched stand below the table; whole paths would fold in every row.
    return candidate.path.name if candidate.path.parent in places else str(candidate.path)


def _reason(row: CandidateTrace) -> str:
    finding = row.refusal
    if finding is not None:
        return f"{finding.gate}: {finding.evidence}"
    return row.findings[-1].evidence + (", kept from an earlier start" if row.cached else "")


def _device_lines(facts: DeviceFacts) -> list[tuple[str, str]]:
    """Return a line on the driver and one on each device; what is not known is said so."""
    from coli.units import render_size

    driver = facts.driver
    release = f"{driver.version.value}, " if driver.version.value else ""
    lines = [("driver", f"{release}{driver.state}: {driver.evidence}")]
    for gpu in facts.gpus:
        free, capability = gpu.memory.free_bytes.value, gpu.capability.value
        memory = "free memory not known" if free is None else f"{render_size(free)} free"
        shown = f"{gpu.name.value or 'name not known'}, capability {capability or 'not known'}, {memory}"
        lines.append((f"gpu {gpu.index}", shown))
    return lines
