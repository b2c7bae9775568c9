"""A piece of work with a deadline in a thread of its own: a crash or a hang becomes data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

__all__ = ["Task", "Unfinished"]

T = TypeVar("T")


@dataclass(frozen=True)
class Unfinished:
    """Why a piece of work has no result. ``text`` says what was raised, or how long was waited."""

    kind: Literal["crash", "timeout"]
    text: str


class Task(Generic[T]):
    """Start ``function`` in a thread that the process does not wait for when it ends.

    ``deadline_s`` counts from the start. What works with the system has deadlines of its own and ends by them; this one
    is for what nobody foresaw.
    """

    def __init__(self, function: Callable[[], T], deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._started_s = time.monotonic()
        self._outcome: T | Unfinished | None = None
        self._ended = threading.Event()
        self.seconds = 0.0

        def work() -> None:
            try:
                self._outcome = function()
            except BaseException as error:  # SystemExit in a thread would be lost, and the result with it
                self._outcome = Unfinished("crash", _said(error))
            self.seconds = time.monotonic() - self._started_s
            self._ended.set()

        threading.Thread(target=work, daemon=True).start()

    def result(self) -> T | Unfinished:
        """Wait until it ends or the deadline is there."""
        left_s = self._started_s + self._deadline_s - time.monotonic()
        if not self._ended.wait(max(0.0, left_s)):
            self.seconds = time.monotonic() - self._started_s
            return Unfinished("timeout", f"no answer within {self._deadline_s:g} s")
        assert self._outcome is not None or self._ended.is_set()  # noqa: S101
        return self._outcome  # type: ignore[return-value]


def _said(error: BaseException) -> str:
    """Return what was raised and the line of ours where it was."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if "coli" in code.co_filename:
            place = f" in {code.co_filename.rpartition('coli/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {str(error)[:300]}{place}"
