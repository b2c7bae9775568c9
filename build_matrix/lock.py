"""One process at a time in a folder: a lock that ends with its holder, and with every child that the holder started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["locked"]


@contextlib.contextmanager
def locked(path: Path, tell: Callable[[str], None] | None = None) -> Iterator[int]:
    """Hold the lock file ``path``, which stays; wait for whoever has it, and ``tell`` so. Raises OSError.

    Yields its descriptor. A child that gets it (``pass_fds``) keeps the lock when this process is killed: what an
    orphaned compiler still writes never meets the next build.
    """
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if tell is not None:
                tell(f"waiting for another build, which has {path}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
