"""Exceptions of coli. Each says object, rule, observed, expected and fix, and carries a stable code and an exit code.

ColiError                 exit 1: the model or the machine cannot
├── UsageError            exit 2: options, COLI_* variables, ids, context
├── BudgetError           exit 4: the budget cannot hold one layer and one token's experts
├── BackendRefused        exit 5: a backend, GPU or numerics mode that was asked for is refused
├── CheckpointError       exit 1: files of a checkpoint
├── FamilyError           exit 1: model type without a family or engine
└── StageError            exit 1: a stage failed in every backend
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coli.printable import printable

__all__ = [
    "BackendRefused",
    "BudgetError",
    "CheckpointError",
    "ColiError",
    "FamilyError",
    "StageError",
    "UsageError",
]

_MOST_CHARACTERS = 1500  # of a field: twenty file names; a name or value from a file may have any length


def _shown(text: str, *, lines: bool = False) -> str:
    """Return text of any origin as a terminal may get it: an escape sequence in a file name is shown, not obeyed."""
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]} ... ({len(text)} characters)"
    return printable(text, "\n" if lines else "")


class ColiError(Exception):
    """Describe one refusal.

    ``subject``: the object (a path, an option, a tensor name). ``rule``: what must hold. ``observed``, ``expected``:
    values. ``fix``: what to do next. ``code``: stable dotted id, for example ``checkpoint.truncated``. ``data``: names
    and numbers for programs, for example ``missing_bytes``.
    """

    exit_code = 1
    code = "error"

    def __init__(
        self,
        subject: str,
        rule: str,
        *,
        observed: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
        code: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self.data: Mapping[str, Any] = data or {}
        self.subject = subject
        self.rule = rule
        self.observed = observed
        self.expected = expected
        self.fix = fix
        if code is not None:
            self.code = code
        super().__init__(self.text())

    def text(self) -> str:
        """Return one to four lines: `subject: rule`, then found, expected, fix. Control characters are escaped."""
        lines = [f"{_shown(self.subject) or repr('')}: {_shown(self.rule)}"]
        if self.observed is not None:
            lines.append(f"  found:    {_shown(self.observed, lines=True)}")
        if self.expected is not None:
            lines.append(f"  expected: {_shown(self.expected)}")
        if self.fix is not None:
            lines.append(f"  fix:      {_shown(self.fix, lines=True)}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, str | int | None]:
        """Return the fields for `--json`."""
        return {
            "code": self.code,
            "subject": self.subject,
            "rule": self.rule,
            "observed": self.observed,
            "expected": self.expected,
            "fix": self.fix,
            "exit_code": self.exit_code,
        }


class UsageError(ColiError):
    """An option, a COLI_* variable, a token id or the context length is wrong."""

    exit_code = 2
    code = "usage"


class BudgetError(ColiError):
    """The memory budget cannot hold one layer and one token's experts."""

    exit_code = 4
    code = "budget"


class BackendRefused(ColiError):
    """A backend, GPU or numerics mode that was asked for is refused."""

    exit_code = 5
    code = "backend.refused"


class CheckpointError(ColiError):
    """The files of a checkpoint are missing, broken or contradict each other."""

    code = "checkpoint"


class FamilyError(ColiError):
    """A model type has no family, no engine, or its plugin is refused."""

    code = "family"


class StageError(ColiError):
    """A stage failed, or every backend declined it."""

    code = "stage"
