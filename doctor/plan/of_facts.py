"""The doctor's plan: the one that `coli plan` makes, from facts alone. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from coli.doctor.facts.machine import MachineFacts
from coli.doctor.plan.machine import machine_of
from coli.doctor.plan.planning import Audit, Planned, audit_run, plan_subject
from coli.doctor.plan.subject import subject_of
from coli.doctor.stages import StageRow, predict_stages
from coli.errors import ColiError

__all__ = ["Outcome", "plan_facts", "stages_of"]


@dataclass(frozen=True)
class Outcome:
    """A plan; or ``refusal``, why the model cannot run so; or ``unknown``, what is missing for a plan.

    ``audit``: of the last run here.
    """

    planned: Planned | None = None
    refusal: ColiError | None = None
    unknown: str | None = None
    audit: Audit | None = None


# Checks, stages and picture ask for the plan of the same facts, one after the other.
_last: tuple[MachineFacts, Outcome] | None = None


def plan_facts(facts: MachineFacts) -> Outcome:
    """Plan the model of these facts on their machine, as a run with their options would find it."""
    global _last
    known = _last
    if known is None or known[0] is not facts:
        _last = known = facts, _plan(facts)
    return known[1]


def _plan(facts: MachineFacts) -> Outcome:
    if facts.checkpoint is None or facts.settings is None:
        return Outcome(unknown="nothing looked at a model")
    if facts.memory is None or facts.cpu is None:
        return Outcome(unknown="nothing looked at memory and processor")
    options, last_run = facts.settings.run, facts.last_run
    try:
        subject = subject_of(facts.checkpoint, last_run)
    except (ColiError, KeyError, ValueError) as error:  # what is wrong with the files stands in their own section
        return Outcome(unknown=f"its tensors do not fit its config ({error})")
    if isinstance(subject, str):
        return Outcome(unknown=subject)
    try:
        machine = machine_of(facts, options.threads, options.gpu)
        audit = audit_run(subject, machine, last_run) if last_run is not None else None
        planned = plan_subject(subject, machine, options, last_run)
    except ColiError as error:
        return Outcome(refusal=error)
    return Outcome(planned, audit=audit)


def stages_of(facts: MachineFacts) -> tuple[StageRow, ...]:
    """Return where each stage of the model will run; none where that is not known, or the model cannot run."""
    if facts.backends is None or facts.stages is None:
        return ()
    outcome = plan_facts(facts)
    if outcome.refusal is not None:
        return ()
    if outcome.planned is None:  # then every weight counts as one that fits
        return predict_stages(facts.backends, facts.stages)
    copies = frozenset(grant.item.name for grant in outcome.planned.plan.best.of("vram"))
    return predict_stages(facts.backends, facts.stages, outcome.planned.subject.demand, copies)
