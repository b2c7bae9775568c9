"""What another machine would bring: the same plan with one thing changed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coli.doctor.plan.budgets import Budgets, Device, decide_budgets
from coli.doctor.plan.core import Choice, Plan, place
from coli.doctor.plan.forecast import Forecast, History, Speeds
from coli.doctor.plan.speeds import decide_speeds
from coli.engine.budget import Demand
from coli.engine.host_memory import HostMemory
from coli.engine.ledger import Item

__all__ = ["Change", "changes"]

_MORE_RAM_BYTES = 16 << 30
_CARD_BYTES = 24 << 30


@dataclass(frozen=True)
class Change:
    """One thing that is different, and how fast it would be then."""

    what: str
    forecast: Forecast


def changes(
    plan: Plan, basis: Sequence[Item], demand: Demand, speeds: Speeds, *, threads: int, history: History | None = None
) -> tuple[Change, ...]:
    """Return the forecasts with 16 GiB more RAM, a second drive, and a card of 24 GiB where a family can use one."""
    choice, budgets = plan.best.choice, plan.budgets
    ram = replace(budgets.ram, limit_bytes=budgets.ram.limit_bytes + _MORE_RAM_BYTES)
    found = [
        _change("16 GiB more RAM", basis, demand, replace(budgets, ram=ram), speeds, choice, history),
        _change(
            "a second drive like the first, the experts spread over both",
            basis,
            demand,
            budgets,
            replace(speeds, disk=speeds.disk.times(2)),
            choice,
            history,
        ),
    ]
    if demand.device:
        card = decide_budgets(HostMemory(), Device("an empty card", _CARD_BYTES, _CARD_BYTES), ram=0).vram
        groups = tuple(group.name for group in demand.device)
        with_card = replace(speeds, vram=speeds.vram or decide_speeds(threads, device=True).vram)
        found.append(
            _change(
                "a card of 24 GiB",
                basis,
                demand,
                Budgets(budgets.ram, card),
                with_card,
                replace(choice, groups=groups),
                history,
            )
        )
    return tuple(found)


def _change(
    what: str,
    basis: Sequence[Item],
    demand: Demand,
    budgets: Budgets,
    speeds: Speeds,
    choice: Choice,
    history: History | None,
) -> Change:
    return Change(what, place(basis, demand, budgets, speeds, choice, history).forecast)
