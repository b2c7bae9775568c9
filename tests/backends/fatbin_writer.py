"""Write fatbins byte by byte, from the description in backends/fatbin.py, for stubs and for damage."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

MAGIC = 0xBA55ED50


def entry(target: str, body: bytes = b"\0" * 8) -> bytes:
    """Return one entry of a target such as ``sm_120a``."""
    found = re.fullmatch(r"(sm|compute)_(\d+)([af]?)", target)
    assert found is not None, target
    flags = 0x11 | {"": 0, "a": 1 << 20, "f": 1 << 21}[found[3]]
    kind = 1 if found[1] == "compute" else 2
    head = struct.pack("<HHIQ", kind, 0x101, 64, len(body)) + b"\0" * 12 + struct.pack("<I", int(found[2]))
    head += b"\0" * 8 + struct.pack("<Q", flags)
    return head.ljust(64, b"\0") + body


def fatbin(targets: Sequence[str]) -> bytes:
    """Return one fatbin with an entry a target."""
    payload = b"".join(map(entry, targets))
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(payload)) + payload
