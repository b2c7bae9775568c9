"""The plan: every choice goes through the ledger as opening the model would, and the best forecast that fits is taken.

Pure: items, budgets and speeds in, a plan out. Nothing is allocated and nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coli.doctor.plan.budgets import Budgets
from coli.doctor.plan.forecast import Forecast, History, Placed, Speeds, forecast
from coli.engine.budget import Demand, reserve_all
from coli.engine.ledger import Grant, Item, Ledger
from coli.errors import BudgetError
from coli.settings import find

__all__ = ["LEAST_CONTEXT", "Choice", "Placement", "Plan", "decide_plan", "least_ram_bytes", "place"]

# Where nobody asks for a context: one that costs no more than this share of the speed.
_CONTEXT_COST = 0.02
# ... and no more than this part of the RAM, which others could use until a prompt is that long.
_CONTEXT_RAM_SHARE = 16
# A prefill bank serves prompts only; it may cost the answers this share of their speed.
_BANK_COST = 0.1
LEAST_CONTEXT = 512
"""Positions; where nobody asks for a context, the shortest that a plan proposes."""

# The context that an engine takes when nobody says more.
_DEFAULT_CONTEXT: int = find("context").default


@dataclass(frozen=True)
class Choice:
    """The discrete choices of a plan. ``groups``: what of the device's memory is used for."""

    context: int
    most_chunk: int
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Placement:
    """What a choice comes to: the grants in order of reservation, the chunk that fits, and how fast it is."""

    choice: Choice
    chunk: int
    grants: tuple[Grant, ...]
    forecast: Forecast

    def of(self, tier: str) -> tuple[Grant, ...]:
        """Return the grants of a tier."""
        return tuple(grant for grant in self.grants if grant.item.tier == tier)

    def nbytes(self, tier: str) -> int:
        """Return the bytes held in a tier when every cache is full: the peak of a run."""
        return sum(grant.nbytes for grant in self.of(tier))

    @property
    def cache(self) -> Grant:
        """Return the grant of the expert cache in RAM: the last one there."""
        return self.of("ram")[-1]


@dataclass(frozen=True)
class Plan:
    """The chosen placement, the one that came second with what it would change, and what binds."""

    budgets: Budgets
    best: Placement
    runner_up: Placement | None
    binds: str


def place(
    basis: Iterable[Item],
    demand: Demand,
    budgets: Budgets,
    speeds: Speeds,
    choice: Choice,
    history: History | None = None,
) -> Placement:
    """Run one choice dry. Raises BudgetError when the model cannot run with it."""
    ledger = Ledger(budgets.limits())
    chunk = reserve_all(
        ledger, basis, demand, context=choice.context, most_chunk=choice.most_chunk, groups=choice.groups
    )
    grants = ledger.grants()
    cache = [grant for grant in grants if grant.item.tier == "ram"][-1]
    device = {grant.item.name: grant for grant in grants if grant.item.tier == "vram"}
    held = dict.fromkeys(("dense", "bank", "experts", "kv"), 0)
    for group in demand.device:
        held[group.role] += sum(device[item.name].nbytes for item in group.items if item.name in device)
    placed = Placed(
        demand.traffic,
        cached=cache.count / max(1, cache.item.count),
        device_dense_bytes=min(held["dense"], demand.traffic.dense_bytes),
        device_experts=held["experts"] / max(1, cache.item.count * cache.item.unit_bytes()),
    )
    return Placement(choice, chunk, grants, forecast(placed, speeds, history))


