"""Where a path lies: mount, file system, the disks below it, and whether they are fast."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from coli.backends.devices.facts import UNKNOWN, Fact
from coli.backends.files import is_folder
from coli.doctor.facts.disks import Disk, DiskKind, disks_below, slowest_kind
from coli.doctor.facts.file_systems import FileSystemClass, decide_file_system_class
from coli.engine.direct import probe_direct
from coli.engine.mounts import Mount, mount_of, probe_mounts

__all__ = [
    "StorageFacts",
    "probe_storage",
    "resolve_below",
]

T = TypeVar("T")

_MAX_LINKS = 40
_MAX_PARTS = 256
_MAX_NESTED = 8
_MAX_FILES = 1024
_DEADLINE_S = 2.0


@dataclass(frozen=True)
class StorageFacts:
    """One mount that a path uses. ``role``: `model`, `mirror`, `cache`, `data`. ``resolved``: the path after links.

    ``fs_class``: unknown for a file system that we do not know. ``devices``: from the mount's down to the disks, each
    before what it lies on. ``kind``: that of the slowest disk. ``direct_reads``: whether O_DIRECT works, known only on
    the real machine; ``direct_alignment_bytes``: of offset, size and address.
    """

    role: str
    path: str
    resolved: Fact[str] = UNKNOWN
    mount_point: Fact[str] = UNKNOWN
    mount_source: Fact[str] = UNKNOWN
    fs_type: Fact[str] = UNKNOWN
    fs_class: Fact[FileSystemClass] = UNKNOWN
    read_only: Fact[bool] = UNKNOWN
    devices: tuple[str, ...] = ()
    disks: tuple[Disk, ...] = ()
    kind: Fact[DiskKind] = UNKNOWN
    total_bytes: Fact[int] = UNKNOWN
    free_bytes: Fact[int] = UNKNOWN
    direct_reads: Fact[bool] = UNKNOWN
    direct_alignment_bytes: Fact[int] = UNKNOWN


def probe_storage(role: str, path: Path, root: Path = Path("/")) -> tuple[StorageFacts, ...]:
    """Look at where ``path`` lies on the machine below ``root``: one entry for each mount that its files are on.

    A hub's cache keeps links: where the linked files lie is what counts. Nothing is raised, and a file system that does
    not answer within 2 s has unknown sizes.
    """
    places = _within(lambda: _file_places(root, str(path)), [str(path)])
    mounts = probe_mounts(root)
    if not mounts and root == Path("/"):
        mounts = _partitions_of_psutil()
    by_point: dict[str | None, StorageFacts] = {}
    for place in places:
        mount = mount_of(place, mounts)
        point = mount.point if mount else None
        if point not in by_point:
            by_point[point] = _look(role, str(path), place, mount, mounts, root)
    return tuple(by_point.values())


def _look(role: str, path: str, place: str, mount: Mount | None, mounts: Sequence[Mount], root: Path) -> StorageFacts:
    resolved = Fact.of(place, "file system")
    if mount is None:
        reason: Fact[str] = Fact.unknown("/proc/self/mountinfo has no mount of it")
        return StorageFacts(role, path, resolved, reason, reason, reason)
    source = "/proc/self/mountinfo"
    devices, disks = _devices(mount, mounts, root)
    there: Fact[Any] = Fact.unknown("only the machine itself tells")
    total, free, direct, alignment = there, there, there, there
    if root == Path("/"):
        total, free = _within(lambda: _sizes(place), (Fact[int].unknown(_SILENT), Fact[int].unknown(_SILENT)))
        direct, alignment = _within(lambda: _direct(place), (Fact[bool].unknown(_SILENT), Fact[int].unknown(_SILENT)))
    return StorageFacts(
        role,
        path,
        resolved,
        Fact.of(mount.point, source),
        Fact.of(mount.source, source),
        Fact.of(mount.fs_type, source),
        decide_file_system_class(mount),
        Fact.of("ro" in (*mount.options, *mount.super_options), source),
        devices,
        disks,
        slowest_kind(disks, mount.fs_type),
        total,
        free,
        direct,
        alignment,
    )


_SILENT = f"the file system did not answer within {_DEADLINE_S:g} s"


def resolve_below(root: Path, path: str) -> str:
    """Follow the links of an absolute path as the machine below ``root`` would. What is not there is kept as it is."""
    pending = list(reversed([part for part in path.split("/") if part not in ("", ".")][:_MAX_PARTS]))
    done: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":
            done = done[:-1]
            continue
        try:
            target = os.readlink(os.path.join(root, *done, part))  # noqa: PTH115, PTH118  names may hold anything
        except (OSError, ValueError):
            done.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            done.append(part)
            break
        if target.startswith("/"):
            done = []
        pending.extend(reversed([part for part in target.split("/") if part not in ("", ".")][:_MAX_PARTS]))
    return "/" + "/".join(done)


def _file_places(root: Path, path: str) -> list[str]:
    """Return where ``path`` lies and, where its weight files are links, where those lie, each folder once."""
    absolute = path if path.startswith("/") else os.path.abspath(path)  # noqa: PTH100
    own = resolve_below(root, absolute)
    try:
        with os.scandir(os.path.join(root, own.lstrip("/"))) as entries:  # noqa: PTH118
            names = sorted(entry.name for _, entry in zip(range(_MAX_FILES), entries, strict=False))
    except (OSError, ValueError):
        return [own]
    folders: dict[str, str] = {}
    for name in names:
        if name.endswith(".safetensors"):
            place = resolve_below(root, f"{own}/{name}")
            folders.setdefault(os.path.dirname(place), place)  # noqa: PTH120
    return list(folders) or [own]


def _devices(mount: Mount, mounts: Sequence[Mount], root: Path) -> tuple[tuple[str, ...], tuple[Disk, ...]]:
    """Return the block devices below a mount; an overlay writes, and mostly reads, where its upper folder lies."""
    for _ in range(_MAX_NESTED):
        if decide_file_system_class(mount).value != "overlay":
            break
        upper = next((o[9:] for o in mount.super_options if o.startswith("upperdir=")), "")
        below = mount_of(upper, [other for other in mounts if other != mount]) if upper.startswith("/") else None
        if below is None or below.point == "/" == mount.point:
            return (), ()
        mount = below
    return disks_below(mount, lambda path: mount_of(resolve_below(root, path), mounts), root)


def _sizes(place: str) -> tuple[Fact[int], Fact[int]]:
    """Return total and free bytes; of a path that is not there yet, of the folder that will hold it."""
    import psutil

    for folder in (place, *map(str, Path(place).parents)):
        try:
            usage = psutil.disk_usage(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            return Fact.unknown(error.strerror or "statvfs"), Fact.unknown(error.strerror or "statvfs")
        return Fact.of(int(usage.total), "statvfs"), Fact.of(int(usage.free), "statvfs")
    return UNKNOWN, UNKNOWN


def _direct(place: str) -> tuple[Fact[bool], Fact[int]]:
    """Try a direct read of the first regular file in a folder: there is no other way to know."""
    file = _a_file(place)
    if file is None:
        return Fact.unknown("no file to try it with"), Fact.unknown("no file to ask about")
    support = probe_direct(file)
    alignment: Fact[int] = Fact.unknown(support.reason)
    if support.alignment_bytes is not None:
        alignment = Fact.of(support.alignment_bytes, support.source)
    return Fact.of(support.works, support.reason or "a read of one block"), alignment


def _a_file(place: str) -> Path | None:
    path = Path(place)
    try:
        names = sorted(os.listdir(path))[:_MAX_FILES] if is_folder(path) else [""]  # noqa: PTH208
        for name in sorted(names, key=lambda name: not name.endswith(".safetensors")):
            file = path / name if name else path
            status = file.stat()
            if stat.S_ISREG(status.st_mode) and status.st_size > 0:
                return file
    except OSError:
        pass
    return None


def _partitions_of_psutil() -> tuple[Mount, ...]:
    """List the mounts of a system without /proc."""
    try:
        import psutil

        return tuple(
            Mount("", "/", part.mountpoint, tuple(part.opts.split(",")), part.fstype.lower(), part.device, ())
            for part in psutil.disk_partitions()
        )
    except Exception:  # whatever fails in a foreign probe, the answer is "not known"
        return ()


def _within(ask: Callable[[], T], otherwise: T) -> T:
    """Ask a file system in a thread of its own: one whose server is gone holds whoever asks for ever."""
    answer: list[T] = []
    thread = threading.Thread(target=lambda: answer.append(ask()), daemon=True, name="coli-storage")
    thread.start()
    thread.join(_DEADLINE_S)
    return answer[0] if answer else otherwise
