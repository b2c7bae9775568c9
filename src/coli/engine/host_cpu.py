"""How many threads are worth starting: physical cores, within affinity and the cgroup's CPU quota."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from coli.backends.devices.facts import UNKNOWN, Fact
from coli.engine.cgroup import Group, cgroups
from coli.engine.small_files import read_small

__all__ = ["HostCpu", "decide_threads", "default_threads", "parse_cpu_list", "probe_host_cpu"]

_MAX_CPUINFO_BYTES = 16 << 20
_MAX_PROCESSORS = 1 << 16
_FIELD = re.compile(r"^([a-z ]+?)\s*:\s*(\d{1,6})\s*$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True)
class HostCpu:
    """``affinity``: logical processors that this process may run on.

    ``quota_cores``: the tightest quota of its cgroups, in cores, absent when there is none; ``quota_at``: the group
    that sets it.
    """

    physical_cores: Fact[int] = UNKNOWN
    logical_cores: Fact[int] = UNKNOWN
    affinity: Fact[int] = UNKNOWN
    quota_cores: Fact[float] = UNKNOWN
    quota_at: Fact[str] = UNKNOWN


def default_threads(root: Path = Path("/")) -> int:
    """Return the number of physical cores that this process may use, at least 1."""
    return decide_threads(probe_host_cpu(root))


def decide_threads(cpu: HostCpu) -> int:
    """Return the physical cores within affinity and quota, at least 1. Pure."""
    logical = cpu.logical_cores.value or cpu.physical_cores.value or 1
    physical = min(logical, cpu.physical_cores.value or logical)
    # An affinity mask counts logical processors; two of them share a core where SMT is on.
    cores = min(physical, max(1, (cpu.affinity.value or logical) * physical // logical))
    quota = cpu.quota_cores.value
    return max(1, min(cores, int(quota)) if quota is not None else cores)


def probe_host_cpu(root: Path = Path("/")) -> HostCpu:
    """Count cores of the machine below ``root``, on this one with psutil. Nothing is raised."""
    if root == Path("/"):
        physical, logical, affinity = _of_this_machine()
    else:
        physical, logical = _of_cpuinfo(root)
        affinity = _of_status(root)
    quota, at = _quota(root)
    return HostCpu(physical, logical, affinity, quota, at)


def _of_this_machine() -> tuple[Fact[int], Fact[int], Fact[int]]:
    try:
        import psutil

        counts = psutil.cpu_count(logical=False), psutil.cpu_count()
    except Exception:  # whatever fails in a foreign probe, the answer is "not known"
        counts = None, os.cpu_count()
    physical, logical = (Fact.of(n, "psutil") if n else Fact[int].unknown("psutil") for n in counts)
    if hasattr(os, "sched_getaffinity"):
        return physical, logical, Fact.of(len(os.sched_getaffinity(0)), "sched_getaffinity")
    return physical, logical, Fact.unknown("this system has no affinity masks")


def _of_cpuinfo(root: Path) -> tuple[Fact[int], Fact[int]]:
    """Count the processors of /proc/cpuinfo, and their distinct cores where it names them (x86 does)."""
    source = "/proc/cpuinfo"
    text = read_small(root / "proc/cpuinfo", _MAX_CPUINFO_BYTES)
    if text is None:
        return Fact.unknown(f"{source} cannot be read"), Fact.unknown(f"{source} cannot be read")
    logical = 0
    cores = set()
    for block in text.split("\n\n"):
        fields = dict(_FIELD.findall(block))
        logical += "processor" in fields
        if "processor" in fields and "core id" in fields:
            cores.add((fields.get("physical id", "0"), fields["core id"]))
    if not logical:
        return Fact.unknown(f"{source} names no processor"), Fact.unknown(f"{source} names no processor")
    physical: Fact[int] = Fact.of(len(cores), source) if cores else Fact.unknown(f"{source} names no cores")
    return physical, Fact.of(logical, source)


def _of_status(root: Path) -> Fact[int]:
    source = "/proc/self/status Cpus_allowed_list"
    found = re.search(
        r"^Cpus_allowed_list:\s*(\S{1,4096})\s*$", read_small(root / "proc/self/status") or "", re.MULTILINE
    )
    count = len(parse_cpu_list(found[1])) if found else 0
    return Fact.of(count, source) if count else Fact.unknown(f"{source} is not there")


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the processors of a list as the kernel writes it, `0-3,8`; empty when it is not one. Pure."""
    found: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII)
        if ends is None:
            return frozenset()
        first, last = int(ends[1]), int(ends[2] or ends[1])
        found.update(range(first, min(last, _MAX_PROCESSORS) + 1))
    return frozenset(found)


def _quota(root: Path) -> tuple[Fact[float], Fact[str]]:
    """Return the tightest CPU quota in cores of our cgroup and its ancestors, and the group that sets it."""
    groups = cgroups(root, "cpu")
    if groups is None:
        return Fact.unknown("/proc/self/cgroup cannot be read"), Fact.unknown("/proc/self/cgroup cannot be read")
    limits = [(quota, group) for group in groups if (quota := _group_quota(group)) is not None]
    if not limits:
        text = "no cgroup limits the processor"
        return Fact.absent(text), Fact.absent(text)
    quota, group = min(limits, key=lambda one: one[0])
    source = f"cgroup{group.version} {group.path}"
    return Fact.of(quota, source), Fact.of(group.path, source)


def _group_quota(group: Group) -> float | None:
    names = ("cpu.max",) if group.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    words = " ".join(read_small(group.folder / name, 64) or "" for name in names).split()
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words) or int(words[1]) == 0:
        return None  # "max" or -1: no quota
    return int(words[0]) / int(words[1])
