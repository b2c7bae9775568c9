"""A plan as the document `coli.plan/1`, from which the terminal renderer draws too. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from coli.doctor.plan.budgets import TierBudget
from coli.doctor.plan.core import Placement, Plan
from coli.doctor.plan.forecast import Forecast
from coli.doctor.plan.sensitivity import Change
from coli.engine.budget import Demand
from coli.engine.ledger import Grant

__all__ = ["SCHEMA", "Kept", "Report", "bar", "describe_kept", "plan_document", "tier_documents"]

SCHEMA = "coli.plan/1"


@dataclass(frozen=True)
class Kept:
    """A value that the plan left as it is, because somebody set it, and where."""

    option: str
    value: str
    origin: str


@dataclass(frozen=True)
class Report:
    """Everything that a plan says."""

    model: str
    family: str
    machine: str
    threads: int
    backend: str
    device: str | None
    plan: Plan
    demand: Demand
    kept: tuple[Kept, ...]
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]


def describe_kept(kept: Sequence[Kept]) -> str:
    """Return one line that says what was not changed."""
    shown = [f"{k.option} {k.value}" + ("" if k.origin == k.option else f" ({k.origin})") for k in kept]
    return ", ".join(shown) or "nothing was set"


def plan_document(report: Report) -> dict[str, Any]:
    """Return the document; sizes in bytes, rates in tokens per second."""
    best = report.plan.best
    budgets = report.plan.budgets
    tiers = tier_documents(report.plan, report.demand)
    cache = best.cache
    traffic = report.demand.traffic
    return {
        "schema": SCHEMA,
        "model": report.model,
        "family": report.family,
        "machine": report.machine,
        "backend": report.backend,
        "device": report.device,
        "threads": report.threads,
        "context": best.choice.context,
        "prefill_chunk": best.chunk,
        "tiers": tiers,
        "nvme": {
            "experts": cache.item.count - cache.count,
            "bytes": (cache.item.count - cache.count) * cache.item.unit_bytes(),
        },
        "pool_bytes": budgets.pool_bytes,
        "token": {"dense_bytes": traffic.dense_bytes, "expert_bytes": traffic.routed_bytes, "experts": traffic.experts},
        "forecast": _forecast(best.forecast),
        "binds": report.plan.binds,
        "runner_up": _runner_up(report.plan.runner_up),
        "kept": [{"option": k.option, "value": k.value, "origin": k.origin} for k in report.kept],
        "argv": list(report.argv),
        "environment": dict(report.environment),
        "sensitivity": [
            {"change": c.what, "low": _round(c.forecast.low), "high": _round(c.forecast.high)} for c in report.changes
        ],
        "notes": [*budgets.notes, *report.notes],
    }


def tier_documents(plan: Plan, demand: Demand) -> list[dict[str, Any]]:
    """Return what a plan does with each tier: its whole, who holds what of it, and the items in their order; bytes."""
    budgets = plan.budgets
    return [_tier(tier, plan.best, demand) for tier in (budgets.ram, budgets.vram) if tier is not None]


def bar(tier: Mapping[str, Any], width: int = 60) -> tuple[str, str]:
    """Return a stacked bar of a tier of the document, and its legend. A dot is a part of the budget that is free."""
    whole = max(1, tier["limit_bytes"])
    drawn, legend, done = "", [], 0
    taken: set[str] = set()
    for item in tier["items"]:
        letter = _letter(item["name"], taken)
        taken.add(letter)
        done += item["bytes"]
        reach = min(width, round(width * done / whole))
        # What is there is drawn, if only as one letter.
        drawn += letter * max(reach - len(drawn), 1 if len(drawn) < width else 0)
        legend.append(f"{letter} {item['name']}")
    return f"[{drawn[:width]:.<{width}}]", ", ".join(legend)


def _letter(name: str, taken: Collection[str]) -> str:
    """Return a letter that people would look for: the initial of a word, else any of the name, else any."""
    initials = "".join(word[0] for word in name.split())
    wanted = (initials + name + ascii_uppercase).upper()
    return next((letter for letter in wanted if letter in ascii_uppercase and letter not in taken), "*")


def _rows(grants: Sequence[Grant], groups: Mapping[str, tuple[str, int]]) -> list[tuple[str, int, int, int]]:
    """Return name, count, count wanted and bytes; the many small items of a group are one row."""
    found: dict[str, tuple[str, int, int, int]] = {}
    for grant in grants:
        group, of = groups.get(grant.item.name, (grant.item.name, grant.item.count))
        _, count, _, nbytes = found.get(group, (group, 0, of, 0))
        found[group] = group, count + grant.count, of, nbytes + grant.nbytes
    return list(found.values())


def _tier(budget: TierBudget, best: Placement, demand: Demand) -> dict[str, Any]:
    grants = best.of(budget.tier)
    groups = {
        item.name: (group.name, sum(one.count for one in group.items))
        for group in demand.device
        for item in group.items
    }
    return {
        "tier": budget.tier,
        "total_bytes": budget.total_bytes,
        "free_bytes": budget.free_bytes,
        "others_bytes": budget.others_bytes,
        "held_by": budget.held_by,
        "left_free_bytes": budget.reserve_bytes,
        "context_bytes": budget.context_bytes,
        "limit_bytes": budget.limit_bytes,
        "why": budget.why,
        "planned_bytes": sum(grant.nbytes for grant in grants),
        "items": [
            {"name": name, "count": count, "of": of, "bytes": nbytes}
            for name, count, of, nbytes in _rows(grants, groups)
        ],
    }


def _forecast(found: Forecast) -> dict[str, Any]:
    return {
        "low": _round(found.low),
        "high": _round(found.high),
        "unit": "tokens/s",
        "measured": found.measured,
        "hit_rate": [round(rate, 3) for rate in found.hits],
        "parts": [
            {"name": p.name, "bytes": round(p.nbytes), "best_s": _round(p.best_s), "worst_s": _round(p.worst_s)}
            for p in found.parts
        ],
        "basis": list(found.basis),
    }


def _runner_up(placement: Placement | None) -> dict[str, Any] | None:
    if placement is None:
        return None
    return {
        "context": placement.choice.context,
        "prefill_chunk": placement.chunk,
        "device": list(placement.choice.groups),
        "expert_slabs": placement.cache.count,
        "low": _round(placement.forecast.low),
        "high": _round(placement.forecast.high),
    }


def _round(value: float) -> float:
    return float(f"{value:.3g}")
