"""Looks at paths that come from variables: one that cannot be looked at is one where nothing is.

`Path.is_file` and its kin raise for a folder that may not be entered and for a name that is too long.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["exists", "is_file", "is_folder", "matching"]


def is_file(path: Path) -> bool:
    """Tell whether a regular file is there."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Tell whether a folder is there."""
    return os.path.isdir(path)  # noqa: PTH112


def exists(path: Path) -> bool:
    """Tell whether anything is there."""
    return os.path.exists(path)  # noqa: PTH110


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return what matches ``pattern`` below a folder, sorted."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
