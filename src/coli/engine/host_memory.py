"""How much RAM this process may still take: the machine's available memory, cut by every cgroup limit above us."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coli.backends.devices.facts import UNKNOWN, Fact
from coli.engine.cgroup import Group, cgroups
from coli.engine.mounts import probe_mounts
from coli.engine.small_files import read_small, read_whole_number
from coli.errors import BudgetError
from coli.units import parse_size, render_size

__all__ = [
    "GroupMemory",
    "HostMemory",
    "SwapArea",
    "decide_host_memory",
    "decide_limit",
    "probe_host_memory",
    "ram_budget_bytes",
    "resident_bytes",
]

# Left alone when no --ram says otherwise: other programs breathe, and reads go through the page cache.
_LEFT_FREE_SHARE = 16
_LEFT_FREE_LEAST_BYTES = 512 << 20

_MEMINFO_LINE = re.compile(r"^([A-Za-z_()0-9]+):\s+(\d{1,15})(?: kB)?\s*$", re.MULTILINE | re.ASCII)
_STAT_LINE = re.compile(r"^([a-z_]+) (\d{1,19})$", re.MULTILINE | re.ASCII)
_SWAP_LINE = re.compile(
    r"^(\S+)\s+(partition|file)\s+(\d{1,15})\s+(\d{1,15})\s+(-?\d{1,6})\s*$", re.MULTILINE | re.ASCII
)
_MAX_SWAP_AREAS = 64


@dataclass(frozen=True)
class GroupMemory:
    """A cgroup with a limit. ``reclaimable_bytes``: page cache in ``used_bytes`` that is given back on demand."""

    path: str
    version: int
    limit_bytes: int
    used_bytes: int | None
    reclaimable_bytes: int

    @property
    def available_bytes(self) -> int:
        """Return what may still be taken below this limit; all of it when the use is not known."""
        used = max(0, (self.used_bytes or 0) - self.reclaimable_bytes)
        return max(0, self.limit_bytes - used)


@dataclass(frozen=True)
class SwapArea:
    """One line of /proc/swaps. ``zram``: compressed memory, which lives in the same RAM."""

    name: str
    total_bytes: int
    used_bytes: int
    zram: bool


@dataclass(frozen=True)
class HostMemory:
    """Bytes. ``total_bytes`` and ``available_bytes`` are what this process has: the limits of its cgroups are in them.

    ``source``: `meminfo`, `cgroup2`, `cgroup1` or `psutil`: what sets the limit; ``limit_at``: the group that binds,
    absent when none does. ``system_total_bytes`` and ``system_available_bytes``: of the machine. Swap is no part of
    any of them. ``overcommit``: vm.overcommit_memory; 2 makes ``commit_limit_bytes`` a limit. ``virtualised``:
    lxcfs writes /proc/meminfo, so it shows the container's limit.
    """

    total_bytes: Fact[int] = UNKNOWN
    available_bytes: Fact[int] = UNKNOWN
    source: str = "meminfo"
    limit_at: Fact[str] = UNKNOWN
    system_total_bytes: Fact[int] = UNKNOWN
    system_available_bytes: Fact[int] = UNKNOWN
    groups: tuple[GroupMemory, ...] = ()
    swap_total_bytes: Fact[int] = UNKNOWN
    swap_free_bytes: Fact[int] = UNKNOWN
    swap_areas: Fact[tuple[SwapArea, ...]] = UNKNOWN
    commit_limit_bytes: Fact[int] = UNKNOWN
    committed_bytes: Fact[int] = UNKNOWN
    overcommit: Fact[int] = UNKNOWN
    virtualised: Fact[bool] = UNKNOWN

    @property
    def zram(self) -> Fact[bool]:
        """Return whether some of the swap lives in RAM."""
        areas = self.swap_areas
        if areas.value is None:
            return Fact.unknown(areas.source)
        return Fact.of(any(area.zram for area in areas.value), areas.source)

    @property
    def commit_left_bytes(self) -> Fact[int]:
        """Return what may still be allocated where the kernel promises no more than it has; absent elsewhere."""
        if not self.overcommit.known:
            return Fact.unknown(self.overcommit.source)
        if self.overcommit.value != 2:
            return Fact.absent(f"{self.overcommit.source} is {self.overcommit.value}")
        limit, committed = self.commit_limit_bytes.value, self.committed_bytes.value
        if limit is None or committed is None:
            return Fact.unknown("/proc/meminfo CommitLimit, Committed_AS")
        return Fact.of(max(0, limit - committed), "/proc/meminfo CommitLimit - Committed_AS")


def ram_budget_bytes(memory: HostMemory, resident: int) -> int:
    """Return the bytes that an engine may fill without `--ram`. Pure.

    ``resident``: what this process holds already, part of the budget and of what is not available any more. Some is
    left free. Raises BudgetError when nobody says how much memory there is.
    """
    total, available = memory.total_bytes.value, memory.available_bytes.value
    if total is None or available is None:
        raise BudgetError(
            "the machine's memory",
            "how much is available must be known",
            observed=f"{memory.total_bytes.source}; {memory.available_bytes.source}",
            fix="give --ram",
            code="budget.unknown-memory",
        )
    commit = memory.commit_left_bytes.value
    if commit is not None:
        available = min(available, commit)
    left_free = max(_LEFT_FREE_LEAST_BYTES, total // _LEFT_FREE_SHARE)
    # Of a machine that is imagined all may be available, and this process is not in it.
    return max(0, min(available + resident, total) - left_free)


def decide_limit(asked: int | str | None, memory: HostMemory, resident: int) -> tuple[int, tuple[str, ...]]:
    """Return the limit of an engine's RAM in bytes and notes for the user. Pure.

    ``asked``: bytes or a size; None takes `ram_budget_bytes`. What was planned when more was free is cut to what is
    there now: a smaller cache answers slower, and a killed process does not answer.
    """
    if asked is None:
        return ram_budget_bytes(memory, resident), ()
    wanted = parse_size(asked, "--ram") if isinstance(asked, str) else asked
    available = memory.available_bytes.value
    if available is None or wanted <= available + resident:
        return wanted, ()
    limit = ram_budget_bytes(memory, resident)
    note = (
        f"--ram {render_size(wanted)} is not free now: {render_size(limit)} is used ({memory.available_bytes.source})"
    )
    return limit, (note,)


def resident_bytes() -> int:
    """Return the resident set of this process in bytes."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def probe_host_memory(root: Path = Path("/")) -> HostMemory:
    """Read what the kernel of the machine below ``root`` says of its memory, and the limits of our cgroups.

    On this machine psutil is asked where there is no /proc. What cannot be read is not known; nothing is raised.
    """
    text = read_small(root / "proc/meminfo")
    if text is None and root == Path("/"):
        return _of_psutil()
    fields = {name: int(value) * 1024 for name, value in _MEMINFO_LINE.findall(text or "")}
    return decide_host_memory(
        fields,
        _probe_groups(root),
        read_small(root / "proc/swaps"),
        read_whole_number(root / "proc/sys/vm/overcommit_memory"),
        [mount.fs_type for mount in probe_mounts(root) if mount.point == "/proc/meminfo"],
    )