def decide_plan(
    basis: Sequence[Item],
    demand: Demand,
    budgets: Budgets,
    speeds: Speeds,
    *,
    context: int | None,
    most_context: int | None,
    most_chunk: int,
    history: History | None = None,
) -> Plan:
    """Return the plan. ``context`` None chooses one that fits; ``history``: the hit rate of an earlier run.

    Raises the BudgetError of the smallest choice when nothing fits.
    """
    placements: list[Placement] = []
    refusal: BudgetError | None = None
    for choice in _choices(demand, budgets, context, most_context, most_chunk):
        try:
            placements.append(place(basis, demand, budgets, speeds, choice, history))
        except BudgetError as error:
            refusal = refusal or error
    if refusal is not None and not placements:
        raise refusal
    banks = {item.name for group in demand.device if group.role == "bank" for item in group.items}
    best = _best(placements, context, budgets.ram.limit_bytes // _CONTEXT_RAM_SHARE, banks)
    others = [one for one in placements if one.choice != best.choice and one.grants != best.grants]
    runner_up = max(others, key=lambda one: (_interest(one, best), one.forecast.typical), default=None)
    return Plan(budgets, best, runner_up, _binds(best, budgets, demand))


def least_ram_bytes(basis: Iterable[Item], demand: Demand, context: int = LEAST_CONTEXT) -> int:
    """Return the RAM without which the model cannot run at all: shortest context, prompts token by token."""
    least = [*basis, *demand.items(context, 1)]
    return sum(item.least_bytes() for item in least if item.tier == "ram")


def _choices(
    demand: Demand, budgets: Budgets, context: int | None, most_context: int | None, most_chunk: int
) -> list[Choice]:
    names = tuple(group.name for group in demand.device) if budgets.vram and budgets.vram.limit_bytes else ()
    groups = [names]
    banks = {group.name for group in demand.device if group.role == "bank"}
    if banks & set(names):
        groups.append(tuple(name for name in names if name not in banks))
    if names:
        groups.append(())
    most = most_context or _DEFAULT_CONTEXT
    contexts = [context] if context is not None else _powers(min(LEAST_CONTEXT, most), most)
    return [Choice(one, most_chunk, used) for one in contexts for used in groups]


def _powers(first: int, last: int) -> list[int]:
    found = []
    while first < last:
        found.append(first)
        first *= 2
    return [*found, last]


def _best(placements: Sequence[Placement], context: int | None, most_bytes: int, banks: set[str]) -> Placement:
    """Take the fastest; then, if nobody asked for a context, the longest that costs next to nothing."""
    fastest = max(placements, key=lambda one: one.forecast.typical)
    speed = fastest.forecast.typical
    if context is None:
        floor = min(_DEFAULT_CONTEXT, max(one.choice.context for one in placements))
        least = min(_without_cache(one) for one in placements)
        fair = [
            one
            for one in placements
            if one.choice.context == floor
            or (one.forecast.typical >= (1 - _CONTEXT_COST) * speed and _without_cache(one) - least <= most_bytes)
        ]
        # A short context is never the better one only because it is a little faster.
        longest = max(one.choice.context for one in fair)
        placements = [one for one in fair if one.choice.context == longest]
        fastest = max(placements, key=lambda one: one.forecast.typical)
    banked = [
        one
        for one in placements
        if any(grant.item.name in banks for grant in one.grants)
        and one.forecast.typical >= (1 - _BANK_COST) * fastest.forecast.typical
    ]
    return max(banked, key=lambda one: one.forecast.typical, default=fastest)


def _without_cache(one: Placement) -> int:
    return one.nbytes("ram") - one.cache.nbytes


def _interest(one: Placement, best: Placement) -> int:
    """Rank what somebody might want instead: a longer context, or another use of the card; then a shorter context."""
    same_context = one.choice.context == best.choice.context
    same_groups = one.choice.groups == best.choice.groups
    return (2 if same_groups and one.choice.context > best.choice.context else 0) + (same_context and not same_groups)


def _binds(best: Placement, budgets: Budgets, demand: Demand) -> str:
    """Name what the next byte or the next second would be good for."""
    cache = best.cache
    missing = (cache.item.count - cache.count) * cache.item.unit_bytes()
    slowest = max(best.forecast.parts, key=lambda part: part.typical_s)
    if missing:
        what = f"RAM: {cache.count} of {cache.item.count} experts fit"
    elif budgets.vram is not None and best.nbytes("vram") < demand.device_bytes:
        what = f"VRAM: {len(best.of('vram'))} allocations fit"
    else:
        what = "nothing of the memory: everything fits"
    return f"{what}; most of a token's time goes to {slowest.name}"
