"""`coli explain CODE`: what a code means, why it matters and how to fix it."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import asdict

import click

from coli.cli.options import with_settings
from coli.cli.terminal import Terminal
from coli.settings import Resolved

__all__ = ["command"]


@click.command("explain", short_help="Explain a code of a report or an error.")
@click.argument("code", metavar="[CODE]", required=False)
@with_settings("explain")
def command(settings: Resolved, code: str | None) -> None:
    """Explain a code: what it means, why it matters, how to fix it. Without CODE, list all codes."""
    from coli.doctor.codes import find_page, load_pages

    pages = load_pages()
    found = sorted(pages.values(), key=lambda page: page.code) if code is None else [find_page(code, pages)]
    if settings["json"]:
        rows = [asdict(page) for page in found]
        click.echo(json.dumps({"schema": "coli.explain/1", "pages": rows}, ensure_ascii=False, indent=2))
        return
    terminal = Terminal.from_settings(sys.stdout, settings)
    if code is None:
        terminal.facts((page.code, page.what) for page in found)
        return
    page = found[0]
    width = min(terminal.width, 100) - 6
    terminal.pieces([[(page.code, "bold")]])
    for label, text in (("what", page.what), ("why", page.why), ("fix", page.fix), ("seen in", page.seen_in)):
        if text:
            lines = textwrap.wrap(text, max(20, width - 4), break_long_words=False, break_on_hyphens=False)
            terminal.pieces(
                [[(f"  {label if number == 0 else '':<9}", "dim"), (line, "")] for number, line in enumerate(lines)]
            )
