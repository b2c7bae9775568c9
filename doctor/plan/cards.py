"""What lies on a card of each size: the table of docs/plan.md, from a model's demand. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coli.doctor.plan.budgets import Device, decide_budgets
from coli.doctor.plan.core import Choice, Placement, place
from coli.doctor.plan.forecast import Speeds
from coli.engine.budget import Demand, DeviceGroup
from coli.engine.host_memory import HostMemory
from coli.engine.ledger import Item
from coli.units import render_size

__all__ = ["CARDS_GIB", "CardRow", "card_rows", "later_groups", "render_cards"]

CARDS_GIB = (6, 8, 10, 12, 16, 24, 32)
# Of the memory on the box, the driver keeps some for itself.
_DRIVER_BYTES = 400 << 20


@dataclass(frozen=True)
class CardRow:
    """One card, empty but for the driver. Bytes by group, and the experts that are left to it."""

    card_bytes: int
    limit_bytes: int
    group_bytes: dict[str, int]
    left_bytes: int


def later_groups(expert_bytes: int, layers: int, experts: int) -> tuple[DeviceGroup, ...]:
    """Return what a later version keeps on a card beside dense weights: a bank of one layer, copies of experts."""
    bank = Item("prefill bank", "vram", experts * expert_bytes)
    copies = Item("expert copies", "vram", expert_bytes, count=layers * experts, minimum=1)
    return DeviceGroup("prefill bank", "bank", (bank,)), DeviceGroup("expert copies", "experts", (copies,))


def card_rows(demand: Demand, speeds: Speeds, cards_gib: Sequence[int] = CARDS_GIB) -> tuple[CardRow, ...]:
    """Return what each card holds: all of ``demand.device`` in its order, on Linux, with nothing else on the card."""
    rows = []
    for gib in cards_gib:
        # The RAM is not asked about here: all of it is there.
        card = Device("an empty card", gib << 30, (gib << 30) - _DRIVER_BYTES)
        budgets = decide_budgets(HostMemory(), card, ram=1 << 50)
        limit = budgets.limits()["vram"] or 0
        choice = Choice(4096, 128, tuple(group.name for group in demand.device))
        placement = place([], demand, budgets, speeds, choice)
        held = {group.name: _held(placement, group) for group in demand.device}
        rows.append(CardRow(gib << 30, limit, held, limit - sum(held.values())))
    return tuple(rows)


def _held(placement: Placement, group: DeviceGroup) -> int:
    names = {item.name for item in group.items}
    return sum(grant.nbytes for grant in placement.of("vram") if grant.item.name in names)


def render_cards(demand: Demand, speeds: Speeds, kv_bytes: int) -> str:
    """Return the table in Markdown. ``kv_bytes``: of the longest context, which may lie there instead."""
    names = [group.name for group in demand.device]
    whole = {group.name: sum(item.total_bytes() for item in group.items) for group in demand.device}
    lines = [
        "| card | budget | " + " | ".join(names) + " | left | longest KV instead |",
        "|---:|---:|" + "---:|" * (len(names) + 2),
    ]
    unit = demand.traffic.expert_bytes
    for row in card_rows(demand, speeds):
        cells = []
        for group in demand.device:
            held = row.group_bytes[group.name]
            if group.role == "experts":
                cells.append(f"{held // unit} experts, {render_size(held)}" if held else "-")
            elif held == whole[group.name]:
                cells.append(f"all, {render_size(held)}")
            else:
                cells.append(f"{render_size(held)} of {render_size(whole[group.name])}" if held else "-")
        dense = sum(whole[group.name] for group in demand.device if group.role == "dense")
        kv = "fits" if dense + kv_bytes <= row.limit_bytes else "-"
        shown = [f"{row.card_bytes >> 30} GB", render_size(row.limit_bytes), *cells, render_size(row.left_bytes), kv]
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)
