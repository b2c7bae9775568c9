"""`coli config`: show settings and where each comes from."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from coli.cli.group import help_without_command
from coli.cli.options import with_settings
from coli.cli.terminal import Terminal
from coli.settings import SETTINGS, Resolved, Setting

__all__ = ["command"]


@click.group("config", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show settings and where each comes from."""
    help_without_command(ctx)


@command.command("show", short_help="Show the value of every setting.")
@click.option("--origin", is_flag=True, help="Also say where each value comes from and how to set it.")
@with_settings("config")
def show(settings: Resolved, origin: bool) -> None:
    """Show the value of every setting: option, then variable, then settings file, then default."""
    if settings["json"]:
        rows = [_record(setting, settings) for setting in SETTINGS]
        click.echo(json.dumps({"schema": "coli.config/1", "settings": rows}, ensure_ascii=False, indent=2))
        return
    terminal = Terminal.from_settings(sys.stdout, settings)
    # What only an option can set has no standing value.
    standing = [setting for setting in SETTINGS if setting.variable or setting.toml_key]
    if origin:
        terminal.table(
            ("setting", "value", "from", "set with (option, variable, TOML key)"),
            [
                (
                    setting.name,
                    _show(setting, settings),
                    _origin(setting, settings),
                    ", ".join((setting.option or "-", setting.variable or "-", setting.toml_key or "-")),
                )
                for setting in standing
            ],
        )
    else:
        terminal.facts((setting.name, _show(setting, settings)) for setting in standing)


def _show(setting: Setting, settings: Resolved) -> str:
    value = settings[setting.name]
    if value is None:
        return f"({setting.unset})"
    return setting.kind.show(value) or "(none)"


def _origin(setting: Setting, settings: Resolved) -> str:
    where = settings.origin(setting.name)
    return where.text if where.kind != "default" else "default"


def _record(setting: Setting, settings: Resolved) -> dict[str, Any]:
    where = settings.origin(setting.name)
    return {
        "name": setting.name,
        "value": settings[setting.name],
        "origin": {"kind": where.kind, "text": where.text},
        "option": setting.option,
        "variable": setting.variable,
        "toml_key": setting.toml_key,
        "help": setting.help,
        "readers": list(setting.readers),
    }
