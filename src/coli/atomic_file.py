"""Write a file in one step: whoever reads it sees the old one or the whole new one."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 to ``path``. Raises OSError that names ``path``, and then leaves what was there.

    A link is followed. A device or a pipe is written to, never replaced: root could put a file in the place of
    /dev/null. A new file is its owner's only; an old one keeps its mode.
    """
    try:
        target = Path(os.path.realpath(path))
        mode = _mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            with target.open("w", encoding="utf-8") as stream:  # refuses a folder
                stream.write(text)
            return
        _replace(target, text, mode)
    except OSError as error:
        # The name of the file that is written first would say nothing to anybody.
        raise OSError(error.errno, error.strerror, str(path)) from None


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(target: Path, text: str, mode: int | None) -> None:
    # Not named after the target: that name may be as long as the file system allows.
    descriptor, name = tempfile.mkstemp(prefix=".coli-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if mode is not None:
            Path(name).chmod(stat.S_IMODE(mode))
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
