"""Sizes in bytes: parsed from what people type, rendered in binary units only."""

from __future__ import annotations

import re
from decimal import Decimal

from coli.errors import UsageError

__all__ = ["parse_size", "render_size"]

_UNITS = {
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]*)", re.ASCII)
_LIMIT = 1 << 62  # bytes; anything above is a typing error, and int64 arithmetic elsewhere stays safe


def parse_size(text: str, subject: str = "size") -> int:
    """Return the bytes that ``text`` names.

    ``12GiB``, ``12GB``, ``512MiB``, ``1.5GiB``; a bare number is GiB. ``subject`` names the option in the UsageError.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match.group(2).lower() if match else ""
    if match is None or (unit and unit not in _UNITS):
        raise UsageError(
            subject,
            "is not a size",
            observed=repr(text),
            expected="a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB; a bare number is GiB",
            fix=_suggest(match),
            code="usage.size",
        )
    number = int(Decimal(match.group(1)) * _UNITS[unit or "gib"])
    if number > _LIMIT:
        raise UsageError(subject, "is too large", observed=repr(text), expected="at most 4194304TiB", code="usage.size")
    return number


def _suggest(match: re.Match[str] | None) -> str | None:
    if match is None:
        return None
    number, letter = match.group(1), match.group(2)[:1].upper()
    # "12G" may mean either, and the difference is 7 %: we ask instead of guessing.
    return f"write {number}{letter}iB or {number}{letter}B" if letter in tuple("KMGT") else None


def render_size(nbytes: int) -> str:
    """Return ``nbytes`` in the largest fitting binary unit, with at most one decimal: ``5.6MiB``, ``12GiB``."""
    sign, value = ("-", -nbytes) if nbytes < 0 else ("", nbytes)
    power = 0
    # 1023.95 and more would print as 1024.0 of the smaller unit.
    while power + 1 < len(_BINARY) and value * 20 >= 20479 * 1024**power:
        power += 1
    tenths = (value * 10 * 2 + 1024**power) // (1024**power * 2)
    whole, tenth = divmod(tenths, 10)
    return f"{sign}{whole}{f'.{tenth}' if tenth else ''}{_BINARY[power]}"
