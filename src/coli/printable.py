"""Text of any origin as a terminal may get it: an escape sequence in a name is shown, not obeyed."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, keep: str = "") -> str:
    """Return ``text`` with escapes in place of what does not print, but for the characters in ``keep``."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )
