"""Where a path lies: mount, file system, the disks below it, and whether they are fast."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coli.backends.devices.facts import UNKNOWN, Fact

__all__ = ["Disk", "DiskKind", "FileSystemClass", "StorageFacts", "probe_storage"]

FileSystemClass = Literal["local", "remote", "memory", "overlay"]
DiskKind = Literal["nvme", "ssd", "hdd", "usb", "mmc", "virtual"]


@dataclass(frozen=True)
class Disk:
    """A whole disk. ``kind`` `virtual`: of a hypervisor, which does not tell what is below."""

    name: str
    kind: Fact[DiskKind] = UNKNOWN
    model: Fact[str] = UNKNOWN
    logical_block_bytes: Fact[int] = UNKNOWN


@dataclass(frozen=True)
class StorageFacts:
    """One mount that a path uses. ``role``: `model`, `mirror`, `cache`, `data`. ``resolved``: the path after links.

    ``fs_class``: absent for a file system that we do not know. ``devices``: from the mount's down to the disks, each
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

    A hub's cache keeps links: where the linked files lie is what counts.
    """
    raise NotImplementedError
