"""What a fresh library must be: the device code asked for, the one symbol of the ABI, no library unexpected."""

from __future__ import annotations

import struct
from pathlib import Path

from coli.backends.abi import QUERY_SYMBOL
from coli.backends.containers import ContainerError, Window, read_container, read_sections
from coli.backends.fatbin import FatbinError, read_fatbin
from coli.build_matrix.arch import Target

__all__ = ["audit_library", "exported_symbols"]

_ALLOWED = ("libc.so.", "libm.so.", "libpthread.so.", "libdl.so.", "librt.so.", "ld-linux")
_DYNSYM = 11
_SYMBOL = struct.Struct("<IBBHQQ")
_MAX_SYMBOLS = 1 << 16
_UNDEFINED = 0
_LOCAL = 0


def audit_library(library: Path, targets: tuple[Target, ...] | None) -> tuple[str, ...]:
    """Return what is wrong with a library, nothing when it is as asked for; ``targets`` is None for a CPU library."""
    try:
        container = read_container(library)
        exported = exported_symbols(library)
        fatbin = read_fatbin(library)
    except (ContainerError, FatbinError, OSError) as error:
        return (f"it cannot be read: {error}",)
    problems = []
    strange = [name for name in container.needed if not name.startswith(_ALLOWED)]
    if strange:
        problems.append(f"it needs {', '.join(strange)}, which a machine may not have")
    if exported != (QUERY_SYMBOL,):
        problems.append(f"it exports {', '.join(exported[:8]) or 'nothing'}, not just {QUERY_SYMBOL}")
    found = {str(target) for target in fatbin.targets} if fatbin is not None else set()
    asked = {target.name for target in targets or ()}
    if found != asked:
        missing, more = sorted(asked - found), sorted(found - asked)
        problems.append(
            "its device code is not what was asked for"
            + (f"; missing {', '.join(missing)}" if missing else "")
            + (f"; not asked for {', '.join(more)}" if more else "")
        )
    return tuple(problems)


def exported_symbols(library: Path) -> tuple[str, ...]:
    """Return the names that a 64-bit little-endian ELF library defines for others, sorted. Raises ContainerError."""
    with library.open("rb") as file:
        window = Window(file)
        sections = read_sections(window)
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
