"""One plan for whoever asks: `coli plan` with a model that it opened, the doctor with facts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from coli.doctor.facts.settings import RunOptions
from coli.doctor.plan.audit import AuditRow, audit_rows
from coli.doctor.plan.budgets import Budgets, TierBudget, decide_budgets
from coli.doctor.plan.core import LEAST_CONTEXT, Choice, Placement, Plan, decide_plan, least_ram_bytes, place
from coli.doctor.plan.forecast import History, Speeds
from coli.doctor.plan.machine import PlanMachine
from coli.doctor.plan.subject import DRIVER_BYTES, Subject, item_bytes
from coli.engine.budget import driver_item
from coli.engine.ledger import Item
from coli.engine.run_record import RunRecord
from coli.errors import BudgetError, UsageError

__all__ = ["Audit", "Planned", "audit_run", "plan_subject"]

_MIB = 1 << 20
_RUNTIME_SLACK = 32


@dataclass(frozen=True)
class Planned:
    """A plan with what it was made of: items before the family's own, speeds, the hit rate of the last run."""

    subject: Subject
    machine: PlanMachine
    plan: Plan
    basis: tuple[Item, ...]
    speeds: Speeds
    history: History | None


@dataclass(frozen=True)
class Audit:
    """The last run planned again with what it was given. ``tokens_per_s``: of its decode, None when it had none."""

    record: RunRecord
    rows: tuple[AuditRow, ...]
    placement: Placement
    tokens_per_s: float | None


def plan_subject(
    subject: Subject, machine: PlanMachine, options: RunOptions, last_run: RunRecord | None = None
) -> Planned:
    """Plan a model for a machine. Raises UsageError for a context beyond the model's, BudgetError for what cannot run.

    Of an error the fix names the `--ram` that is enough.
    """
    most = subject.context
    if options.context is not None and most is not None and options.context > most:
        raise UsageError(
            "--ctx",
            "it must fit the model",
            observed=str(options.context),
            expected=f"1 to {most}",
            code="usage.context",
        )
    budgets = decide_budgets(
        machine.memory,
        machine.device,
        resident=machine.resident_bytes,
        ram=options.ram_bytes,
        vram=options.vram_bytes,
    )
    limit, available = budgets.ram.limit_bytes, machine.memory.available_bytes.value
    driver = item_bytes(last_run, driver_item(0).name, DRIVER_BYTES) if machine.device is not None else None
    basis = tuple(subject.basis(machine.threads, options.io, available, limit, driver))
    cached = subject.page_cached(options.io, available, limit)
    speeds = machine.speeds.with_page_cache() if cached else machine.speeds
    history = _history(last_run)
    try:
        plan = decide_plan(
            basis,
            subject.demand,
            budgets,
            speeds,
            context=options.context,
            most_context=most,
            most_chunk=options.prefill_chunk,
            history=history,
        )
    except BudgetError as error:
        context = min(LEAST_CONTEXT, most or LEAST_CONTEXT)
        # The process is measured again when it runs, and is never twice the same to the page.
        slack = subject.runtime_bytes // _RUNTIME_SLACK
        least = -(-(least_ram_bytes(basis, subject.demand, context) + slack) // _MIB)
        raise BudgetError(
            error.subject,
            error.rule,
            observed=error.observed,
            expected=error.expected,
            fix=f"`--ram {least}MiB --ctx {context}` runs it, prompts token by token; more of either needs more memory",
            code=error.code,
            data={"least_bytes": least * _MIB, "limit_bytes": limit},
        ) from None
    return Planned(subject, machine, plan, basis, speeds, history)


def _history(record: RunRecord | None) -> History | None:
    """Return the hit rate of the last run, where it says something: the cache was smaller than the model, and used."""
    if record is None or record.expert_slabs >= record.experts:
        return None
    calls = record.expert_hits + record.expert_misses
    if calls <= 10 * record.expert_slabs:
        return None
    return History(record.expert_slabs / record.experts, record.expert_hits / calls)


def audit_run(subject: Subject, machine: PlanMachine, record: RunRecord) -> Audit:
    """Plan again with what the run was given: the audit is of the arithmetic, not of the choices.

    Raises BudgetError when what ran would not fit, which is a finding of its own.
    """
    limits = {tier: int(report["limit_bytes"] or 0) for tier, report in record.tiers.items()}
    budgets = Budgets(
        TierBudget("ram", None, None, 0, limits.get("ram", 0), "the run's limit"),
        TierBudget("vram", None, None, 0, limits["vram"], "the run's limit") if "vram" in limits else None,
    )
    groups = tuple(group.name for group in subject.demand.device) if limits.get("vram") else ()
    driver = item_bytes(record, driver_item(0).name, DRIVER_BYTES) if "vram" in limits else None
    basis = subject.basis(record.threads, record.io, None, limits.get("ram", 0), driver)
    cached = subject.page_cached(record.io, machine.memory.available_bytes.value, limits.get("ram", 0))
    speeds = machine.speeds.with_page_cache() if cached else machine.speeds
    placement = place(basis, subject.demand, budgets, speeds, Choice(record.context, record.prefill_chunk, groups))
    rows = audit_rows({tier: placement.nbytes(tier) for tier in limits}, record)
    speed = record.decoded.tokens / record.decoded.seconds if record.decoded.seconds > 0 else None
    return Audit(record, rows, placement, speed)
