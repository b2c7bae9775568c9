"""Small text files of the kernel, or of another machine's tree: bounded, never waited for, never raising."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["read_small", "read_whole_number"]

_LIMIT_BYTES = 4 << 20
# What a kernel counts fits 64 bits; more digits are another file's content, and cost time to convert.
_MOST_DIGITS = 20


def read_small(path: Path, limit_bytes: int = _LIMIT_BYTES) -> str | None:
    """Return the text of a regular file, at most ``limit_bytes`` of it; None when it cannot be read.

    A recorded tree may hold anything under any name: a FIFO would be waited for without end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        parts = []
        left = limit_bytes
        while left > 0 and (part := os.read(descriptor, min(left, 1 << 16))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_whole_number(path: Path) -> int | None:
    """Return the number that a file holds; None when it holds something else (`max`, -1) or cannot be read."""
    text = (read_small(path, 64) or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None
