"""How much RAM this process may still take: the machine's available memory, cut by every cgroup limit above us."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coli.engine.cgroup import cgroups

__all__ = ["HostMemory", "probe_host_memory", "resident_bytes"]

_FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}


@dataclass(frozen=True)
class HostMemory:
    """Bytes, and where the binding number comes from (a file or `psutil`)."""

    total_bytes: int
    available_bytes: int
    source: str


def probe_host_memory(root: Path = Path("/")) -> HostMemory:
    """Read memory totals and the cgroup limits (v1, v2, ancestors too) below `root`. Unreadable files are skipped."""
    import psutil

    memory = psutil.virtual_memory()
    total, available, source = int(memory.total), int(memory.available), "psutil"
    for folder, version in cgroups(root, "memory"):
        limit_file, usage_file = _FILES[version]
        limit = _read_integer(folder / limit_file)
        usage = _read_integer(folder / usage_file)
        if limit is None or usage is None or limit >= total:
            continue
        # Page cache counts as usage of the group, but is given back on demand.
        usage = max(0, usage - _reclaimable(folder / "memory.stat"))
        total = limit
        if limit - usage < available:
            available, source = max(0, limit - usage), str(folder / limit_file)
    return HostMemory(total, available, source)


def resident_bytes() -> int:
    """Return the resident set of this process in bytes."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def _read_integer(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max": no limit


def _reclaimable(path: Path) -> int:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    values = dict(line.split(None, 1) for line in lines if len(line.split()) == 2)
    keys = (
        ("inactive_file", "active_file") if "inactive_file" in values else ("total_inactive_file", "total_active_file")
    )
    return sum(int(values[k]) for k in keys if values.get(k, "").strip().isdigit())
