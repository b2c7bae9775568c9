"""Checks of the machine's memory."""

from __future__ import annotations

from collections.abc import Iterator

from coli.doctor.checks.commands import as_root, container_words
from coli.doctor.checks.finding import Check, Finding, not_known, seen
from coli.doctor.facts.machine import MachineFacts
from coli.units import render_size

__all__ = ["CHECKS"]

_TIGHT_BYTES = 4 << 30  # below this not even the dense weights of a small model and a few experts fit


def _limit(facts: MachineFacts) -> Iterator[Finding]:
    memory = facts.memory
    if memory is None:
        yield not_known("memory", "the memory", "nothing looked at it")
        return
    host = memory.host
    total, available = host.total_bytes.value, host.available_bytes.value
    if total is None or available is None:
        source = host.total_bytes.source if total is None else host.available_bytes.source
        yield not_known("memory", "how much memory there is", source)
        return
    shown = f"{render_size(available)} of {render_size(total)} available"
    evidence = (seen(f"{total} bytes", host.total_bytes), seen(f"{available} bytes", host.available_bytes))
    system = host.system_total_bytes.value
    if host.limit_at.value is not None and system is not None and total < system:
        yield Finding(
            "memory.cgroup",
            "note",
            f"{shown}: a control group allows {render_size(total)} of the machine's {render_size(system)}",
            (*evidence, seen(f"{host.source}, set at {host.limit_at.value}", host.limit_at)),
            fix=container_words("memory", facts) or "raise the limit of the container or group",
            cost="the kernel ends a process that takes more; coli keeps below by itself",
            notable=total < system // 2,
        )
    elif host.virtualised.value:
        yield Finding(
            "memory.container",
            "note",
            f"{shown}: what the container was given, not the machine",
            evidence,
            fix="give the container more memory in its configuration, if the model needs it",
        )
    else:
        yield Finding("memory.available", "ok", shown, evidence)
    if available < _TIGHT_BYTES:
        yield Finding(
            "memory.tight",
            "warn",
            f"only {render_size(available)} of memory is available",
            evidence,
            fix="end other programs, or raise the limit; `coli plan MODEL` says what a model needs",
            commands=("ps -eo rss,comm --sort=-rss | head",),
            cost="few experts stay in memory: nearly every token waits for the disk",
        )


def _swap(facts: MachineFacts) -> Iterator[Finding]:
    memory = facts.memory
    if memory is None:
        yield not_known("memory", "swap", "nothing looked at it")
        return
    host = memory.host
    total = host.swap_total_bytes
    if not total.known:
        yield not_known("memory", "swap", total.source)
        return
    if not total.value:
        yield Finding("memory.swap", "ok", "no swap; it would not be counted as memory", (seen("0 bytes", total),))
        return
    shown = f"{render_size(total.value)} of swap, which is not counted as memory"
    if host.zram.value:
        shown += "; zram lives in the same RAM"
    yield Finding("memory.swap", "ok", shown, (seen(f"{total.value} bytes", total),))


def _commit(facts: MachineFacts) -> Iterator[Finding]:
    memory = facts.memory
    if memory is None:
        yield not_known("memory", "the commit limit", "nothing looked at it")
        return
    left, available = memory.host.commit_left_bytes, memory.host.available_bytes.value
    if not left.known:
        yield not_known("memory", "whether the kernel limits what is promised", left.source)
    elif left.value is None:
        yield Finding("memory.commit", "ok", "the kernel does not limit what is promised", (seen("no limit", left),))
    elif available is not None and left.value < available:
        yield Finding(
            "memory.commit-limit",
            "warn",
            f"the kernel promises only {render_size(left.value)} more, though {render_size(available)} are available",
            (seen(f"{left.value} bytes left", left),),
            fix="let the kernel promise more than it has, or add swap",
            commands=(as_root("sysctl vm.overcommit_memory=0", facts),),
            cost="an allocation fails though memory is free",
        )
    else:
        yield Finding(
            "memory.commit", "ok", f"{render_size(left.value)} may still be promised", (seen(f"{left.value}", left),)
        )


# What is known of the system and the user makes the commands fit; without it they are told all the same.
CHECKS = (
    Check("memory.limit", (), ("memory",), "how much memory this process may take, and what limits it", _limit),
    Check("memory.swap", (), ("memory",), "swap, which is not counted", _swap),
    Check("memory.commit", (), ("memory",), "whether the kernel promises as much as there is", _commit),
)
