"""The device code in a library, read from its ``.nv_fatbin`` section without CUDA's tools. Hardened.

The format is not documented; it was found out by compiling and is pinned by tests for each toolkit. A fatbin is a
header of 16 bytes (magic, version, header size, bytes that follow) and entries: kind (1 PTX, 2 machine code), header
size, bytes that follow, at +28 the architecture, at +40 flags. Entries may be compressed; their headers are not.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from coli.backends.containers import ContainerError, Section, Window, read_sections
from coli.backends.targets import Target

__all__ = ["Fatbin", "FatbinEntry", "FatbinError", "parse_fatbins", "read_fatbin"]

# ELF keeps whole names; PE cuts them to 8 bytes. The second of each holds relocatable code (-rdc=true).
SECTIONS = frozenset({".nv_fatbin", "__nv_relfatbin", ".nv_fatb", "__nv_rel"})

_MAGIC = 0xBA55ED50
_VERSION = 1
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ")
_ENTRY_HEADER_BYTES = 48  # up to and with the flags; real headers have 64 to 112 bytes
_MAX_ENTRY_HEADER_BYTES = 1 << 16
_MAX_ENTRIES = 65_536
_PTX, _MACHINE_CODE = 1, 2
_COMPRESSED, _EXACT, _FAMILY = (1 << 13) | (1 << 15), 1 << 20, 1 << 21  # LZ4 or zstd; `a`; `f`


class FatbinError(ValueError):
    """The section cannot be read: the library is damaged or of a toolkit that writes another format."""


@dataclass(frozen=True)
class FatbinEntry:
    """One image: its target, bytes as stored, whether it is compressed, where its header lies in the section."""

    target: Target
    stored_bytes: int
    compressed: bool
    offset: int


@dataclass(frozen=True)
class Fatbin:
    """The images of a library, one tuple a translation unit, and the kinds of entries that are neither PTX nor code."""

    units: tuple[tuple[FatbinEntry, ...], ...]
    other_kinds: tuple[int, ...] = ()

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return every target once: machine code first, then PTX, ascending."""
        found = {entry.target for unit in self.units for entry in unit}
        return tuple(sorted(found, key=lambda target: (target.ptx, target.number, target.suffix)))


def read_fatbin(path: Path) -> Fatbin | None:
    """Read the device code of an ELF or PE library; None when it has none.

    Raises FatbinError, ContainerError, OSError.
    """
    with path.open("rb") as file:
        window = Window(file)
        found = [s for s in read_sections(window) if s.name in SECTIONS and s.size]
        if not found:
            return None
        units: list[tuple[FatbinEntry, ...]] = []
        others: set[int] = set()
        for section in found:
            fatbin = parse_fatbins(window, section)
            units += fatbin.units
            others.update(fatbin.other_kinds)
    return Fatbin(tuple(units), tuple(sorted(others)))


def parse_fatbins(window: Window, section: Section) -> Fatbin:
    """Parse the fatbins of one section; only headers are read. Raises FatbinError."""
    at, end = section.offset, section.offset + section.size
    units: list[tuple[FatbinEntry, ...]] = []
    others: set[int] = set()
    count = 0
    while end - at >= _HEADER.size:
        magic, version, header_bytes, payload_bytes = _unpack(_HEADER, window, at)
        if magic == 0:  # padding between fatbins is zero, and so is a section's tail
            at += 8
            count += 1
            if count > _MAX_ENTRIES:
                raise FatbinError(f"more than {_MAX_ENTRIES} entries")
            continue
        where = f"byte {at - section.offset} of {section.name}"
        if magic != _MAGIC:
            raise FatbinError(f"{where} is {magic:#010x}, not the magic {_MAGIC:#010x} of a fatbin")
        if version != _VERSION or header_bytes < _HEADER.size:
            raise FatbinError(f"{where}: fatbin version {version} with a header of {header_bytes} bytes is not known")
        stop = at + header_bytes + payload_bytes
        if stop > end:
            raise FatbinError(f"{where}: the fatbin ends {stop - end} bytes beyond its section")
        entries: list[FatbinEntry] = []
        inner = at + header_bytes
        while inner < stop:
            count += 1
            if count > _MAX_ENTRIES:
                raise FatbinError(f"more than {_MAX_ENTRIES} entries")
            kind, entry, bytes_ = _read_entry(window, section, inner, stop)
            if entry is None:
                others.add(kind)
            else:
                entries.append(entry)
            inner += bytes_
        units.append(tuple(entries))
        at = stop + (section.offset - stop) % 8
    return Fatbin(tuple(units), tuple(sorted(others)))


def _read_entry(window: Window, section: Section, at: int, stop: int) -> tuple[int, FatbinEntry | None, int]:
    where = f"byte {at - section.offset} of {section.name}"
    if stop - at < _ENTRY_HEADER_BYTES:
        raise FatbinError(f"{where}: {stop - at} bytes are left, an entry has at least {_ENTRY_HEADER_BYTES}")
    kind, _, header_bytes, stored_bytes = _unpack(_ENTRY, window, at)
    if not _ENTRY_HEADER_BYTES <= header_bytes <= _MAX_ENTRY_HEADER_BYTES or at + header_bytes + stored_bytes > stop:
        raise FatbinError(f"{where}: an entry of {header_bytes} + {stored_bytes} bytes does not fit its fatbin")
    if kind not in (_PTX, _MACHINE_CODE):
        return kind, None, header_bytes + stored_bytes
    number, flags = struct.unpack("<I8xQ", _read(window, at + 28, 20))
    if not 10 <= number <= 999:
        raise FatbinError(f"{where}: architecture {number} is no compute capability")
    suffix = "a" if flags & _EXACT else "f" if flags & _FAMILY else ""
    target = Target(number, suffix, kind == _PTX)
    return (
        kind,
        FatbinEntry(target, stored_bytes, bool(flags & _COMPRESSED), at - section.offset),
        (header_bytes + stored_bytes),
    )


def _read(window: Window, at: int, count: int) -> bytes:
    try:
        return window.read(at, count, "the fatbin")
    except ContainerError as error:
        raise FatbinError(str(error)) from None


def _unpack(layout: struct.Struct, window: Window, at: int) -> tuple[int, ...]:
    values: tuple[int, ...] = layout.unpack(_read(window, at, layout.size))
    return values
