"""The table of mounts, /proc/self/mountinfo."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from coli.engine.small_files import read_small

__all__ = ["Mount", "mount_of", "parse_mounts", "probe_mounts"]

_MAX_MOUNTS = 20_000
_ESCAPE = re.compile(r"\\([0-3][0-7]{2})")


class Mount(NamedTuple):
    """One line. ``device``: `major:minor`. ``root``: which folder of the file system is mounted. Names unescaped."""

    device: str
    root: str
    point: str
    options: tuple[str, ...]
    fs_type: str
    source: str
    super_options: tuple[str, ...]


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Return the mounts in the order of the table, a later one on top of an earlier. Lines that are none are skipped.

    Pure. Fields, from proc(5): id, parent, device, root, point, options, optional fields, `-`, type, source, options
    of the file system.
    """
    mounts = []
    for line in text.split("\n")[:_MAX_MOUNTS]:
        words = line.split(" ")
        if len(words) < 7 or "-" not in words[6:]:
            continue
        end = words.index("-", 6)
        # A source may be empty: then the field is still there, between two spaces.
        if len(words) < end + 3 or not words[4].startswith("/"):
            continue
        rest = words[end + 1 :]
        mounts.append(
            Mount(
                words[2],
                _unescaped(words[3]),
                _unescaped(words[4]),
                tuple(words[5].split(",")),
                rest[0],
                _unescaped(rest[1]),
                tuple(_unescaped(rest[2]).split(",")) if len(rest) > 2 else (),
            )
        )
    return tuple(mounts)


def probe_mounts(root: Path) -> tuple[Mount, ...]:
    """Read the mounts of the machine below ``root``; none when the table cannot be read."""
    return parse_mounts(read_small(root / "proc/self/mountinfo") or "")


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount that a resolved path is on: the longest, of equal ones the last, which lies on top. Pure."""
    best = None
    for mount in mounts:
        point = mount.point.rstrip("/")
        on_it = path == point or path.startswith(f"{point}/")
        if on_it and (best is None or len(point) >= len(best.point.rstrip("/"))):
            best = mount
    return best


def _unescaped(word: str) -> str:
    """Return a field as it is named: the kernel writes space, tab, line feed and backslash in octal."""
    # A name of other bytes than ASCII comes unescaped, as UTF-8.
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), word)
