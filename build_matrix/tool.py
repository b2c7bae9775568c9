"""Ask an installed program one question: no shell, a deadline, bounded output."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coli.backends.child import Ended, tell_listener

__all__ = ["Answer", "ask", "first_line"]

_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Answer:
    """What a program said. ``problem`` is None, or why there is no answer (it then has no exit status)."""

    status: int | None
    output: str
    errors: str
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Say whether it ran and ended with 0."""
        return self.problem is None and self.status == 0


def ask(command: Sequence[str | Path], environment: Mapping[str, str], deadline_s: float = 10.0) -> Answer:
    """Run ``command`` and return what it said. Never raises for what a program does."""
    variables = {**environment, "LC_ALL": "C", "LANG": "C"}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:  # a file, so that no pipe can fill up
        try:
            done = subprocess.run(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=variables,
                timeout=deadline_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            tell_listener(command, Ended("timeout"))
            return Answer(None, "", "", f"no answer within {deadline_s:g} s")
        except (OSError, ValueError) as error:
            tell_listener(command, Ended("not started", errors=str(error)))
            return Answer(None, "", "", f"does not start: {getattr(error, 'strerror', None) or error}")
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read(_MAX_BYTES).decode("utf-8", "replace"))
    tell_listener(command, Ended("exit", done.returncode, texts[0].encode(), texts[1]))
    return Answer(done.returncode, texts[0], texts[1])


def first_line(text: str) -> str:
    """Return the first line that is not empty, at most 200 characters."""
    return next((line.strip()[:200] for line in text.splitlines() if line.strip()), "")
