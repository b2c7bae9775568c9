"""The slot list of the backend ABI as Python data, read from ``coli_slots.inc``, the same file that the compilers read.

No numpy and no extension: the loader's gates and the child process that probes a library import this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["ABI_MAJOR", "ABI_MINOR", "HEADER", "QUERY_SYMBOL", "SLOTS", "SLOT_LIST", "Argument", "Slot", "fnv1a_64"]

HEADER = Path(__file__).with_name("coli_backend.h")
SLOT_LIST = Path(__file__).with_name("coli_slots.inc")
QUERY_SYMBOL = "coli_backend_query"

_ENTRY = re.compile(r"^COLI_(SERVICE|STAGE)\((MANDATORY|OPTIONAL),\s*(\w+),\s*(.*?)\)$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_ARGUMENT = re.compile(r"^(.*?)(\w+)$")


@dataclass(frozen=True)
class Argument:
    """One argument of a slot: its C type as spelt (``const coli_matrix *``) and its name."""

    type: str
    name: str


@dataclass(frozen=True)
class Slot:
    """One slot: its place in the table, what it is, and the signature that both sides compare."""

    index: int
    kind: Literal["service", "stage"]
    requirement: Literal["mandatory", "optional"]
    name: str
    arguments: tuple[Argument, ...]
    signature: int

    @property
    def mandatory(self) -> bool:
        """Say whether a backend without this slot is refused."""
        return self.requirement == "mandatory"


def fnv1a_64(text: str) -> int:
    """Return the 64-bit FNV-1a hash of the UTF-8 bytes of ``text``."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def parse_slots(text: str) -> tuple[Slot, ...]:
    """Return the slots in the order of the list; ``text`` is the content of ``coli_slots.inc``."""
    slots: list[Slot] = []
    for index, found in enumerate(_ENTRY.finditer(_COMMENT.sub(" ", text))):
        kind, requirement, name, spelt = found.groups()
        spelt = " ".join(spelt.split())
        arguments: list[Argument] = []
        for part in spelt.split(","):
            match = _ARGUMENT.match(part.strip())
            if match is None:
                raise ValueError(f"coli_slots.inc: {name}: argument {part!r} has no name")
            arguments.append(Argument(match[1].strip(), match[2]))
        slots.append(
            Slot(
                index=index,
                kind="service" if kind == "SERVICE" else "stage",
                requirement="mandatory" if requirement == "MANDATORY" else "optional",
                name=name,
                arguments=tuple(arguments),
                signature=fnv1a_64(f"{name}({spelt})"),
            )
        )
    return tuple(slots)


def _read_version(header: str) -> tuple[int, int]:
    major = re.search(r"^#define COLI_ABI_MAJOR (\d+)$", header, re.MULTILINE)
    minor = re.search(r"^#define COLI_ABI_MINOR (\d+)$", header, re.MULTILINE)
    if major is None or minor is None:
        raise ValueError("coli_backend.h: COLI_ABI_MAJOR or COLI_ABI_MINOR is missing")
    return int(major[1]), int(minor[1])


SLOTS: tuple[Slot, ...] = parse_slots(SLOT_LIST.read_text(encoding="utf-8"))
ABI_MAJOR, ABI_MINOR = _read_version(HEADER.read_text(encoding="utf-8"))
