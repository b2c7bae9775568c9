"""ELF and PE files as far as the loader needs them: machine, kind and what they link to.

Hardened: the file is not trusted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

__all__ = ["Container", "ContainerError", "Section", "Window", "read_container", "read_sections"]

_MAX_HEADERS = 256  # program headers, sections: real libraries have about 10 and 40
_MAX_DYNAMIC = 4096
_MAX_NEEDED = 256
_MAX_NAME = 1024
_MAX_NAMES_BYTES = 1 << 20  # the section names of one file

_ELF_MACHINES = {
    3: "i386",
    20: "ppc",
    21: "ppc64le",
    22: "s390x",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
}
_PE_MACHINES = {0x014C: "i386", 0x8664: "x86_64", 0xAA64: "aarch64"}


class ContainerError(ValueError):
    """The file is not a shared library, or is damaged. ``code`` is ``not-a-library`` or ``damaged``."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Container:
    """What a shared library says of itself.

    ``elf`` or ``pe``, machine, word size, libraries it needs, where it looks for them. ``soname``: the name by which
    the system's loader knows it once it is open; empty: none.
    """

    kind: str
    machine: str
    bits: int
    needed: tuple[str, ...]
    run_path: tuple[str, ...] = ()
    soname: str = ""


@dataclass(frozen=True)
class Section:
    """A section: where it lies in the file and in memory. ``link`` is ELF's: the section of its strings."""

    name: str
    kind: int
    address: int
    offset: int
    size: int
    link: int = 0


