"""How many threads are worth starting: physical cores, within affinity and the cgroup's CPU quota."""

from __future__ import annotations

import os
from pathlib import Path

from coli.engine.cgroup import cgroups

__all__ = ["default_threads"]


def default_threads(root: Path = Path("/")) -> int:
    """Return the number of physical cores that this process may use, at least 1."""
    import psutil

    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    logical = psutil.cpu_count() or physical
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    # An affinity mask counts logical processors; two of them share a core where SMT is on.
    cores = min(physical, max(1, allowed * physical // logical))
    quota = _quota(root)
    return max(1, min(cores, int(quota)) if quota is not None else cores)


def _quota(root: Path) -> float | None:
    """Return the tightest CPU quota in cores of our cgroup and its ancestors (v2, and v1 where it is mounted)."""
    tightest: float | None = None
    for folder, version in cgroups(root, "cpu"):
        files = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota = _pair(*(folder / name for name in files))
        if quota is not None:
            tightest = quota if tightest is None else min(tightest, quota)
    return tightest


def _pair(*files: Path) -> float | None:
    try:
        words = " ".join(f.read_text(encoding="ascii", errors="replace") for f in files).split()
    except OSError:
        return None
    if len(words) != 2 or not all(w.isdigit() for w in words) or int(words[1]) == 0:
        return None  # "max" or -1: no quota
    return int(words[0]) / int(words[1])
