"""Reading `config.json`: tolerant of how files were written, strict about what they say. Nothing in it is ever run."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from coli.errors import CheckpointError

__all__ = ["MAX_CONFIG_BYTES", "ConfigFile", "decode_text", "read_config"]

# Real ones are 2 KB to 2 MB (the large ones list every quantized layer).
MAX_CONFIG_BYTES = 16 * 1024 * 1024
MAX_NOTES = 20


class ConfigFile(NamedTuple):
    """A parsed config and what was unusual about the file."""

    data: dict[str, Any]
    path: Path
    notes: tuple[str, ...]


def read_config(path: Path) -> ConfigFile:
    """Read the `config.json` at a path (a file, or the folder it lies in).

    A byte order mark (of UTF-16 too), CRLF, repeated keys and Infinity are accepted and noted. Raises CheckpointError:
    missing, too large, not UTF-8, not JSON, not an object, NaN in a field that may be read (`checkpoint.non-finite`,
    with the field).
    """
    file = path / "config.json" if path.is_dir() else path
    raw = _read(file)
    text, notes = decode_text(file, raw)
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(items)
        if len(table) < len(items):
            keys = [k for k, _ in items]
            repeated.extend(sorted({k for k in keys if keys.count(k) > 1}))
        return table

    try:
        data = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise _broken(file, where, _hint(raw) or _foreign_syntax(text, error.pos)) from None
    except (RecursionError, ValueError) as error:
        raise _broken(file, f"{type(error).__name__}: {error}"[:200], None) from None
    if not isinstance(data, dict):
        raise _broken(file, f"a {type(data).__name__} at the top", "an object { ... }")
    notes += [f"key {key!r} is there twice, the last one counts" for key in repeated]
    for field, value in _non_finite(data, ""):
        if math.isnan(value) and not _NOT_READ.search(field):
            raise CheckpointError(
                str(file),
                f"{field} must be a number",
                observed="NaN",
                expected="a finite value",
                fix=f"take the {file.name} of the original checkpoint",
                code="checkpoint.non-finite",
                data={"field": field},
            )
        notes.append(f"{field} is {value}")
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"and {len(notes) - MAX_NOTES} more"]
    return ConfigFile(data, file, tuple(notes))


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:  # a reader allocates what it is asked for, whatever the file holds
            raw = stream.read(min(os.fstat(stream.fileno()).st_size, MAX_CONFIG_BYTES) + 1)
    except OSError as error:
        raise CheckpointError(
            str(file),
            "the config of a checkpoint must be readable",
            observed=error.strerror or str(error),
            fix="give the folder that holds config.json",
            code="checkpoint.no-config",
        ) from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise CheckpointError(
            str(file),
            "a config must not be larger than 16 MiB",
            observed=f"{file.stat().st_size} bytes",
            code="checkpoint.config-size",
        )
    return raw


# The longer marks first: that of UTF-32 starts with that of UTF-16.
_MARKS = (
    (b"\xef\xbb\xbf", "utf-8", "starts with a byte order mark"),
    (b"\xff\xfe\0\0", "utf-32-le", "is UTF-32 text"),
    (b"\0\0\xfe\xff", "utf-32-be", "is UTF-32 text"),
    (b"\xff\xfe", "utf-16-le", "is UTF-16 text"),
    (b"\xfe\xff", "utf-16-be", "is UTF-16 text"),
)


def decode_text(file: Path, raw: bytes) -> tuple[str, list[str]]:
    """Return the text of a JSON file, and what is unusual about it. Raises CheckpointError for another encoding."""
    mark, encoding, said = next((m for m in _MARKS if raw.startswith(m[0])), (b"", "utf-8", ""))
    try:
        text = raw[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        observed = f"byte {error.start + len(mark)} is not {encoding.upper()}"
        raise _broken(file, observed, "UTF-8 text") from None
    notes = [said] if said else []
    if "\r\n" in text:
        notes.append("has CRLF line ends")
    return text, notes


_PYTHON_WORDS = re.compile(r"(True|False|None)\b")


def _foreign_syntax(text: str, at: int) -> str | None:
    """Say what a text that is nearly JSON has at the place where it stops being JSON."""
    rest, before = text[at : at + 16], text[:at].rstrip()
    plain = None
    if rest.startswith(("//", "/*", "#")):
        plain = "comments are not part of JSON: take them out"
    elif (rest[:1] in ("}", "]") and before.endswith(",")) or (
        rest[:1] == "," and text[at + 1 :].lstrip()[:1] in ("}", "]")
    ):
        plain = "no comma after the last entry"
    elif rest.startswith("'"):
        plain = 'names and texts in double quotes: "..."'
    elif _PYTHON_WORDS.match(rest):
        plain = "true, false and null: this is how Python writes them"
    elif before and not rest:
        plain = "the rest of the file: it is cut off"
    elif rest.startswith(("<<<<<<<", "=======", ">>>>>>>")):
        plain = "one version of the text: these are marks of an unfinished git merge"
    elif rest.startswith("\0"):
        plain = "text: from here on the file is filled with zeros, as an unfinished copy leaves it"
    return plain


def _hint(raw: bytes) -> str | None:
    if raw.startswith(b"version https://git-lfs"):
        return "the file itself; this is a Git LFS pointer, download it with `git lfs pull`"
    if not raw.strip():
        return "an object { ... }; the file is empty"
    return None


def _broken(file: Path, observed: str, expected: str | None) -> CheckpointError:
    return CheckpointError(
        str(file),
        "the config must be a JSON object",
        observed=observed,
        expected=expected,
        fix=f"download {file.name} again",
        code="checkpoint.config",
    )


# What nobody reads who only runs the text model: how it was trained, and its other parts.
_NOT_READ = re.compile(
    r"^(?:vision|audio|video|speech|talker|code2wav|token2wav)_config\.|^vi(?:sual|t_config|sion_tower)\."
    r"|(?:^|\.)(?:initializer_range|init_std|time_step_\w+|\w*dropout\w*|\w*_loss_coef\w*|\w*_loss_alpha|\w*jitter\w*)(?:\[|$)"
)


def _non_finite(value: Any, where: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield where, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _non_finite(item, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _non_finite(item, f"{where}[{index}]")
