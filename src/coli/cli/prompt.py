"""The prompt of `coli run`: an argument, standard input, or token ids."""

from __future__ import annotations

import sys

from coli.errors import UsageError
from coli.settings.kinds import TEXT

__all__ = ["read_prompt"]

_LIMIT = 64 << 20  # bytes of standard input; far above any context, far below memory


def read_prompt(argument: str | None, *, has_ids: bool, has_chat_options: bool, raw: bool) -> str | None:
    """Return the prompt text, None when ids are given. `-`, or no argument with a pipe, reads standard input.

    Raises UsageError when there is no prompt, two of them, or options that contradict each other.
    """
    if has_chat_options and (raw or has_ids):
        what = "--ids" if has_ids else "--raw"
        raise UsageError(
            what, "cannot be combined with --system or --thinking", fix="leave one out", code="usage.prompt"
        )
    if has_ids:
        if argument is not None:
            raise UsageError("--ids", "cannot be combined with a prompt", fix="leave one out", code="usage.prompt")
        return None
    if argument is None and sys.stdin is not None and sys.stdin.isatty():
        argument = None
    elif argument is None or argument == "-":
        return _read_stdin()
    if argument is None:
        raise UsageError("PROMPT", "is missing", fix='write it after MODEL, or pipe it in: "-"', code="usage.prompt")
    return str(TEXT.parse(argument, "PROMPT"))


def _read_stdin() -> str:
    data = sys.stdin.buffer.read(_LIMIT + 1) if sys.stdin is not None else b""
    if len(data) > _LIMIT:
        raise UsageError("standard input", "is too long for a prompt", expected="at most 64MiB", code="usage.prompt")
    if not data:
        raise UsageError(
            "PROMPT",
            "is missing",
            observed="empty standard input",
            fix="write it after MODEL, or pipe it in",
            code="usage.prompt",
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            "standard input", "is not valid UTF-8", observed=f"byte {error.start}", code="usage.prompt"
        ) from None
