"""Checks of the processor."""

from __future__ import annotations

from collections.abc import Iterator

from coli.backends.cpu_level import LEVELS, Cpu, missing_flags
from coli.doctor.checks.commands import container_words
from coli.doctor.checks.finding import Check, Evidence, Finding, not_known, seen
from coli.doctor.facts.machine import MachineFacts

__all__ = ["CHECKS"]


def _level(facts: MachineFacts) -> Iterator[Finding]:
    cpu = facts.cpu
    if cpu is None:
        yield not_known("cpu", "the processor", "nothing looked at it")
        return
    shown = f"{cpu.model.value or cpu.machine}, level {cpu.level}"
    evidence = (seen(f"levels that it runs: {', '.join(cpu.levels)}", cpu.features),)
    if cpu.level != "portable":
        yield Finding("cpu.level", "ok", shown, evidence)
        return
    if not cpu.features.known and cpu.machine == "x86_64":
        yield Finding(
            "cpu.not-known",
            "skip",
            f"not known: what instructions {cpu.model.value or 'this processor'} has; portable code is used",
            (Evidence(cpu.features.source, "cpu"),),
        )
        return
    lacks = missing_flags(Cpu(cpu.machine, cpu.features.value, cpu.levels), "x86-64-v3") or ()
    yield Finding(
        "cpu.portable-only",
        "warn",
        f"{shown}: it lacks {', '.join(lacks)}" if lacks and cpu.machine in LEVELS["x86-64-v3"] else shown,
        evidence,
        fix="in a virtual machine, pass the host's processor through (QEMU: -cpu host); else use another machine",
        cost="matrix products run many times slower than with AVX2",
    )


def _cores(facts: MachineFacts) -> Iterator[Finding]:
    cpu = facts.cpu
    if cpu is None:
        yield not_known("cpu", "the cores", "nothing looked at them")
        return
    threads, physical, quota = cpu.threads.value, cpu.physical_cores.value, cpu.quota_cores.value
    if threads is None:
        yield not_known("cpu", "how many threads are worth starting", cpu.threads.source)
        return
    shown = f"{threads} thread{'s' if threads != 1 else ''} will run"
    if physical is not None:
        shown += f", on {physical} core{'s' if physical != 1 else ''} ({cpu.logical_cores.value or '?'} logical)"
    evidence = (seen(f"{physical} physical cores", cpu.physical_cores), seen(f"{cpu.affinity.value}", cpu.affinity))
    if quota is not None and physical is not None and quota < physical:
        yield Finding(
            "cpu.quota",
            "note",
            f"{shown}: the control group allows {quota:g} of {physical} cores",
            (
                *evidence,
                seen(f"{quota:g} cores, set at {cpu.quota_at.value or 'a group that is not known'}", cpu.quota_cores),
            ),
            fix=container_words("cpu", facts) or "raise the limit of the container or group",
            cost=f"at most {quota:g} cores compute",
            notable=quota < physical / 2,
        )
        return
    yield Finding("cpu.cores", "ok", shown, evidence)


CHECKS = (
    Check("cpu.level", (), ("cpu",), "which instruction sets the processor has", _level),
    Check("cpu.cores", (), ("cpu",), "how many cores may be used", _cores),
)
