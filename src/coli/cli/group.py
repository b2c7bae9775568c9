"""The click group: names and one-line helps of the commands, importing only the one that runs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import cast

import click

from coli.cli.failure import EXIT_USAGE
from coli.settings.names import nearest

__all__ = ["COMMANDS", "help_without_command", "run_group"]

# Name of the command and of its module in coli.cli, whose attribute `command` is the click command.
COMMANDS = {
    "run": "Answer one prompt.",
    "chat": "Talk with a model.",
    "demo": "Show that this installation works, with the packaged model.",
    "verify": "Compare a checkpoint with recorded reference results.",
    "plan": "Say which bytes go where, and how fast a model will be.",
    "build": "Compile backend libraries for this machine.",
    "doctor": "Say what is wrong with machine, build or model.",
    "explain": "Explain a code of a report or an error.",
    "families": "List model families, and explain how a model resolves.",
    "backends": "List compute backends, and explain which one is chosen.",
    "config": "Show settings and where each comes from.",
}


def help_without_command(ctx: click.Context) -> None:
    """Show a group's help on stderr and end with exit code 2 when no command was given.

    Releases of click differ in what they do then; one makes the help one long line of an error.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(EXIT_USAGE)


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"coli.cli.{cmd_name}")
        return cast(click.Command, module.command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS:
            close = nearest(name, COMMANDS)
            hint = f"Did you mean {close}?" if close else f"Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(f"No such command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        import coli

        click.echo(f"coli {coli.__version__}")
        ctx.exit()


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    help="Run mixture-of-experts language models that do not fit the machine.",
    epilog="Start with: coli demo",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)
@click.pass_context
def _group(ctx: click.Context) -> None:
    help_without_command(ctx)


def run_group(arguments: Sequence[str]) -> int:
    """Parse ``arguments``, run the command and return its exit code. Raises what the command raises."""
    try:
        with _group.make_context("coli", list(arguments)) as ctx:
            result = _group.invoke(ctx)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    return result if isinstance(result, int) else 0
