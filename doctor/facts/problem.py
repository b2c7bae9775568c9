"""One thing that is wrong with a checkpoint, as data; and how the engine's errors and notes become one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coli.engine.contents import Note
from coli.errors import ColiError

__all__ = ["Part", "Problem", "Status", "of_error", "of_notes"]

Status = Literal["ok", "note", "warn", "fail"]
Part = Literal["location", "config", "family", "weights", "roles", "tokenizer", "chat", "values", "mirror"]
"""What a problem is about. `weights`: files, headers and index; `values`: what `deep` found in the data."""

_SHOWN = 10
# Notes of the engine that deserve a look: index and files are of different releases. CRLF and ignored files do not.
_WARNINGS = ("checkpoint.misplaced-tensor", "checkpoint.tensor-twice", "checkpoint.unlisted-tensors")
_TOGETHER: Mapping[str, tuple[str, str]] = {
    "checkpoint.misplaced-tensor": ("tensors lie in another file than the index says", "download the index again"),
    "checkpoint.tensor-twice": (
        "tensors lie in two files; the index decides",
        "remove the files of the other release from the folder",
    ),
    "checkpoint.ignored-file": (
        "weight files beside the model belong to none and are ignored",
        "remove them if you need the space",
    ),
}


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it should be.

    ``code`` is stable (`checkpoint.truncated`, `family.unknown-type`); ``subject`` a file, tensor or key; ``data``
    holds names and numbers, for example ``missing_bytes``.
    """

    code: str
    status: Status
    part: Part
    subject: str
    summary: str
    evidence: str | None = None
    fix: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def kind(self) -> str:
        """Return the code without its section: `truncated`."""
        return self.code.partition(".")[2] or self.code


def of_error(error: ColiError, part: Part | None = None, status: Status = "fail") -> Problem:
    """Return what an error of the engine says. ``part`` None: told from the file that it names."""
    seen = [f"found {error.observed}"] if error.observed else []
    seen += [f"expected {error.expected}"] if error.expected else []
    return Problem(
        code=error.code,
        status=status,
        part=part or _part(error.subject),
        subject=error.subject,
        summary=error.rule,
        evidence="; ".join(seen) or None,
        fix=error.fix,
        data=error.data,
    )


def _part(subject: str) -> Part:
    name = Path(subject.partition(": ")[0]).name
    if name in ("config.json", "generation_config.json"):
        return "config"
    return "tokenizer" if name.startswith("tokenizer") else "weights"


def of_notes(notes: Iterable[Note]) -> list[Problem]:
    """Return one problem for each file that has a note, one for all tensors and all files with the same note."""
    groups: dict[str, list[Note]] = {}
    for note in notes:
        groups.setdefault(note.code if note.code in _TOGETHER else f"{note.code} {note.subject}", []).append(note)
    return [_group(group) for group in groups.values()]


def _group(notes: Sequence[Note]) -> Problem:
    code, subject = notes[0].code, notes[0].subject
    status: Status = "warn" if code in _WARNINGS else "note"
    if code not in _TOGETHER:
        text = "; ".join(note.text for note in notes)
        return Problem(code, status, _part(subject), subject, text)
    summary, fix = _TOGETHER[code]
    shown = [f"{note.subject}: {note.text}" if status == "warn" else note.subject for note in notes[:_SHOWN]]
    more = f" and {len(notes) - _SHOWN} more" if len(notes) > _SHOWN else ""
    return Problem(
        code,
        status,
        "weights",
        subject if len(notes) == 1 else f"{len(notes)} names",
        f"{len(notes)} {summary}",
        "; ".join(shown) + more,
        fix,
        {"names": tuple(note.subject for note in notes), "files": {n.subject: n.data.get("files") for n in notes}},
    )
