"""Write the slot table of a page again: `python ci/slots_table.py docs/abi.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from coli.backends.abi import SLOTS

_BEGIN = "<!-- slots: made by `nox -s docs` -->"
_END = "<!-- end of slots -->"


def render_table() -> str:
    """Return the slots as a Markdown table."""
    lines = ["| index | slot | kind | arguments | signature |", "|---|---|---|---|---|"]
    for slot in SLOTS:
        arguments = ", ".join(argument.name for argument in slot.arguments)
        kind = slot.kind if slot.mandatory else f"{slot.kind}, optional"
        lines.append(f"| {slot.index} | `{slot.name}` | {kind} | {arguments} | `{slot.signature:016x}` |")
    return "\n".join(lines)


def replace_table(page: str) -> str:
    """Return `page` with the table between its two marks made again. Raises ValueError when a mark is missing."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the page has no {_BEGIN} ... {_END}")
    return f"{before}{_BEGIN}\n{render_table()}\n{_END}{after}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(replace_table(page.read_text(encoding="utf-8")), encoding="utf-8")
