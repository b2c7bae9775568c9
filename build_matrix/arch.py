"""CUDA_ARCH in every spelling that people type -> targets. Only digits and one letter of a target reach a compiler."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from coli.backends.targets import Target
from coli.build_matrix.matrix import Matrix
from coli.build_matrix.version import Version
from coli.errors import UsageError

__all__ = [
    "KEYWORDS",
    "Arch",
    "Card",
    "Native",
    "Portable",
    "Skipped",
    "Target",
    "native_targets",
    "needs_toolkit",
    "parse_arch",
    "portable_targets",
    "supports",
]

KEYWORDS = ("portable", "native")
_MAX_CHARACTERS = 512
_MAX_TARGETS = 32
_SEPARATORS = re.compile(r"[ \t\r\n,;]+")
_WORD = re.compile(
    r"(?P<prefix>sm|compute|lto)?[_-]?(?:(?P<major>[1-9]\d?)\.(?P<minor>\d)|(?P<number>[1-9]\d{0,3}))"
    r"(?P<suffix>[a-z]?)(?P<more>\+ptx|-real|-virtual)?",
    re.ASCII,
)


@dataclass(frozen=True)
class Arch:
    """What a text asks for: a ``keyword``, or ``targets`` in the order they were written."""

    keyword: str | None
    targets: tuple[Target, ...]

    @property
    def text(self) -> str:
        """Return the normal spelling, as cell ids have it: `portable`, `sm_80+sm_86`."""
        return self.keyword or "+".join(target.name for target in self.targets)


@dataclass(frozen=True)
class Card:
    """What must be known of a GPU here. ``capability`` is None when nothing said it."""

    index: int
    name: str
    capability: tuple[int, int] | None


@dataclass(frozen=True)
class Skipped:
    """A card that gets no code, and why."""

    card: Card
    reason: str


@dataclass(frozen=True)
class Native:
    """``native`` on given cards. ``notes``: cards that get another card's code or PTX."""

    targets: tuple[Target, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Portable:
    """``portable`` for one toolkit; ``left_out``: targets it cannot compile."""

    targets: tuple[Target, ...]
    left_out: tuple[Target, ...]


def parse_arch(text: str, matrix: Matrix, *, subject: str = "CUDA_ARCH") -> Arch:
    """Read CUDA_ARCH. Raises UsageError with every word that is wrong, each with the nearest valid name."""
    words = [word for word in _SEPARATORS.split(_unquoted(text.strip())) if word]
    if len(text) > _MAX_CHARACTERS or len(words) > _MAX_TARGETS:
        raise _error(subject, matrix, [f"{text[:40]!r}... is longer than a list of {_MAX_TARGETS} targets"])
    if not words:
        raise _error(subject, matrix, ["it is empty"])
    lowered = [word.lower() for word in words]
    if len(set(lowered)) == 1 and lowered[0] in KEYWORDS:
        return Arch(lowered[0], ())
    targets: dict[Target, None] = {}
    problems, too_old = [], True
    for word in words:
        found = _word(word, matrix)
        if isinstance(found, str):
            problems.append(found)
            too_old = too_old and "below" in found
        else:
            targets.update(dict.fromkeys(found))
    if problems:
        raise _error(subject, matrix, problems, rule="arch-below-minimum" if too_old else "arch-unknown")
    return Arch(None, tuple(targets))


def needs_toolkit(target: Target, matrix: Matrix) -> Version:
    """Return the first toolkit that compiles ``target``."""
    return matrix.architectures[target.number].forms[target.suffix]


def supports(toolkit: Version, target: Target, matrix: Matrix) -> bool:
    """Say whether nvcc of ``toolkit`` knows ``target``."""
    dropped = matrix.architectures[target.number].dropped
    return needs_toolkit(target, matrix) <= toolkit.release and (dropped is None or toolkit.release < dropped)


def portable_targets(toolkit: Version, matrix: Matrix) -> Portable:
    """Return what ``portable`` holds with this toolkit: it shrinks with an older one, and that is said."""
    wanted = [Target(number) for number in matrix.portable_machine_code]
    kept = [target for target in wanted if supports(toolkit, target, matrix)]
    ptx = [Target(number, ptx=True) for number in matrix.portable_ptx if Target(number) in kept]
    if kept and (highest := Target(max(target.number for target in kept), ptx=True)) not in ptx:
        ptx.append(highest)
    return Portable(tuple(kept + ptx), tuple(target for target in wanted if target not in kept))


def native_targets(cards: Iterable[Card], matrix: Matrix) -> Native:
    """Return code for exactly the cards that the backend can use, and name the others."""
    targets: dict[Target, None] = {}
    skipped, notes = [], []
    for card in cards:
        if card.capability is None:
            skipped.append(Skipped(card, "compute capability not known"))
            continue
        major, minor = card.capability
        number = 10 * major + minor
        if number < matrix.minimum_arch:
            skipped.append(Skipped(card, f"below sm_{matrix.minimum_arch}"))
        elif number in matrix.architectures:
            targets[Target(number)] = None
        else:
            target = _nearest_code(number, matrix)
            targets[target] = None
            notes.append(f"GPU {card.index} ({card.name}, {major}.{minor}) is not in the matrix: it gets {target.name}")
    return Native(tuple(sorted(targets)), tuple(skipped), tuple(notes))


def _nearest_code(number: int, matrix: Matrix) -> Target:
    """Machine code runs upwards within a major; from one major to the next only PTX does."""
    known = [arch.number for arch in matrix.architectures.values() if not arch.tegra and arch.number < number]
    highest = max(known)
    return Target(highest, ptx=highest // 10 != number // 10)


def _unquoted(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


def _word(word: str, matrix: Matrix) -> list[Target] | str:
    shown = f"{word[:40]!r}"
    if word.lower() in KEYWORDS:
        return f"{shown} cannot stand in a list"
    found = _WORD.fullmatch(word.lower())
    if not found or found["prefix"] == "lto":
        return f"{shown} is no target{_generation(word, matrix) or _hint(word, matrix)}"
    number = int(found["number"] or found["major"] + found["minor"])
    suffix, more = found["suffix"], found["more"] or ""
    if number in matrix.old_architectures or (number < matrix.minimum_arch and number >= 20):
        return f"{shown} is below sm_{matrix.minimum_arch}"
    if number not in matrix.architectures:
        return f"{shown} is unknown{_hint(word, matrix, number)}"
    forms = matrix.architectures[number].forms
    if suffix not in forms:
        have = " and ".join(f"sm_{number}{form}" for form in forms)
        return f"{shown} is unknown: sm_{number} has no form {suffix!r}, there is {have}"
    ptx = found["prefix"] == "compute" or more == "-virtual"
    if more == "+ptx":
        return [Target(number, suffix), Target(number, suffix, ptx=True)] if not ptx else [Target(number, suffix, True)]
    if more == "-real" and found["prefix"] == "compute":
        return f"{shown} is machine code and PTX at once: give sm_{number}{suffix} or compute_{number}{suffix}"
    return [Target(number, suffix, ptx)]


def _generation(word: str, matrix: Matrix) -> str:
    same = [arch for arch in matrix.architectures.values() if arch.generation.lower() == word.lower()]
    names = ", ".join(f"sm_{arch.number} ({arch.chips})" for arch in same)
    return f": a generation has several: {names}" if names else ""


def _hint(word: str, matrix: Matrix, number: int | None = None) -> str:
    if number is not None:
        scaled = number * 10 if number < 20 else number
        nearest = min(matrix.architectures, key=lambda known: (abs(known - scaled), known))
        return f": nearest is sm_{nearest}"
    names = [*KEYWORDS, *(f"sm_{known}" for known in matrix.architectures)]
    close = difflib.get_close_matches(word.lower()[:40], names, 1, 0.5)
    return f": nearest is {close[0]}" if close else ""


def _error(subject: str, matrix: Matrix, problems: list[str], rule: str = "arch-unknown") -> UsageError:
    return UsageError(
        subject,
        matrix.rule(rule).reason,
        observed="; ".join(problems),
        expected="portable, native, or " + ", ".join(f"sm_{number}" for number in matrix.architectures),
        fix=matrix.rule(rule).fix,
        code=f"build.{rule}",
    )
