"""Versions as two or three numbers: `12.8`, `13.0.88`."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Version", "parse_version"]

_VERSION = re.compile(r"(\d{1,5})\.(\d{1,5})(?:\.(\d{1,9}))?", re.ASCII)


class Version(NamedTuple):
    """Order by major, minor, patch. ``text`` leaves a patch of 0 out."""

    major: int
    minor: int
    patch: int = 0

    @property
    def text(self) -> str:
        """Return `12.8` or `12.8.93`."""
        return f"{self.major}.{self.minor}" + (f".{self.patch}" if self.patch else "")

    @property
    def short(self) -> str:
        """Return `12.8`, whatever the patch."""
        return f"{self.major}.{self.minor}"

    @property
    def full(self) -> str:
        """Return `14.2.0`: always three numbers, as compilers write it."""
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def release(self) -> Version:
        """Return major and minor alone."""
        return Version(self.major, self.minor)


def parse_version(text: str) -> Version | None:
    """Read the whole of ``text`` as a version, else None."""
    found = _VERSION.fullmatch(text.strip())
    return Version(int(found[1]), int(found[2]), int(found[3] or 0)) if found else None
