"""Kinds of values: how a setting is read from text (options, variables) and from TOML, and how it is shown."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from coli.errors import UsageError
from coli.paths import user_path
from coli.units import parse_size, render_size

__all__ = ["FLAG", "IDS", "PATH", "PATHS", "SIZE", "STOPS", "TEXT", "TEXTS", "Kind", "choice", "integer", "number"]


@dataclass(frozen=True)
class Kind:
    """Describe one type of value.

    ``parse(text, subject)`` reads options and variables, ``accept(value, subject)`` TOML values. Both raise UsageError.
    """

    name: str
    metavar: str
    parse: Callable[[str, str], Any]
    accept: Callable[[Any, str], Any]
    show: Callable[[Any], str] = str
    flag: bool = False
    multiple: bool = False
    empty: bool = False  # an empty variable is a value, the empty list; for all other kinds it means not set


def _refuse(subject: str, rule: str, value: object, expected: str) -> UsageError:
    return UsageError(subject, rule, observed=repr(value), expected=expected, code="usage.value")


def _text(value: Any, subject: str) -> str:
    if not isinstance(value, str):
        raise _refuse(subject, "is not text", value, "a string")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _refuse(subject, "is not valid UTF-8", value, "UTF-8 text")
    return value


def _path(value: Any, subject: str) -> str:
    text = _text(value, subject)
    # Path("") is the current folder: an unset shell variable must not choose it.
    if not text.strip() or "\0" in text:
        raise _refuse(subject, "is not a path", text, "the name of a file or folder")
    return text


def _stops(value: Any, subject: str) -> tuple[str, ...]:
    texts = _texts(value, subject)
    if not all(texts):
        raise _refuse(subject, "is an empty text, which is everywhere", "", "one character or more")
    return texts


def _texts(value: Any, subject: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_text(value, subject),)
    if not isinstance(value, (list, tuple)):
        raise _refuse(subject, "is not a list of text", value, "a list of strings")
    return tuple(_text(item, subject) for item in value)


def _names(text: str, subject: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _paths(text: str, subject: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(os.pathsep) if part)


_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def _flag(value: Any, subject: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUE:
        return True
    if isinstance(value, str) and value.strip().lower() in _FALSE:
        return False
    raise _refuse(subject, "is neither yes nor no", value, "1, true, yes, on, 0, false, no or off")


def _size(value: Any, subject: str) -> int:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not (math.isfinite(value) and 0 <= value <= 1 << 32):
            raise _refuse(subject, "is out of range", value, "0 to 4294967296 (GiB)")
        return parse_size(f"{value:.9f}" if isinstance(value, float) else str(value), subject)
    return parse_size(_text(value, subject), subject)


def integer(minimum: int, maximum: int = 2**31 - 1) -> Kind:
    """Return the kind of whole numbers from ``minimum`` to ``maximum``, both included."""

    def check(value: Any, subject: str) -> int:
        expected = f"a whole number from {minimum} to {maximum}"
        # int() also takes "1_000" and non-ASCII digits: what we cannot show again, we do not read.
        if isinstance(value, str) and value.strip().isascii() and value.strip().lstrip("+-").isdigit():
            value = int(value) if len(value) < 40 else maximum + 1
        if isinstance(value, bool) or not isinstance(value, int):
            raise _refuse(subject, "is not a whole number", value, expected)
        if not minimum <= value <= maximum:
            raise _refuse(subject, "is out of range", value, expected)
        return value

    return Kind("integer", "N", check, check)


def number(minimum: float, maximum: float, *, above: bool = False) -> Kind:
    """Return the kind of finite numbers from ``minimum`` to ``maximum``, both included; ``above``: not the minimum."""

    def check(value: Any, subject: str) -> float:
        expected = f"a number {'above' if above else 'from'} {minimum:g} to {maximum:g}"
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise _refuse(subject, "is not a number", value, expected) from None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _refuse(subject, "is not a number", value, expected)
        if not minimum <= value <= maximum or (above and value == minimum):  # also refuses NaN
            raise _refuse(subject, "is out of range", value, expected)
        return float(value)

    return Kind("number", "X", check, check, show=lambda value: f"{value:g}")


def choice(*names: str) -> Kind:
    """Return the kind of a value that is one of ``names``."""

    def check(value: Any, subject: str) -> str:
        text = _text(value, subject)
        if text not in names:
            raise _refuse(subject, "is none of the choices", text, ", ".join(names))
        return text

    return Kind("choice", "|".join(names), check, check)


def _ids(text: Any, subject: str) -> tuple[int, ...]:
    one = integer(0)
    parts = str(text).split(",")
    if len(parts) > 1 << 20:
        raise _refuse(subject, "is too long", f"{len(parts)} ids", "at most 1048576 ids")
    return tuple(int(one.parse(part, subject)) for part in parts)


TEXT = Kind("text", "TEXT", _text, _text)
PATH = Kind("path", "PATH", _path, lambda value, subject: str(user_path(_path(value, subject))))
TEXTS = Kind("list of text", "TEXT", _names, _texts, show=", ".join, multiple=True, empty=True)
STOPS = replace(TEXTS, parse=lambda text, subject: _stops(_names(text, subject), subject), accept=_stops)
PATHS = Kind("folders", "FOLDERS", _paths, _texts, show=os.pathsep.join, empty=True)
FLAG = Kind("yes or no", "", _flag, _flag, show=lambda value: "yes" if value else "no", flag=True)
SIZE = Kind("size", "SIZE", _size, _size, show=render_size)
IDS = Kind("token ids", "IDS", _ids, _ids, show=lambda value: ",".join(map(str, value)))
