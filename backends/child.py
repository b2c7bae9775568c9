"""A child process with a deadline and bounded output: for what may crash, hang or print without end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["Ended", "Listener", "observed", "run_child", "tell_listener"]

_STDERR_BYTES = 2000


@dataclass(frozen=True)
class Ended:
    """How a child ended: ``exit`` with its code, ``signal`` with its number, ``timeout`` or ``not started``.

    ``output`` holds at most the bytes that were allowed, ``cut`` says that there were more; ``errors`` is the end of
    its standard error.
    """

    end: Literal["exit", "signal", "timeout", "not started"]
    code: int = 0
    output: bytes = b""
    errors: str = ""
    cut: bool = False


Listener = Callable[[Sequence[str], "Ended"], None]
"""Told every command that ran and how it ended: a doctor's record holds what the tools of a machine said."""

_listeners: list[Listener] = []


@contextlib.contextmanager
def observed(listener: Listener) -> Iterator[None]:
    """Tell ``listener`` of every tool that any thread of this process runs meanwhile."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell_listener(command: Sequence[str | Path], ended: Ended) -> Ended:
    """Pass on what a tool said, and return it."""
    for listener in tuple(_listeners):
        listener([str(part) for part in command], ended)
    return ended


def run_child(
    command: Sequence[str | Path],
    *,
    deadline_s: float,
    max_bytes: int,
    environment: Mapping[str, str] | None = None,
    folder: str = "/",
) -> Ended:
    """Run a command without input. ``environment`` None: that of this process. Never raises for what it does."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                cwd=folder,
                env=None if environment is None else dict(environment),
            )
        except (OSError, ValueError) as error:  # ValueError: a null byte in an argument
            return tell_listener(command, Ended("not started", errors=str(error)))
        timed_out = False
        try:
            child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end(child)
        output.seek(0)
        data = output.read(max_bytes + 1)
        errors.seek(max(0, errors.seek(0, 2) - _STDERR_BYTES))
        said = errors.read(_STDERR_BYTES).decode("utf-8", "replace").strip()
    kept, cut = data[:max_bytes], len(data) > max_bytes
    if timed_out:
        return tell_listener(command, Ended("timeout", output=kept, errors=said, cut=cut))
    if child.returncode < 0:
        return tell_listener(command, Ended("signal", -child.returncode, kept, said, cut))
    return tell_listener(command, Ended("exit", child.returncode, kept, said, cut))


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and whatever it started: it leads a session of its own.

    What it left behind is ended even where it ended well itself: nobody asked for a process that stays.
    """
    with contextlib.suppress(OSError):  # none is left, as a rule
        if sys.platform != "win32":
            os.killpg(child.pid, signal.SIGKILL)
        elif child.poll() is None:
            child.kill()
    child.wait()