def decide_host_memory(
    meminfo: Mapping[str, int],
    groups: Sequence[GroupMemory] | None,
    swaps: str | None,
    overcommit: int | None,
    over_meminfo: Sequence[str],
) -> HostMemory:
    """Put the parts together. Pure.

    ``meminfo``: its fields in bytes. ``groups``: those with a limit, own group first; None when nobody tells them.
    ``swaps``: text of /proc/swaps. ``over_meminfo``: file systems mounted on /proc/meminfo.
    """
    system_total, system_available = _field(meminfo, "MemTotal"), _available(meminfo)
    total, available, source = system_total, system_available, "meminfo"
    limit_at: Fact[str] = Fact.absent("no cgroup limits the memory")
    if groups is None:
        groups, limit_at = (), Fact.unknown("/proc/self/cgroup cannot be read")
    # A limit as large as the machine is none; where the machine's size is not known every limit counts.
    binding = [group for group in groups if system_total.value is None or group.limit_bytes < system_total.value]
    if binding:
        least = min(binding, key=lambda group: group.limit_bytes)
        tightest = min(binding, key=lambda group: (group.available_bytes, group.limit_bytes))
        source = f"cgroup{tightest.version}"
        total = Fact.of(least.limit_bytes, f"cgroup{least.version} {least.path}")
        limit_at = Fact.of(tightest.path, source)
        if system_available.value is None or tightest.available_bytes < system_available.value:
            available = Fact.of(tightest.available_bytes, f"{source} {tightest.path}")
    return HostMemory(
        total,
        available,
        source,
        limit_at,
        system_total,
        system_available,
        tuple(groups),
        _field(meminfo, "SwapTotal"),
        _field(meminfo, "SwapFree"),
        Fact.unknown("/proc/swaps cannot be read") if swaps is None else Fact.of(_swap_areas(swaps), "/proc/swaps"),
        _field(meminfo, "CommitLimit"),
        _field(meminfo, "Committed_AS"),
        Fact.unknown("vm.overcommit_memory cannot be read")
        if overcommit is None
        else Fact.of(overcommit, "vm.overcommit_memory"),
        Fact.of(any("lxcfs" in fs_type for fs_type in over_meminfo), "/proc/self/mountinfo"),
    )


