"""Click options made from the settings table, and the resolved settings handed to the command."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from coli.settings import SETTINGS, Setting, resolve

__all__ = ["with_settings"]

_GIVEN = "coli.options"  # in the context of click: what the group of a subcommand was given


def with_settings(reader: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command every option that lists ``reader``, and pass it ``settings=Resolved``.

    A command argument that is the name of a setting (MODEL) counts as its option. An option may stand before or behind
    the name of a subcommand: `coli families --ascii show ID` is `coli families show ID --ascii`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        mine = [setting for setting in SETTINGS if setting.option and reader in setting.readers]

        @functools.wraps(function)
        def wrapper(**parameters: Any) -> Any:
            meta = click.get_current_context().meta
            outer: dict[str, Any] = meta.get(_GIVEN, {})
            options = {setting.name: parameters.pop(setting.name) for setting in mine}
            if "model" in parameters:
                options["model"] = parameters.pop("model")
            options = outer | {name: value for name, value in options.items() if value not in (None, ())}
            settings = resolve(options)
            if _GIVEN not in meta:  # the group of a subcommand has shown them
                for note in settings.notes:
                    click.echo(f"note: {note}", err=True)
            meta[_GIVEN] = options
            return function(settings=settings, **parameters)

        decorated: Callable[..., Any] = wrapper
        for setting in reversed(mine):
            decorated = _option(setting, str(setting.option))(decorated)
        return decorated

    return decorate


def _option(setting: Setting, option: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    kind = setting.kind
    if kind.flag:
        # None, not False, when absent: the variable or the file may say yes.
        return click.option(*option.split(", "), setting.name, is_flag=True, default=None, help=setting.help)
    shown = setting.unset if setting.default is None else kind.show(setting.default)
    help_text = f"{setting.help}  [default: {shown}]" if shown not in ("", "-") else setting.help
    return click.option(
        *option.split(", "), setting.name, metavar=kind.metavar, multiple=kind.multiple, default=None, help=help_text
    )
