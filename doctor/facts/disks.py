"""The disks below a mount: through partitions, device mapper, md, bcache and loop devices down to what is real."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coli.backends.devices.facts import UNKNOWN, Fact
from coli.engine.mounts import Mount
from coli.engine.small_files import read_small, read_whole_number

__all__ = ["Disk", "DiskKind", "decide_kind", "disks_below", "slowest_kind"]

DiskKind = Literal["nvme", "ssd", "hdd", "usb", "mmc", "virtual"]

# The slowest last, as a model streams from them: a disk that turns reads at a few hundred MB/s and seeks.
_SLOWNESS: tuple[DiskKind, ...] = ("nvme", "ssd", "virtual", "mmc", "usb", "hdd")
# Disks of a hypervisor or a cloud call themselves so; whether they turn they do not know.
_VIRTUAL_NAMES = re.compile(r"^(vd|xvd|nbd|rbd|ubd|pmem|dasd)[a-z0-9]")
_VIRTUAL_MODELS = re.compile(
    r"virtual|vmware|qemu|vbox|msft|persistentdisk|elastic block store|amazon ec2|xen|parallels", re.IGNORECASE
)
_MAX_DEVICES = 256
_MAX_ENTRIES = 4096


@dataclass(frozen=True)
class Disk:
    """A whole disk. ``kind`` `virtual`: of a hypervisor, which does not tell what is below."""

    name: str
    kind: Fact[DiskKind] = UNKNOWN
    model: Fact[str] = UNKNOWN
    logical_block_bytes: Fact[int] = UNKNOWN


def disks_below(
    mount: Mount, mount_of: Callable[[str], Mount | None], root: Path
) -> tuple[tuple[str, ...], tuple[Disk, ...]]:
    """Return the devices from the mount's down, and the disks among them. ``mount_of``: the mount of a path."""
    # An abridged tree may hold only the older of the two places.
    block = next((b for b in (root / "sys/class/block", root / "sys/block") if os.path.isdir(b)), root)  # noqa: PTH112
    pending = list(_of_mount(mount, block, root))
    devices: list[str] = []
    disks: list[Disk] = []
    while pending and len(devices) < _MAX_DEVICES:
        name = pending.pop(0)
        if name in devices:
            continue
        devices.append(name)
        below = _names(block / name / "slaves")
        whole = _whole_disk(name, block)
        backing = (read_small(block / name / "loop/backing_file", 4096) or "").strip()
        if below:
            pending.extend(below)
        elif whole is not None:
            pending.append(whole)
        elif backing.startswith("/"):
            other = mount_of(backing.removesuffix(" (deleted)"))
            pending.extend(_of_mount(other, block, root) if other else ())
        else:
            disks.append(_probe_disk(name, block / name))
    return tuple(devices), tuple(disks)


def slowest_kind(disks: Sequence[Disk], fs_type: str) -> Fact[DiskKind]:
    """Return the kind of the slowest disk; unknown when one that is not known may be slower. Pure."""
    if not disks:
        return Fact.unknown(f"a file system {fs_type} whose disks the system does not tell")
    known = [(_SLOWNESS.index(disk.kind.value), disk.kind) for disk in disks if disk.kind.value]
    slowest = max(known, key=lambda one: one[0], default=None)
    unknown = next((disk for disk in disks if disk.kind.value is None), None)
    if unknown is not None and (slowest is None or slowest[0] < _SLOWNESS.index("usb")):
        return unknown.kind
    return slowest[1] if slowest else UNKNOWN


def _of_mount(mount: Mount, block: Path, root: Path) -> tuple[str, ...]:
    """Return the names of the block devices that a file system lies on, as the kernel calls them."""
    if mount.device and not mount.device.startswith("0:"):
        name = _by_number(mount.device, block, root)
        if name is not None:
            return (name,)
    # btrfs, zfs and others have numbers of their own; the source may name a device, or several (bcachefs).
    parts = mount.source.split(":") if mount.source.startswith("/dev/") else []
    names = tuple(name for part in parts if (name := _by_path(part, mount.device, block, root)))
    if mount.fs_type == "btrfs" and len(names) == 1:
        return next((every for every in _btrfs(root) if names[0] in every), names)
    return names


def _by_number(device: str, block: Path, root: Path) -> str | None:
    link = root / "sys/dev/block" / device
    with contextlib.suppress(OSError, ValueError):
        return os.path.basename(os.readlink(link))  # noqa: PTH115, PTH119
    for name in _names(block):
        if (read_small(block / name / "dev", 64) or "").strip() == device:
            return name
    return None