def _field(meminfo: Mapping[str, int], name: str) -> Fact[int]:
    source = f"/proc/meminfo {name}"
    return Fact.of(meminfo[name], source) if name in meminfo else Fact.unknown(f"{source} is not there")


def _available(meminfo: Mapping[str, int]) -> Fact[int]:
    """Return MemAvailable, and what comes near it on kernels before 3.14, which do not tell."""
    if "MemAvailable" in meminfo or "MemFree" not in meminfo:
        return _field(meminfo, "MemAvailable")
    # Half of the page cache: the kernel, too, takes some of it as needed by those who run.
    cache = meminfo.get("Cached", 0) - meminfo.get("Shmem", 0)
    if "Inactive(file)" in meminfo:
        cache = meminfo["Inactive(file)"] + meminfo.get("Active(file)", 0)
    names = "MemFree and half of the page cache: it has no MemAvailable"
    return Fact.of(meminfo["MemFree"] + max(0, cache) // 2, f"/proc/meminfo {names}")


def _swap_areas(text: str) -> tuple[SwapArea, ...]:
    return tuple(
        SwapArea(name, int(size) * 1024, int(used) * 1024, "zram" in name)
        for name, _, size, used, _ in _SWAP_LINE.findall(text)[:_MAX_SWAP_AREAS]
    )


def _probe_groups(root: Path) -> list[GroupMemory] | None:
    groups = cgroups(root, "memory")
    if groups is None:
        return None
    found = []
    for position, group in enumerate(groups):
        memory = _probe_group(group)
        # Version 1 could be told not to count children; then a limit binds only its own group's processes.
        if position and group.version == 1 and read_whole_number(group.folder / "memory.use_hierarchy") == 0:
            continue
        if memory is not None:
            found.append(memory)
    return found


def _probe_group(group: Group) -> GroupMemory | None:
    """Return a group's memory, None when it has no limit (version 1 says so by a number near 2**63)."""
    folder = group.folder
    stat = {name: int(value) for name, value in _STAT_LINE.findall(read_small(folder / "memory.stat") or "")}
    if group.version == 2:
        # Above memory.high the kernel does not kill, it stops the process until memory is given back.
        limits = [read_whole_number(folder / name) for name in ("memory.max", "memory.high")]
        used = read_whole_number(folder / "memory.current")
        reclaimable = stat.get("inactive_file", 0)
    else:
        # Ancestors that a container does not see are in hierarchical_memory_limit.
        limits = [read_whole_number(folder / "memory.limit_in_bytes"), stat.get("hierarchical_memory_limit")]
        used = read_whole_number(folder / "memory.usage_in_bytes")
        reclaimable = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    # Only the inactive list: what is on the active one was read more than once, by someone who will want it again.
    known = [limit for limit in limits if limit is not None and limit < 1 << 60]
    return GroupMemory(group.path, group.version, min(known), used, reclaimable) if known else None


def _of_psutil() -> HostMemory:
    """Ask psutil, which knows the ways of the systems without /proc."""
    try:
        import psutil

        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    except Exception as error:  # whatever fails in a foreign probe, the answer is "not known"
        return HostMemory(Fact.unknown(f"psutil: {error}"), Fact.unknown(f"psutil: {error}"), "psutil")
    total, available = Fact.of(int(memory.total), "psutil"), Fact.of(int(memory.available), "psutil")
    return HostMemory(
        total,
        available,
        "psutil",
        Fact.absent("a system without cgroups"),
        total,
        available,
        swap_total_bytes=Fact.of(int(swap.total), "psutil"),
        swap_free_bytes=Fact.of(int(swap.free), "psutil"),
    )
