"""What happens when a command fails: one reason, the documented exit code, no traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Sequence

import click

from coli.errors import ColiError

__all__ = ["EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_USAGE", "guarded"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def guarded(action: Callable[[], int], arguments: Sequence[str]) -> int:
    """Run ``action`` and turn whatever it raises into text on stderr and an exit code.

    With `--json` in ``arguments`` the refusal is also one document on stdout: {"schema": ..., "error": {...}}.
    """
    closed = _open_missing_streams()
    _make_streams_safe()
    try:
        try:
            if "stdout" in closed:
                raise ColiError(
                    "standard output", "is closed", fix="leave it open, or send it to /dev/null", code="os.closed"
                )
            code = action()
            sys.stdout.flush()  # a full disk must be seen here, not when the interpreter shuts down
            return code
        except BaseException as error:
            return _report(error, arguments)
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_FAILED
    except OSError as error:  # the refusal itself could not be written
        _silence_stdout()
        with contextlib.suppress(OSError):
            click.echo(f"coli: cannot write the output: {error.strerror}", err=True)
        return EXIT_FAILED


def _report(error: BaseException, arguments: Sequence[str]) -> int:
    if isinstance(error, BrokenPipeError):  # the reader went away: `coli run ... | head`
        raise error
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        click.echo("\ninterrupted", err=True)
        return EXIT_INTERRUPTED
    if not isinstance(error, Exception):  # SystemExit, GeneratorExit: not ours
        raise error
    if _debugging():
        import traceback

        traceback.print_exception(type(error), error, error.__traceback__)
    text, fields, code = _describe(error)
    click.echo(text, err=True)
    if _wants_json(arguments) and not _is_output_error(error):
        import json

        document = {"schema": f"coli.{_schema(arguments)}/1", "error": fields}
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
    elif _is_output_error(error):
        _silence_stdout()
    return code


def _describe(error: Exception) -> tuple[str, dict[str, str | int | None], int]:
    if isinstance(error, ColiError):
        return f"coli: {error.text()}", error.as_dict(), error.exit_code
    if isinstance(error, click.ClickException):
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "coli"
        message = " ".join(error.format_message().split())
        text = f"{where}: {message}\n  fix:      see {where} --help"
        return (
            text,
            ColiError(where, message, fix=f"see {where} --help", code="usage").as_dict() | {"exit_code": EXIT_USAGE},
            EXIT_USAGE,
        )
    if isinstance(error, OSError) and error.errno is not None:
        subject = str(error.filename) if error.filename is not None else "output"
        refusal = ColiError(subject, os.strerror(error.errno), fix=_OS_FIXES.get(error.errno), code="os")
        return f"coli: {refusal.text()}", refusal.as_dict(), EXIT_FAILED
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        refusal = ColiError(
            "threads", "the system has no more", fix="raise its limits (ulimit -u, -v)", code="os.threads"
        )
        return f"coli: {refusal.text()}", refusal.as_dict(), EXIT_FAILED
    if isinstance(error, MemoryError):
        refusal = ColiError("memory", "the system has no more", fix="set a lower --ram or --ctx", code="os.memory")
        return f"coli: {refusal.text()}", refusal.as_dict(), EXIT_FAILED
    refusal = ColiError(
        "coli",
        "unexpected error, a mistake in coli itself",
        observed=f"{type(error).__name__}: {error}",
        fix="run again with COLI_DEBUG=1 and report the traceback",
        code="internal",
    )
    return f"coli: {refusal.text()}", refusal.as_dict(), EXIT_FAILED


_OS_FIXES = {
    errno.ENOSPC: "free space on the disk that the output goes to",
    errno.EDQUOT: "free space within the quota",
    errno.EACCES: "check the permissions",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def _is_output_error(error: Exception) -> bool:
    return isinstance(error, OSError) and error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _wants_json(arguments: Sequence[str]) -> bool:
    before_dashes = list(arguments)[: list(arguments).index("--")] if "--" in arguments else list(arguments)
    return "--json" in before_dashes


def _schema(arguments: Sequence[str]) -> str:
    from coli.cli.group import COMMANDS

    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    # The demo prints the document of a run.
    return {"demo": "run"}.get(name, name) if name in COMMANDS else "error"


def _debugging() -> bool:
    from coli.settings import Environment

    # Read directly: the settings may be what failed.
    return Environment().get("COLI_DEBUG") not in (None, "", "0", "no", "off", "false")


def _open_missing_streams() -> list[str]:
    """Put the null device where the caller closed a standard stream; return the names of those.

    Otherwise the next file that is opened, a weight file for example, gets the number that native code writes to.
    """
    closed = []
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                opened = os.open(os.devnull, os.O_RDWR)
                if opened != number:
                    os.dup2(opened, number)
                    os.close(opened)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
            closed.append(name)
    return closed


def _make_streams_safe() -> None:
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # absent when a test replaced the stream
        if reconfigure is not None:
            # A model may write any character; a terminal with another encoding shows an escape, not a crash.
            reconfigure(errors="backslashreplace")


def _silence_stdout() -> None:
    # What is still buffered can no longer be written; the interpreter would complain about it on exit.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