class Window:
    """Reads of a file that can neither pass its end nor allocate more than asked."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, 2)

    def read(self, offset: int, count: int, what: str) -> bytes:
        if offset < 0 or count < 0 or offset + count > self.size:
            raise ContainerError("damaged", f"{what} ends at byte {offset + count}, the file has {self.size}")
        self._file.seek(offset)
        data = self._file.read(count)
        if len(data) != count:
            raise ContainerError("damaged", f"{what}: the file became shorter while it was read")
        return data

    def name(self, offset: int, what: str) -> str:
        if offset < 0 or offset >= self.size:
            raise ContainerError("damaged", f"{what} lies at byte {offset}, the file has {self.size}")
        data = self.read(offset, min(_MAX_NAME, self.size - offset), what)
        end = data.find(b"\0")
        if end < 0:
            raise ContainerError("damaged", f"{what} does not end within {_MAX_NAME} bytes")
        return data[:end].decode("utf-8", "backslashreplace")


def read_container(path: Path) -> Container:
    """Parse the library at ``path``.

    Raises ContainerError for anything that is not a complete ELF or PE library, OSError.
    """
    with path.open("rb") as file:
        window = Window(file)
        if window.size == 0:
            raise ContainerError("not-a-library", "the file is empty")
        magic = window.read(0, min(4, window.size), "the magic")
        if magic == b"\x7fELF":
            return _read_elf(window)
        if magic[:2] == b"MZ":
            return _read_pe(window)
        raise ContainerError("not-a-library", f"starts with {magic.hex(' ')}, neither ELF (7f 45 4c 46) nor PE (4d 5a)")


def read_sections(window: Window) -> tuple[Section, ...]:
    """Return the sections of an ELF or PE file in their order; none for an ELF file without section headers.

    Raises ContainerError.
    """
    magic = window.read(0, 4, "the magic")
    if magic[:2] == b"MZ":
        return _pe_sections(window)
    if magic != b"\x7fELF":
        raise ContainerError("not-a-library", f"starts with {magic.hex(' ')}, neither ELF (7f 45 4c 46) nor PE (4d 5a)")
    return _elf_sections(window)


def _elf_sections(window: Window) -> tuple[Section, ...]:
    ident = window.read(0, 16, "the ELF identification")
    wide, order = ident[4] == 2, ">" if ident[5] == 2 else "<"
    head_format = order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH")
    head = struct.unpack(head_format, window.read(16, struct.calcsize(head_format), "the ELF header"))
    offset, entry_size, count, names_index = head[5], head[10], head[11], head[12]
    if not offset or not count:
        return ()
    format_ = order + ("IIQQQQIIQQ" if wide else "IIIIIIIIII")
    if entry_size != struct.calcsize(format_) or count > _MAX_HEADERS or names_index >= count:
        raise ContainerError("damaged", f"{count} section headers of {entry_size} bytes, names in {names_index}")
    rows = list(struct.iter_unpack(format_, window.read(offset, count * entry_size, "the section headers")))
    names_offset, names_size = rows[names_index][4], rows[names_index][5]
    if names_size > _MAX_NAMES_BYTES:
        raise ContainerError("damaged", f"{names_size} bytes of section names")
    names = window.read(names_offset, names_size, "the section names")
    sections = []
    for name, kind, _, address, at, size, link, *_ in rows:
        end = names.find(b"\0", name)
        text = names[name : end if end >= 0 else name].decode("utf-8", "backslashreplace")
        if kind not in (0, 8) and at + size > window.size:  # NULL and NOBITS have no bytes in the file
            raise ContainerError("damaged", f"section {text} ends at byte {at + size}, the file has {window.size}")
        sections.append(Section(text, kind, address, at, 0 if kind in (0, 8) else size, link))
    return tuple(sections)


def _pe_sections(window: Window) -> tuple[Section, ...]:
    header = struct.unpack("<I", window.read(60, 4, "the offset of the PE header"))[0]
    if window.read(header, 4, "the PE signature") != b"PE\0\0":
        raise ContainerError("not-a-library", "a DOS program without a PE header")
    _, count, _, _, _, optional_size, _ = struct.unpack("<HHIIIHH", window.read(header + 4, 20, "the PE file header"))
    if not 0 < count <= _MAX_HEADERS:
        raise ContainerError("damaged", f"{count} PE sections")
    table = window.read(header + 24 + optional_size, 40 * count, "the PE section table")
    sections = []
    for at in range(count):
        name, memory, address, size, offset = struct.unpack_from("<8sIIII", table, at * 40)
        if size and offset + size > window.size:
            raise ContainerError("damaged", f"section {at} ends at byte {offset + size}, the file has {window.size}")
        text = name.rstrip(b"\0").decode("utf-8", "backslashreplace")
        # The file's part is padded up; what lies beyond the size in memory is not the section's.
        sections.append(Section(text, 0, address, offset, min(size, memory) if memory else size))
    return tuple(sections)


def _read_elf(window: Window) -> Container:
    ident = window.read(0, 16, "the ELF identification")
    bits, order = {1: 32, 2: 64}.get(ident[4]), {1: "<", 2: ">"}.get(ident[5])
    if bits is None or order is None:
        raise ContainerError("damaged", f"ELF class {ident[4]} and byte order {ident[5]} are not defined")
    wide = bits == 64
    head_format = order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH")
    head = struct.unpack(head_format, window.read(16, struct.calcsize(head_format), "the ELF header"))
    kind, machine_id, program_offset, entry_size, entries = head[0], head[1], head[4], head[8], head[9]
    machine = _ELF_MACHINES.get(machine_id, f"ELF machine {machine_id}")
    if machine == "ppc64le" and order == ">":
        machine = "ppc64"
    if kind != 3:
        names = {1: "an object file", 2: "a program", 4: "a core dump"}
        raise ContainerError("not-a-library", f"ELF type {kind}: {names.get(kind, 'unknown')}, not a shared library")
    format_ = order + ("IIQQQQQQ" if wide else "IIIIIIII")
    if entry_size != struct.calcsize(format_) or not 0 < entries <= _MAX_HEADERS:
        raise ContainerError("damaged", f"{entries} program headers of {entry_size} bytes")
    table = window.read(program_offset, entries * entry_size, "the program header table")
    loads: list[tuple[int, int, int]] = []  # address, file offset, bytes in the file
    dynamic: tuple[int, int] | None = None
    for at in range(entries):
        fields = struct.unpack_from(format_, table, at * entry_size)
        offset, address, size = (fields[2], fields[3], fields[5]) if wide else (fields[1], fields[2], fields[4])
        if fields[0] == 1:
            if offset + size > window.size:
                raise ContainerError(
                    "damaged", f"segment {at} ends at byte {offset + size}, the file has {window.size}"
                )
            loads.append((address, offset, size))
        elif fields[0] == 2:
            dynamic = (offset, size)
    section_offset, section_size, sections = head[5], head[10], head[11]
    # The section headers come last in what linkers write: their end shows a cut tail.
    if section_offset and section_offset + section_size * sections > window.size:
        end = section_offset + section_size * sections
        raise ContainerError("damaged", f"the section headers end at byte {end}, the file has {window.size}")
    if dynamic is None or not loads:
        raise ContainerError("not-a-library", "an ELF file without a dynamic section")
    return _read_dynamic(window, machine, bits, order, loads, dynamic)


def _read_dynamic(
    window: Window, machine: str, bits: int, order: str, loads: list[tuple[int, int, int]], dynamic: tuple[int, int]
) -> Container:
    format_ = order + ("qQ" if bits == 64 else "iI")
    step = struct.calcsize(format_)
    count = dynamic[1] // step
    if count > _MAX_DYNAMIC:
        raise ContainerError("damaged", f"{count} dynamic entries")
    data = window.read(dynamic[0], count * step, "the dynamic section")
    strings: int | None = None
    own: int | None = None
    needed: list[int] = []
    run_paths: dict[int, int] = {}
    for tag, value in struct.iter_unpack(format_, data):
        if tag == 0:
            break
        if tag == 1:
            needed.append(value)
        elif tag == 5:
            strings = value
        elif tag == 14:
            own = value
        elif tag in (15, 29):  # RPATH, RUNPATH
            run_paths[tag] = value
    if len(needed) > _MAX_NEEDED:
        raise ContainerError("damaged", f"{len(needed)} needed libraries")
    if strings is None:
        if needed:
            raise ContainerError("damaged", "the dynamic section has no string table")
        return Container("elf", machine, bits, ())
    base = next((offset + strings - at for at, offset, size in loads if at <= strings < at + size), None)
    if base is None:
        raise ContainerError("damaged", "the string table lies outside the loaded segments")
    names = tuple(window.name(base + value, "the name of a needed library") for value in needed)
    path = run_paths.get(29, run_paths.get(15))  # RUNPATH replaces RPATH
    folders = () if path is None else tuple(p for p in window.name(base + path, "the run path").split(":") if p)
    soname = "" if own is None else window.name(base + own, "the library's own name")
    return Container("elf", machine, bits, names, folders, soname)


def _read_pe(window: Window) -> Container:
    header = struct.unpack("<I", window.read(60, 4, "the offset of the PE header"))[0]
    if window.read(header, 4, "the PE signature") != b"PE\0\0":
        raise ContainerError("not-a-library", "a DOS program without a PE header")
    machine_id, sections, _, _, _, optional_size, traits = struct.unpack(
        "<HHIIIHH", window.read(header + 4, 20, "the PE file header")
    )
    machine = _PE_MACHINES.get(machine_id, f"PE machine {machine_id:#x}")
    if not traits & 0x2000:
        raise ContainerError("not-a-library", "a PE program, not a DLL")
    optional = window.read(header + 24, optional_size, "the PE optional header")
    if optional_size < 2:
        raise ContainerError("damaged", f"the PE optional header has {optional_size} bytes")
    magic = struct.unpack_from("<H", optional)[0]
    bits, directories_at = {0x10B: (32, 96), 0x20B: (64, 112)}.get(magic, (0, 0))
    if not bits:
        raise ContainerError("damaged", f"PE optional header magic {magic:#x}")
    if not 0 < sections <= _MAX_HEADERS:
        raise ContainerError("damaged", f"{sections} PE sections")
    table = window.read(header + 24 + optional_size, 40 * sections, "the PE section table")
    spans: list[tuple[int, int, int]] = []
    for at in range(sections):
        _, address, raw_size, raw_offset = struct.unpack_from("<IIII", table, at * 40 + 8)
        if raw_size and raw_offset + raw_size > window.size:
            raise ContainerError(
                "damaged", f"section {at} ends at byte {raw_offset + raw_size}, the file has {window.size}"
            )
        spans.append((address, raw_offset, raw_size))

    def locate(address: int, what: str) -> int:
        for start, offset, size in spans:
            if start <= address < start + size:
                return offset + address - start
        raise ContainerError("damaged", f"{what} lies outside the sections")

    needed: list[str] = []
    imports = 0
    if optional_size >= directories_at + 16 and struct.unpack_from("<I", optional, directories_at - 4)[0] > 1:
        imports = struct.unpack_from("<I", optional, directories_at + 8)[0]
    if imports:
        at = locate(imports, "the import table")
        for _ in range(_MAX_NEEDED + 1):
            entry = struct.unpack("<IIIII", window.read(at, 20, "an import entry"))
            if entry[3] == 0:
                return Container("pe", machine, bits, tuple(needed))
            needed.append(window.name(locate(entry[3], "the name of an import"), "the name of an import"))
            at += 20
        raise ContainerError("damaged", f"more than {_MAX_NEEDED} imported libraries")
    return Container("pe", machine, bits, ())
