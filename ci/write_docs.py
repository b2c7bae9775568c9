"""Write the tables in docs/ again from what they describe: `python ci/write_docs.py`, with the package installed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from coli.backends.abi import SLOTS
from coli.doctor.plan.cards import later_groups, render_cards
from coli.doctor.plan.speeds import decide_speeds
from coli.families.deepseek_v4.config import Geometry
from coli.families.deepseek_v4.demand import demand
from coli.settings.page import render_table

DOCS = Path(__file__).resolve().parent.parent / "docs"


def slot_table() -> str:
    """Return the slots of the ABI as a Markdown table, in their order."""
    lines = ["| # | slot | kind | | arguments |", "|---|---|---|---|---|"]
    for slot in SLOTS:
        arguments = ", ".join(argument.name for argument in slot.arguments)
        lines.append(f"| {slot.index} | `{slot.name}` | {slot.kind} | {slot.requirement} | {arguments} |")
    return "\n".join(lines)


def card_table() -> str:
    """Return what Flash puts on cards of all sizes as a Markdown table, from the geometry of the release."""
    sys.path.insert(0, str(DOCS.parent / "tests" / "engine"))
    from sparse_flash import flash_config, flash_sizes  # type: ignore[import-not-found]

    geometry = Geometry.from_config(flash_config())
    sizes = flash_sizes()
    found = demand(flash_config(), sizes, "config.json")
    later = later_groups(found.traffic.expert_bytes, geometry.layers, geometry.experts)
    kv_bytes = next(item.nbytes for item in found.items(geometry.max_positions, 128) if item.name.startswith("KV"))
    return render_cards(replace(found, device=(*found.device, *later)), decide_speeds(8, device=True), kv_bytes)


# Page, the marks around its table, and what makes the table.
TABLES = (
    ("guide.md", "<!-- settings: made by `nox -s docs` -->", "<!-- end of settings -->", render_table),
    ("abi.md", "<!-- slots: made by `nox -s docs` -->", "<!-- end of slots -->", slot_table),
    ("plan.md", "<!-- cards: made by `nox -s docs` -->", "<!-- end of cards -->", card_table),
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
