"""The cgroups above this process, own group first: limits of every ancestor bind."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["Group", "cgroups"]

_MAX_LINES = 64


class Group(NamedTuple):
    """One folder of a hierarchy; ``version`` 2 is the unified one."""

    folder: Path
    version: int


def cgroups(root: Path, controller: str) -> list[Group]:
    """List the groups that limit ``controller`` (`memory`, `cpu`), own group first; none when they cannot be read."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines[:_MAX_LINES]:
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "":
            base, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            base, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        found += [Group(base.joinpath(*parts[:depth]), version) for depth in range(len(parts), -1, -1)]
    return found
