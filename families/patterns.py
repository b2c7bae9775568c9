"""Tensor name patterns: a small language without regular expressions, so that overlap can be decided exactly.

A pattern is a dotted name. `{layer}` and `{expert}` stand for one whole segment that is a decimal number, `{a|b.c}`
for one of several texts, `*` for one whole segment, `**` (last) for one or more segments. Choices are expanded before
anything else, so what is left is a tuple of segments, and two patterns overlap if and only if a name exists that fits
both, segment by segment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["EXPERT", "LAYER", "Pattern", "expand", "overlap", "split_numbers"]

LAYER = "{layer}"
EXPERT = "{expert}"
ANY = "*"
REST = "**"
HOLES = (LAYER, EXPERT)

# A number in a checkpoint name: canonical (`007` is no layer) and bounded (a hostile name cannot ask for layer 10^30).
_INTEGER = re.compile(r"0|[1-9][0-9]{0,5}")
_NUMBERS = re.compile(rf"\.({_INTEGER.pattern})(?=\.|$)")
_NUMBER = ".#"

_BRACE = re.compile(r"\{([^{}]*)\}")
_LITERAL = re.compile(r"^[A-Za-z0-9_-]+$")
_DIGITS = re.compile(r"^[0-9]+$")

MAX_EXPANSION = 1024


@dataclass(frozen=True)
class Pattern:
    """One expanded pattern: segments that are literals, `{layer}`, `{expert}`, `*` or a last `**`."""

    segments: tuple[str, ...]
    source: str

    @property
    def wild(self) -> bool:
        """Tell whether the pattern has `*` or `**`, so that it cannot be looked up by key."""
        return ANY in self.segments or REST in self.segments

    @property
    def key(self) -> str:
        """Return what `split_numbers` gives for the names that fit; only meaningful without `*` and `**`."""
        return "".join(_NUMBER if s in HOLES else "." + s for s in self.segments)

    @property
    def part(self) -> str:
        """Return the literal text after the last hole, without a last `weight` or `scale`."""
        last = max((i for i, s in enumerate(self.segments) if s in HOLES), default=-1)
        rest = [s for s in self.segments[last + 1 :] if s not in (ANY, REST)]
        if len(rest) > 1 and rest[-1] in ("weight", "scale"):
            rest.pop()
        return ".".join(rest)

    def hole(self, which: str) -> int | None:
        """Return which number of a name (0, 1, ...) fills the hole, None without one."""
        numbers = [s for s in self.segments if s in HOLES]
        return numbers.index(which) if which in numbers else None

    def fits(self, name: str) -> bool:
        """Tell whether a name fits, segment by segment."""
        return _meet(self.segments, tuple(name.split(".")))


def split_numbers(name: str) -> tuple[str, list[str]]:
    """Return a key, the name with `#` for every number and a dot in front, and the numbers in order."""
    if "#" in name:
        name = name.replace("#", "##")  # a name cannot pretend to have a number
    pieces = _NUMBERS.split("." + name)
    return _NUMBER.join(pieces[::2]), pieces[1::2]


def expand(text: str) -> list[Pattern]:
    """Expand the alternatives of one pattern. Raises ValueError that says what is wrong with it."""
    texts = [text]
    while any(_alternatives(t) for t in texts):
        texts = [e for t in texts for e in _expand_first(t)]
        if len(texts) > MAX_EXPANSION:
            raise ValueError(f"expands to more than {MAX_EXPANSION} names")
    return [Pattern(_segments(t), text) for t in texts]


def overlap(a: Pattern, b: Pattern) -> bool:
    """Tell whether a name exists that fits both."""
    return _meet(a.segments, b.segments)


def _alternatives(text: str) -> bool:
    return any("{" + m + "}" not in HOLES for m in _BRACE.findall(text))


def _expand_first(text: str) -> list[str]:
    for match in _BRACE.finditer(text):
        if match.group(0) in HOLES:
            continue
        choices = match.group(1).split("|")
        if len(choices) < 2 or not all(choices):
            raise ValueError(f"{match.group(0)} is neither {LAYER}, {EXPERT} nor a choice {{a|b}}")
        return [text[: match.start()] + c + text[match.end() :] for c in choices]
    return [text]


def _segments(text: str) -> tuple[str, ...]:
    segments = tuple(text.split("."))
    for index, segment in enumerate(segments):
        if segment in HOLES:
            if segments.count(segment) > 1:
                raise ValueError(f"{segment} is there twice")
        elif segment == REST:
            if index != len(segments) - 1:
                raise ValueError(f"{REST} is not the last segment")
        elif segment != ANY:
            if _DIGITS.match(segment):
                raise ValueError(f"segment {segment!r} is a number: write {LAYER} or {EXPERT}")
            if not _LITERAL.match(segment):
                raise ValueError(f"segment {segment!r} is not made of letters, digits, _ and -")
    return segments


def _meet(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    for index in range(max(len(a), len(b))):
        if index >= len(a) or index >= len(b):
            return False
        x, y = a[index], b[index]
        if x == REST or y == REST:
            return True
        if not _one(x, y):
            return False
    return True


def _one(x: str, y: str) -> bool:
    if x == y or ANY in (x, y):
        return True
    if x in HOLES:
        return y in HOLES or _INTEGER.fullmatch(y) is not None
    return y in HOLES and _INTEGER.fullmatch(x) is not None
