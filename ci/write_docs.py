"""Write the tables in docs/ again from what they describe: `python ci/write_docs.py`, with the package installed."""

from __future__ import annotations

from pathlib import Path

from coli.backends.abi import SLOTS
from coli.settings.page import render_table

DOCS = Path(__file__).resolve().parent.parent / "docs"


def slot_table() -> str:
    """Return the slots of the ABI as a Markdown table, in their order."""
    lines = ["| # | slot | kind | | arguments |", "|---|---|---|---|---|"]
    for slot in SLOTS:
        arguments = ", ".join(argument.name for argument in slot.arguments)
        lines.append(f"| {slot.index} | `{slot.name}` | {slot.kind} | {slot.requirement} | {arguments} |")
    return "\n".join(lines)


# Page, the marks around its table, and what makes the table.
TABLES = (
    ("guide.md", "<!-- settings: made by `nox -s docs` -->", "<!-- end of settings -->", render_table),
    ("abi.md", "<!-- slots: made by `nox -s docs` -->", "<!-- end of slots -->", slot_table),
)


def replaced(page: str, begin: str, end: str, table: str) -> str:
    """Return ``page`` with ``table`` between its two marks. Raises ValueError when a mark is missing."""
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the page has no {begin} ... {end}")
    return f"{before}{begin}\n{table}\n{end}{after}"


if __name__ == "__main__":
    for name, begin, end, render in TABLES:
        page = DOCS / name
        page.write_text(replaced(page.read_text(encoding="utf-8"), begin, end, render()), encoding="utf-8")
