"""Write the tables in docs/ again from what they describe: `python ci/write_docs.py`, with the package installed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from coli.backends.abi import SLOTS
from coli.build_matrix.matrix import Cell, load_matrix
from coli.doctor.plan.cards import later_groups, render_cards
from coli.doctor.plan.speeds import decide_speeds
from coli.families.deepseek_v4.config import Geometry
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
    sys.path.insert(0, str(DOCS.parent / "tests"))
    from doctor.plan.published import flash_demand  # type: ignore[import-not-found]
    from engine.sparse_flash import flash_config  # type: ignore[import-not-found]

    geometry = Geometry.from_config(flash_config())
    found = flash_demand()
    later = later_groups(found.traffic.expert_bytes, geometry.layers, geometry.experts)
    kv_bytes = next(item.nbytes for item in found.items(geometry.max_positions, 128) if item.name.startswith("KV"))
    return render_cards(replace(found, device=(*found.device, *later)), decide_speeds(8, device=True), kv_bytes)


def published_table() -> str:
    """Return measurements that others published beside the forecasts for their machines, as a Markdown table."""
    sys.path.insert(0, str(DOCS.parent / "tests"))
    from doctor.plan.published import PUBLISHED, flash_demand, plan_published, published_rate

    flash = flash_demand()
    lines = ["| machine | published, tokens/s | forecast |", "|---|---|---|"]
    for path in PUBLISHED:
        name, placement = plan_published(path, flash)
        low, high = published_rate(path)
        measured = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        lines.append(f"| {name} | {measured} | {placement.forecast.low:.2f} to {placement.forecast.high:.2f} |")
    return "\n".join(lines)


def axis_table() -> str:
    """Return what a user may set, and why."""
    lines = ["| axis | values | default | why |", "|---|---|---|---|"]
    for axis in load_matrix().axes:
        lines.append(f"| `{axis.name}` | {axis.values} | {axis.default or 'decided'} | {axis.reason} |")
    return "\n".join(lines)


def architecture_table() -> str:
    """Return the architectures with the toolkits that compile for them; `a` and `f` are the special forms."""
    matrix = load_matrix()
    lines = ["| target | chips | toolkits | special forms | portable |", "|---|---|---|---|---|"]
    for arch in matrix.architectures.values():
        until = "and later" if arch.dropped is None else f"to before {arch.dropped.short}"
        special = [form for form in ("a", "f") if form in arch.forms]
        forms = ", ".join(f"`{arch.number}{form}` from {arch.forms[form].short}" for form in special)
        code = ["machine code"] * (arch.number in matrix.portable_machine_code)
        code += ["PTX"] * (arch.number in (*matrix.portable_ptx, max(matrix.portable_machine_code)))
        lines.append(
            f"| `sm_{arch.number}` | {arch.chips} | {arch.forms[''].short} {until} | {forms} | {', '.join(code)} |"
        )
    return "\n".join(lines)


def rule_table() -> str:
    """Return why something is refused, and what to do then."""
    lines = ["| rule | why | what to do |", "|---|---|---|"]
    lines += [f"| `{rule.id}` | {rule.reason} | {rule.fix} |" for rule in load_matrix().rules.values()]
    return "\n".join(lines)


def cell_table() -> str:
    """Return the cells with what is done with each of them, wherever the tests run."""
    lines = ["| cell | machines | tags | what checks it |", "|---|---|---|---|"]
    for cell in load_matrix().cells.values():
        lines.append(f"| `{cell.id}` | {', '.join(cell.machines)} | {', '.join(cell.tags)} | {_shown_by(cell)} |")
    return "\n".join(lines)


def _shown_by(cell: Cell) -> str:
    if cell.refused_by is not None:
        return f"refused by `{cell.refused_by}`, which a test sees"
    if "ci" not in cell.tags:
        return "nothing before it is built: unverified"
    canary = ", and runs its canary where the runner can" if cell.kind == "cpu" else ""
    return f"the hosted workflow builds and audits it{canary}"


# Page, the marks around its table, and what makes the table.
TABLES = (
    ("guide.md", "<!-- settings: made by `nox -s docs` -->", "<!-- end of settings -->", render_table),
    *(
        ("build.md", f"<!-- {name}: made by `nox -s docs` -->", f"<!-- end of {name} -->", render)
        for name, render in (
            ("axes", axis_table),
            ("architectures", architecture_table),
            ("rules", rule_table),
            ("cells", cell_table),
        )
    ),
    ("abi.md", "<!-- slots: made by `nox -s docs` -->", "<!-- end of slots -->", slot_table),
    ("plan.md", "<!-- cards: made by `nox -s docs` -->", "<!-- end of cards -->", card_table),
    ("plan.md", "<!-- published: made by `nox -s docs` -->", "<!-- end of published -->", published_table),
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
