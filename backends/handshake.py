"""The handshake: facts read from an opened library's table, and what the loader decides from them.

Reading happens in the child process, deciding in both: the child calls a stage only after it has come to the same
answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from coli.backends.abi import ABI_MAJOR, ABI_MINOR, QUERY_SYMBOL, SLOTS, Slot
from coli.backends.abi.structs import AGREED_SIZES, Backend, SlotEntry, platform_tag
from coli.backends.trace import Finding, ok, refused

__all__ = ["decide_handshake", "decide_slots", "present_stages", "probe_slots", "probe_table"]

# A library of a newer minor may have more slots than we know; more than this is not a slot list.
_MAX_SLOTS = 4096

Table = Mapping[str, Any]


def probe_table(backend: Backend) -> dict[str, Any]:
    """Read the fixed part of a table. A table that is shorter than ours gives its size only."""
    if backend.size < ctypes.sizeof(Backend):
        return {"size": backend.size}
    table: dict[str, Any] = {
        "size": backend.size,
        "platform": backend.platform,
        "abi": [backend.abi_major, backend.abi_minor],
        "slot_count": backend.slot_count,
        "has_slots": bool(backend.slots),
    }
    for name in AGREED_SIZES:
        table[name] = getattr(backend, name)
    return table


def probe_slots(backend: Backend) -> list[list[Any]]:
    """Read name, signature and presence of the slots that both sides can know."""
    rows: list[list[Any]] = []
    for index in range(min(backend.slot_count, _MAX_SLOTS)):
        entry: SlotEntry = backend.slots[index]
        name = entry.name[:128].decode("utf-8", "replace") if entry.name else ""
        rows.append([name, entry.signature, bool(entry.function)])
    return rows


def present_stages(rows: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """Return the stages of our slot list that a table has a function for, in its order."""
    return tuple(slot.name for slot in SLOTS if slot.kind == "stage" and slot.index < len(rows) and rows[slot.index][2])


def _render_system(tag: int) -> str:
    if tag & 0xFFFF0000 != 0xC0110000:
        return f"{tag:#x}, not a platform tag"
    system = {1: "Linux", 2: "Windows", 3: "macOS"}.get((tag >> 8) & 0xFF, "an unknown system")
    return f"{system}, {((tag & 0xF0) >> 4) * 8}-bit, {'little' if tag & 1 else 'big'}-endian ({tag:#x})"


def decide_handshake(table: Table | None) -> Finding:
    """Judge platform, version and struct sizes. None: the query symbol is missing or returned null."""
    rebuild = "build the backend again with the coli_backend.h of this coli"
    gate = "handshake"
    if table is None:
        return refused(gate, "null-table", f"{QUERY_SYMBOL} returned null", expected="a table", fix=rebuild)
    size = table.get("size", 0)
    if size < ctypes.sizeof(Backend):
        return refused(
            gate, "table-size", f"the table has {size} bytes", expected=f"{ctypes.sizeof(Backend)} bytes", fix=rebuild
        )
    if table["platform"] != platform_tag():
        return refused(
            gate,
            "platform",
            f"built for {_render_system(table['platform'])}",
            expected=_render_system(platform_tag()),
            fix="use the library of this platform",
        )
    major, minor = table["abi"]
    if major != ABI_MAJOR:
        return refused(gate, "abi-major", f"ABI {major}.{minor}", expected=f"ABI {ABI_MAJOR}.x", fix=rebuild)
    wrong = [f"{name} {table[name]} (ours {want})" for name, want in AGREED_SIZES.items() if table[name] != want]
    if wrong:
        return refused(gate, "sizes", ", ".join(wrong), expected="the sizes of coli_backend.h", fix=rebuild)
    if not table["has_slots"] or table["slot_count"] > _MAX_SLOTS:
        what = f"{table['slot_count']} slots" if table["has_slots"] else "the slot array is null"
        return refused(gate, "slot-count", what, expected=f"{len(SLOTS)} slots", fix=rebuild)
    return ok(gate, f"ABI {major}.{minor}, {table['slot_count']} slots")


def decide_slots(
    rows: Sequence[Sequence[Any]],
    abi: Sequence[int] = (ABI_MAJOR, ABI_MINOR),
    slots: Sequence[Slot] = SLOTS,
    of_device: bool = False,
) -> Finding:
    """Compare every slot's name and signature, and list all absent mandatory ones.

    ``of_device``: a CPU backend stands behind the library and serves the stages that it leaves out.
    """
    gate = "slots"
    renamed: list[str] = []
    changed: list[str] = []
    absent: list[str] = []
    optional = 0
    for slot in slots:
        if slot.index >= len(rows):
            name, signature, present = slot.name, slot.signature, False
        else:
            name, signature, present = rows[slot.index]
        if name != slot.name:
            renamed.append(f"{slot.name} (found {name!r})")
        elif signature != slot.signature:
            changed.append(slot.name)
        elif not present:
            if slot.mandatory and not (of_device and slot.kind == "stage"):
                absent.append(slot.name)
            else:
                optional += 1
    version = f"ABI {abi[0]}.{abi[1]}"
    fix = f"build the backend for ABI {ABI_MAJOR}.{ABI_MINOR} with the slot list of this coli"
    problems: list[str] = []
    if renamed:
        problems.append("other slots: " + ", ".join(renamed))
    if changed:
        problems.append("other arguments: " + ", ".join(changed))
    if absent:
        problems.append("absent: " + ", ".join(absent))
    if not problems and of_device:
        served = present_stages(rows)
        whole = sum(slot.kind == "stage" for slot in slots)
        return ok(gate, f"{len(served)} of {whole} stages: {', '.join(served) or 'none'}; the CPU serves the others")
    if not problems:
        return ok(
            gate,
            f"{len(slots) - optional} of {len(slots)} slots" + (f", {optional} optional absent" if optional else ""),
        )
    if renamed:
        code = "order"
    elif changed:
        code = "signature"
    else:
        code = "older-minor" if tuple(abi) < (ABI_MAJOR, ABI_MINOR) else "absent"
    expected = {
        "order": "the slots in the order of coli_slots.inc",
        "signature": "the arguments of coli_slots.inc, in their order",
        "older-minor": f"ABI {ABI_MAJOR}.{ABI_MINOR} or later; the library is of {version}",
        "absent": "every mandatory slot",
    }[code]
    return refused(gate, code, "; ".join(problems), expected=expected, fix=fix)
