"""Checks of the budget: whether the model fits the machine, from the plan that `coli plan` makes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from coli.doctor.checks.finding import Check, Evidence, Finding, not_known
from coli.doctor.facts.machine import MachineFacts
from coli.errors import BudgetError, ColiError
from coli.settings import find
from coli.units import render_size

if TYPE_CHECKING:
    from coli.doctor.plan.budgets import TierBudget
    from coli.doctor.plan.of_facts import Outcome
    from coli.doctor.plan.planning import Planned

__all__ = ["CHECKS"]

# What other programs may hold of a card without being named: a desktop.
_OTHERS_BYTES = 1 << 30


def _outcome(facts: MachineFacts) -> Outcome:
    from coli.doctor.plan.of_facts import plan_facts  # with a model only: it stands on the engine's modules

    return plan_facts(facts)


def _model(facts: MachineFacts) -> str:
    return shlex.quote(facts.model or "MODEL")


def _fit(facts: MachineFacts) -> Iterator[Finding]:
    outcome = _outcome(facts)
    if outcome.refusal is not None:
        yield _refused(outcome.refusal, facts)
        return
    planned = outcome.planned
    if planned is None:
        yield not_known("budget", "whether the model fits", outcome.unknown or "nothing was planned")
        return
    best, ram = planned.plan.best, planned.plan.budgets.ram
    cache, forecast = best.cache, best.forecast
    guess = "" if forecast.measured else ", a guess"
    yield Finding(
        "budget.fits",
        "ok",
        f"{render_size(best.nbytes('ram'))} of {render_size(ram.limit_bytes)} RAM hold {cache.count} of "
        f"{cache.item.count} experts, with a context of {best.choice.context}: {forecast.low:.3g} to "
        f"{forecast.high:.3g} tokens/s{guess} (`coli plan {_model(facts)}` shows all)",
        (Evidence(planned.plan.binds, "plan"), *(Evidence(line, "plan") for line in forecast.basis)),
    )
    yield from _short(planned, facts)
    traffic = planned.subject.demand.traffic
    if cache.count < min(traffic.experts, cache.item.count):
        yield Finding(
            "budget.tight",
            "warn",
            f"RAM holds {cache.count} experts, and one token asks for {traffic.experts}",
            (Evidence(ram.why, "plan"),),
            fix="end other programs, or ask for a shorter context (--ctx); more RAM is what helps",
            commands=("ps -eo rss,comm --sort=-rss | head",) if facts.here else (),
            cost="nothing stays in memory until the next token: all its experts are read from the disk again",
        )


def _short(planned: Planned, facts: MachineFacts) -> Iterator[Finding]:
    """Say so when not even the context fits that a run takes by itself."""
    context, usual = planned.plan.best.choice.context, min(find("context").default, planned.subject.context or 1 << 62)
    if facts.settings is None or facts.settings.run.context is not None or context >= usual:
        return
    yield Finding(
        "budget.context",
        "warn",
        f"the memory is enough for a context of {context}, not for the {usual} that a run takes by itself",
        (Evidence(planned.plan.budgets.ram.why, "plan"),),
        fix="say so when you run it",
        commands=(f"coli run {_model(facts)} --ctx {context}",),
        cost="without --ctx a run refuses to start",
    )


def _refused(error: ColiError, facts: MachineFacts) -> Finding:
    evidence = (Evidence(error.observed, "plan"),) if error.observed else ()
    if not isinstance(error, BudgetError) or "least_bytes" not in error.data:
        return Finding(
            error.code or "budget.not-known",
            "fail",
            f"{error.subject}: {error.rule}",
            evidence,
            fix=error.fix,
            cost="the model cannot run so",
        )
    least, limit = error.data["least_bytes"], error.data["limit_bytes"]
    if facts.settings is not None and facts.settings.run.ram_bytes is not None:
        fix = "give it more with --ram, if that much is free; this is the least that runs"
        commands: tuple[str, ...] = (f"coli run {_model(facts)} --ram {least >> 20}MiB --ctx 512 --prefill-chunk 1",)
    else:
        fix = "end other programs, raise the limit of a container, or take a machine with more memory"
        commands = ("ps -eo rss,comm --sort=-rss | head",) if facts.here else ()
    return Finding(
        "budget.too-small",
        "fail",
        f"the model does not fit: it needs at least {render_size(least)} of RAM, and {render_size(limit)} may be taken",
        evidence,
        fix=fix,
        commands=commands,
        cost="the model cannot run",
    )


def _gpu(facts: MachineFacts) -> Iterator[Finding]:
    outcome = _outcome(facts)
    planned = outcome.planned
    if planned is None:
        yield not_known("budget", "what lies on a GPU", outcome.unknown or "the model does not fit the RAM")
        return
    device, tier = planned.machine.device, planned.plan.budgets.vram
    if device is None:
        yield Finding("budget.no-gpu", "skip", "no GPU computes: nothing is copied to one")
        return
    if tier is None:
        yield Finding(
            "budget.unified",
            "ok",
            f"{device.name} computes in the machine's own memory: weights are not copied, and the CPU serves products",
        )
        return
    demand = planned.subject.demand
    held, wanted = len(planned.plan.best.of("vram")), sum(len(group.items) for group in demand.device)
    shown = (
        f"{device.name}: {render_size(planned.plan.best.nbytes('vram'))} of {render_size(tier.limit_bytes)} VRAM hold "
        f"{'all' if held == wanted else held} of {wanted} weights, "
        f"{render_size(planned.plan.best.nbytes('vram'))} of {render_size(demand.device_bytes)}"
    )
    evidence = _of_tier(tier)
    if held:
        yield Finding("budget.gpu", "ok", shown, evidence)
    else:
        yield Finding(
            "budget.gpu-idle",
            "warn",
            f"no weight fits the VRAM budget of {render_size(tier.limit_bytes)}: {device.name} computes nothing",
            evidence,
            fix="leave --vram and COLI_VRAM unset"
            if facts.settings is not None and facts.settings.run.vram_bytes is not None
            else "end other programs on the GPU",
            commands=("nvidia-smi",),
            cost="every product runs on the CPU",
        )
    yield from _others(planned, tier, device.name, held < wanted)


def _others(planned: Planned, tier: TierBudget, name: str, short: bool) -> Iterator[Finding]:
    if tier.total_bytes is None or tier.free_bytes is None or not short:
        return
    others = tier.total_bytes - tier.free_bytes
    if others < _OTHERS_BYTES:
        return
    missing = planned.subject.demand.device_bytes - planned.plan.best.nbytes("vram")
    yield Finding(
        "budget.gpu-taken",
        "warn",
        f"others hold {render_size(others)} of {name}'s {render_size(tier.total_bytes)}",
        _of_tier(tier),
        fix="end what else computes on it",
        commands=("nvidia-smi",),
        cost=f"{render_size(min(others, missing))} of weights that could lie there are read from RAM",
    )


def _of_tier(tier: TierBudget) -> tuple[Evidence, ...]:
    known = tier.total_bytes is not None and tier.free_bytes is not None
    free = f"{render_size(tier.free_bytes or 0)} of {render_size(tier.total_bytes or 0)} free; " if known else ""
    return (Evidence(f"{free}{tier.why}", "plan"),)


def _last_run(facts: MachineFacts) -> Iterator[Finding]:
    audit = _outcome(facts).audit
    if audit is None:
        yield Finding("budget.no-run", "skip", "no run of this model is on record, so the plan was not compared")
        return
    above = [row for row in audit.rows if row.verdict == "above"]
    found = [(row.tier, row.planned_bytes, row.planned_bytes + row.difference_bytes) for row in audit.rows]
    shown = ", ".join(
        f"{tier} {render_size(taken)} of {render_size(planned)} planned" for tier, planned, taken in found
    )
    if not above:
        yield Finding("budget.agrees", "ok", f"the last run took what its plan says: {shown}")
        return
    yield Finding(
        "budget.differs",
        "warn",
        f"the last run took more than its plan says: {shown}",
        tuple(Evidence(f"{row.tier}: {row.difference_bytes:+d} bytes", "record of the last run") for row in above),
        fix="run it with less --ram, and report this: the plan should have known",
        commands=(f"coli plan {_model(facts)} --audit",),
        cost="a run may take more memory than it was given",
    )


_READS = (
    "memory",
    "cpu",
    "storage",
    "devices",
    "backends",
    "checkpoint",
    "settings",
    "measured",
    "last_run",
)

CHECKS = (
    Check(
        "budget.ram",
        ("checkpoint.roles",),
        _READS,
        "whether the model fits the memory, and how fast it will be",
        _fit,
        model=True,
    ),
    Check("budget.vram", ("checkpoint.roles",), _READS, "which weights lie in a GPU's memory", _gpu, model=True),
    Check(
        "budget.last-run",
        ("checkpoint.roles",),
        _READS,
        "whether the last run took what was planned",
        _last_run,
        model=True,
    ),
)
