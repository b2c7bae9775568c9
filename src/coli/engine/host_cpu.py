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

_CPUINFO = "/proc/cpuinfo"
_MAX_CPUINFO_BYTES = 16 << 20
_MAX_PROCESSORS = 1 << 16
_FIELD = re.compile(r"^([a-z ]+?)\s*:\s*(\d{1,6})\s*$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True)
class HostCpu:
    """``affinity``: logical processors that this process may run on.

    ``affinity_cores``: the physical cores that those are threads of, unknown where it is not asked or nobody tells.
    ``quota_cores``: the tightest quota of its cgroups, in cores, absent when there is none; ``quota_at``: the group
    that sets it.
    """

    physical_cores: Fact[int] = UNKNOWN
    logical_cores: Fact[int] = UNKNOWN
    affinity: Fact[int] = UNKNOWN
    quota_cores: Fact[float] = UNKNOWN
    quota_at: Fact[str] = UNKNOWN
    affinity_cores: Fact[int] = UNKNOWN


def default_threads(root: Path = Path("/")) -> int:
    """Return the number of physical cores that this process may use, at least 1."""
    return decide_threads(probe_host_cpu(root))


def decide_threads(cpu: HostCpu) -> int:
    """Return the physical cores within affinity and quota, at least 1. Pure."""
    logical = cpu.logical_cores.value or cpu.physical_cores.value or 1
    physical = min(logical, cpu.physical_cores.value or logical)
    cores = cpu.affinity_cores.value
    if cores is None:
        # An affinity mask counts logical processors; two of them share a core where SMT is on.
        cores = max(1, (cpu.affinity.value or logical) * physical // logical)
    cores = min(cores, physical)
    quota = cpu.quota_cores.value
    return max(1, min(cores, int(quota)) if quota is not None else cores)


def probe_host_cpu(root: Path = Path("/")) -> HostCpu:
    """Count cores of the machine below ``root``, on this one with psutil. Nothing is raised."""
    if root == Path("/"):
        physical, logical, allowed = _of_this_machine()
        source = "sched_getaffinity" if allowed is not None else "this system has no affinity masks"
    else:
        physical, logical = _of_cpuinfo(root)
        allowed = _of_status(root)
        source = "/proc/self/status Cpus_allowed_list" + ("" if allowed is not None else " is not there")
    affinity: Fact[int] = Fact.of(len(allowed), source) if allowed is not None else Fact.unknown(source)
    quota, at = _quota(root)
    return HostCpu(physical, logical, affinity, quota, at, _cores_of(root, allowed, logical.value))


def _cores_of(root: Path, allowed: frozenset[int] | None, logical: int | None) -> Fact[int]:
    """Count the cores that the ``allowed`` processors are threads of; asked only where some are left out.

    Linux mostly counts the first thread of every core first: 0-31 of 256 are 32 cores, 0-3,12-15 of 24 are four.
    """
    if allowed is None or logical is None or len(allowed) >= logical:
        return Fact.unknown("no processor is left out")
    cores = {core for number, core in _processors(root) if number in allowed}
    return Fact.unknown(f"{_CPUINFO} names no cores") if not cores or None in cores else Fact.of(len(cores), _CPUINFO)


def _of_this_machine() -> tuple[Fact[int], Fact[int], frozenset[int] | None]:
    try:
        import psutil

        counts = psutil.cpu_count(logical=False), psutil.cpu_count()
    except Exception:  # whatever fails in a foreign probe, the answer is "not known"
        counts = None, os.cpu_count()
    physical, logical = (Fact.of(n, "psutil") if n else Fact[int].unknown("psutil") for n in counts)
    if hasattr(os, "sched_getaffinity"):
        return physical, logical, frozenset(os.sched_getaffinity(0))
    return physical, logical, None


def _of_cpuinfo(root: Path) -> tuple[Fact[int], Fact[int]]:
    """Count the processors of /proc/cpuinfo, and their distinct cores where it names them (x86 does)."""
    processors = _processors(root)
    if not processors:
        return Fact.unknown(f"{_CPUINFO} names no processor"), Fact.unknown(f"{_CPUINFO} names no processor")
    cores = {core for _, core in processors} - {None}
    physical: Fact[int] = Fact.of(len(cores), _CPUINFO) if cores else Fact.unknown(f"{_CPUINFO} names no cores")
    return physical, Fact.of(len(processors), _CPUINFO)


def _processors(root: Path) -> list[tuple[int, tuple[str, str] | None]]:
    """Return the number of every processor of /proc/cpuinfo, and socket and core that it is a thread of."""
    found = []
    for block in (read_small(root / _CPUINFO.lstrip("/"), _MAX_CPUINFO_BYTES) or "").split("\n\n"):
        fields = dict(_FIELD.findall(block))
        if "processor" in fields:
            core = (fields.get("physical id", "0"), fields["core id"]) if "core id" in fields else None
            found.append((int(fields["processor"]), core))
    return found


def _of_status(root: Path) -> frozenset[int] | None:
    found = re.search(
        r"^Cpus_allowed_list:\s*(\S{1,4096})\s*$", read_small(root / "proc/self/status") or "", re.MULTILINE
    )
    return (parse_cpu_list(found[1]) or None) if found else None


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
