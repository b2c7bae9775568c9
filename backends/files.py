"""Ask about files by names that users and other programs gave, in folders that may be closed to us.

pathlib's own questions raise where a folder may not be entered (PATH of a session that began as another user) and for a
name that is too long. For whoever looks for something there, that is "no".
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["globbed", "is_file", "is_folder", "is_there", "real_path"]


def is_file(path: Path) -> bool:
    """Say whether a regular file, or a link to one, can be seen there."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Say whether a folder, or a link to one, can be seen there."""
    return os.path.isdir(path)  # noqa: PTH112


def is_there(path: Path) -> bool:
    """Say whether anything can be seen there; a link that leads nowhere is nothing."""
    return os.path.exists(path)  # noqa: PTH110


def globbed(folder: Path, pattern: str) -> list[Path]:
    """Return what matches below ``folder``, sorted; nothing where it cannot be looked at."""
    try:
        return sorted(folder.glob(pattern))
    except (OSError, ValueError):
        return []


def real_path(path: Path) -> Path:
    """Return where a path leads, itself for a circle of links or a name that cannot be."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path