def _by_path(path: str, device: str, block: Path, root: Path) -> str | None:
    """Return the kernel's name of a device node; /dev/mapper and /dev/disk hold links or copies of nodes."""
    try:
        target = os.readlink(os.path.join(root, path.lstrip("/")))  # noqa: PTH115, PTH118
        return os.path.basename(target) or None  # noqa: PTH119
    except (OSError, ValueError):
        pass
    name = path.rpartition("/")[2]
    if os.path.exists(block / name) or _whole_disk(name, block):  # noqa: PTH110
        return name
    if path.startswith("/dev/mapper/"):
        for other in _names(block):
            if (read_small(block / other / "dm/name", 256) or "").strip() == name:
                return other
        minor = device.partition(":")[2]
        return f"dm-{minor}" if minor.isdigit() and not device.startswith("0:") else None
    if path.startswith("/dev/") and path.count("/") == 3:  # /dev/group/volume is LVM's
        mapped = "-".join(part.replace("-", "--") for part in path.split("/")[2:])
        return _by_path(f"/dev/mapper/{mapped}", device, block, root)
    return name or None


def _btrfs(root: Path) -> list[tuple[str, ...]]:
    folder = root / "sys/fs/btrfs"
    return [devices for name in _names(folder) if (devices := tuple(_names(folder / name / "devices")))]


def _whole_disk(name: str, block: Path) -> str | None:
    """Return the disk that a partition is of, None for what is no partition."""
    if not name or "/" in name:
        return None
    own = block / name
    if read_small(own / "partition", 64) is not None:
        parent = os.path.basename(os.path.dirname(os.path.realpath(own)))  # noqa: PTH119, PTH120
        if parent != "block" and name.startswith(parent):
            return parent
    elif os.path.exists(own):  # noqa: PTH110
        return None
    # Where a tree holds no links, a partition is a folder in its disk's.
    for other in _names(block):
        if other != name and name.startswith(other) and os.path.exists(block / other / name / "partition"):  # noqa: PTH110
            return other
    parts = re.fullmatch(r"((?:nvme\d+n|mmcblk|loop|nbd|md)\d+)p\d+|((?:sd|hd|vd|xvd)[a-z]+)\d+", name, re.ASCII)
    return (parts[1] or parts[2]) if parts else None


def _probe_disk(name: str, folder: Path) -> Disk:
    texts = [(read_small(folder / "device" / part, 256) or "").strip() for part in ("vendor", "model")]
    model = " ".join(text for text in texts if text and not text.startswith("0x"))  # virtio: a number
    # The kernel names all controllers on the way in the link of the device.
    place = os.path.realpath(folder)
    with contextlib.suppress(OSError, ValueError):
        place += " " + os.readlink(folder)  # noqa: PTH115
    hint = (read_small(folder / "device/subsystem-hint", 64) or "").strip()
    size = read_whole_number(folder / "queue/logical_block_size")
    return Disk(
        name,
        decide_kind(
            name,
            model,
            usb=hint == "usb" or re.search(r"/usb\d", place) is not None,
            removable=read_whole_number(folder / "removable") == 1,
            rotational=read_whole_number(folder / "queue/rotational"),
        ),
        Fact.of(model, f"/sys/class/block/{name}/device") if model else Fact.unknown("the disk names no model"),
        Fact.of(size, f"/sys/class/block/{name}/queue") if size else Fact.unknown("no logical_block_size"),
    )


def decide_kind(name: str, model: str, *, usb: bool, removable: bool, rotational: int | None) -> Fact[DiskKind]:
    """Say what a disk is. Pure. ``rotational``: what the kernel says, 0 or 1, None when it does not."""
    source = f"/sys/class/block/{name}"
    if usb or (removable and name.startswith("sd")):
        return Fact.of("usb", source)
    if _VIRTUAL_NAMES.match(name) or _VIRTUAL_MODELS.search(model):
        return Fact.of("virtual", source)
    if name.startswith("nvme"):
        return Fact.of("nvme", source)
    if name.startswith("mmcblk"):
        return Fact.of("mmc", source)
    if rotational is None:
        return Fact.unknown(f"{source}/queue/rotational is not there")
    return Fact.of("hdd" if rotational else "ssd", f"{source}/queue/rotational")


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False))
    except (OSError, ValueError):
        return []
