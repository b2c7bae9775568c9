"""What a fresh library must be: the device code asked for, the one symbol of the ABI, no library unexpected."""

from __future__ import annotations

import struct
from pathlib import Path

from coli.backends.abi import QUERY_SYMBOL
from coli.backends.containers import ContainerError, Section, Window, read_container, read_sections
from coli.backends.fatbin import FatbinError, read_fatbin
from coli.backends.targets import Target

__all__ = ["audit_library", "exported_symbols"]

# What every system of the kind has. Never the driver's libraries: a library must load where there is no driver.
_ALLOWED = {
    "elf": ("libc.so.", "libm.so.", "libpthread.so.", "libdl.so.", "librt.so.", "ld-linux"),
    "pe": ("kernel32.dll", "msvcrt.dll", "ucrtbase.dll", "api-ms-win-", "ntdll.dll"),
}
_DYNSYM = 11
_SYMBOL = struct.Struct("<IBBHQQ")
_MAX_SYMBOLS = 1 << 16
_UNDEFINED = 0
_LOCAL = 0
_EXPORTS = struct.Struct("<24xI4xI")  # of the export directory: the count of names and where they lie


def audit_library(
    library: Path,
    targets: tuple[Target, ...] | None,
    own: Target | None = None,
    *,
    needs: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return what is wrong with a library, nothing when it is as asked for; ``targets`` is None for a CPU library.

    ``own``: the target of a flavour's kernels, which has a unit of nothing else beside those of all ``targets``.
    ``needs``: libraries that it was decided to need beside those of the system.
    """
    try:
        container = read_container(library)
        exported = exported_symbols(library)
        fatbin = read_fatbin(library)
    except (ContainerError, FatbinError, OSError) as error:
        return (f"it cannot be read: {error}",)
    problems = []
    allowed = _ALLOWED[container.kind]
    strange = [name for name in container.needed if not name.lower().startswith(allowed) and name not in needs]
    if strange:
        problems.append(f"it needs {', '.join(strange)}, which a machine may not have")
    if absent := [name for name in needs if name not in container.needed]:
        problems.append(f"it does not need {', '.join(absent)}, though it was to be linked with it")
    if container.run_path:
        problems.append(f"it looks for libraries in {', '.join(container.run_path)}, a folder of the build")
    if exported != (QUERY_SYMBOL,):
        problems.append(f"it exports {', '.join(exported[:8]) or 'nothing'}, not just {QUERY_SYMBOL}")
    found = {str(target) for target in fatbin.targets} if fatbin is not None else set()
    asked = {target.name for target in (*(targets or ()), *((own,) if own else ()))}
    if found != asked:
        missing, more = sorted(asked - found), sorted(found - asked)
        problems.append(
            "its device code is not what was asked for"
            + (f"; missing {', '.join(missing)}" if missing else "")
            + (f"; not asked for {', '.join(more)}" if more else "")
        )
    elif fatbin is not None:
        # A unit compiled with other flags than the rest would fail on some cards only.
        code = {target for target in targets or () if not target.ptx}
        held = [{entry.target for entry in unit} for unit in fatbin.units]
        if own is not None:
            special = [unit for unit in held if unit == {own}]
            if not special:
                problems.append(f"no part of its device code is for {own} alone: the flavour's kernels are missing")
            held = [unit for unit in held if unit != {own}]
        lacking = {str(target) for unit in held for target in code - unit}
        if lacking:
            problems.append(f"a part of its device code lacks {', '.join(sorted(lacking))}")
    return tuple(problems)


def exported_symbols(library: Path) -> tuple[str, ...]:
    """Return the names that a 64-bit little-endian library defines for others, sorted. Raises ContainerError."""
    with library.open("rb") as file:
        window = Window(file)
        sections = read_sections(window)
        if window.read(0, 2, "the magic") == b"MZ":
            return _exports_of_dll(window, sections)
        found: set[str] = set()
        for section in (one for one in sections if one.kind == _DYNSYM):
            if section.link >= len(sections) or section.size > _MAX_SYMBOLS * _SYMBOL.size:
                raise ContainerError("damaged", "the dynamic symbols are beyond every measure")
            strings = sections[section.link]
            table = window.read(section.offset, section.size // _SYMBOL.size * _SYMBOL.size, "the dynamic symbols")
            for name, info, _, index, _, _ in _SYMBOL.iter_unpack(table):
                if index != _UNDEFINED and info >> 4 != _LOCAL:
                    found.add(window.name(strings.offset + name, "a symbol's name"))
    return tuple(sorted(found))


def _exports_of_dll(window: Window, sections: tuple[Section, ...]) -> tuple[str, ...]:
    header = int.from_bytes(window.read(60, 4, "the offset of the PE header"), "little")
    wide = window.read(header + 24, 2, "the PE optional header") == b"\x0b\x02"
    at = header + 24 + (112 if wide else 96)  # the first data directory is that of the exports
    address = int.from_bytes(window.read(at, 4, "the PE directories"), "little")
    if not address:
        return ()

    def locate(address: int) -> int:
        for section in sections:
            if section.address <= address < section.address + section.size:
                return section.offset + address - section.address
        raise ContainerError("damaged", "the exports lie outside the sections")

    count, names = _EXPORTS.unpack(window.read(locate(address), _EXPORTS.size, "the exports"))
    if count > _MAX_SYMBOLS:
        raise ContainerError("damaged", "the exports are beyond every measure")
    table = window.read(locate(names), count * 4, "the names of the exports") if count else b""
    return tuple(
        sorted(window.name(locate(entry), "the name of an export") for (entry,) in struct.iter_unpack("<I", table))
    )
