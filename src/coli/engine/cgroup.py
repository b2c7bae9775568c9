"""The cgroups above this process, own group first: limits of every ancestor bind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from coli.engine.mounts import Mount, probe_mounts
from coli.engine.small_files import read_small

__all__ = ["Group", "cgroups"]

_MAX_LINES = 64
_MAX_DEPTH = 64


class Group(NamedTuple):
    """One folder of a hierarchy; ``version`` 2 is the unified one. ``path``: as /proc/self/cgroup names it."""

    folder: Path
    version: int
    path: str


def cgroups(root: Path, controller: str) -> list[Group] | None:
    """List the groups that limit ``controller`` (`memory`, `cpu`), own group first; None when nobody tells them.

    A hierarchy is looked for where it is mounted. What is mounted may be a group itself: a container sees its own, and
    the groups above it only through what they leave.
    """
    text = read_small(root / "proc/self/cgroup")
    if text is None:
        return None
    mounts = probe_mounts(root)
    found: list[Group] = []
    for line in text.split("\n")[:_MAX_LINES]:
        controllers, _, path = line.partition(":")[2].partition(":")
        if not path.startswith("/"):
            continue
        if controllers == "":
            found += _walk(root, path, 2, _places(mounts, None) or [("/", "/sys/fs/cgroup")])
        elif controller in controllers.split(","):
            usual = [("/", f"/sys/fs/cgroup/{controller}"), ("/", f"/sys/fs/cgroup/{controllers}")]
            found += _walk(root, path, 1, _places(mounts, controller) or usual)
    return found


def _places(mounts: Sequence[Mount], controller: str | None) -> list[tuple[str, str]]:
    """Return (group, folder) of every mount of the unified hierarchy, or of the one that has ``controller``."""
    return [
        (mount.root, mount.point)
        for mount in mounts
        if (
            mount.fs_type == "cgroup2"
            if controller is None
            else mount.fs_type == "cgroup" and controller in mount.super_options
        )
    ]


def _walk(root: Path, path: str, version: int, places: Sequence[tuple[str, str]]) -> list[Group]:
    """List the groups from ``path`` up to the one that is mounted, at the first place that has it."""
    own = _parts(path)
    for top, point in places:
        base = root.joinpath(*_parts(point))
        if not os.path.isdir(base):  # noqa: PTH112  Path.is_dir raises for a name that is too long
            continue
        above = _parts(top)
        # A path that does not begin with the mounted group is written as another namespace sees it.
        below = own[len(above) :] if own[: len(above)] == above else own
        groups = []
        for depth in range(min(len(below), _MAX_DEPTH), -1, -1):
            name = "/" + "/".join([*above, *below[:depth]])
            groups.append(Group(base.joinpath(*below[:depth]), version, name))
        return groups
    return []


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".", "..")]
