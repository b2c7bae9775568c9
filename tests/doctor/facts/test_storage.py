"""Storage of machines made of files: mounts, links, chains of devices down to disks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coli.doctor.facts.disks import decide_kind, slowest_kind
from coli.doctor.facts.file_systems import decide_file_system_class
from coli.doctor.facts.storage import StorageFacts, probe_storage, resolve_below
from coli.engine.mounts import Mount, mount_of, parse_mounts

BLOCK = "sys/class/block/"


def machine(root: Path, mounts: str, files: dict[str, str] | None = None, links: dict[str, str] | None = None) -> Path:
    for name, text in {"proc/self/mountinfo": mounts, **(files or {})}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name, target in (links or {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    return root


def look(root: Path, path: str) -> StorageFacts:
    (facts,) = probe_storage("model", Path(path), root)
    return facts


def mount(point: str, device: str, fs_type: str, source: str, options: str = "rw", root: str = "/") -> str:
    return f"50 1 {device} {root} {point} rw,relatime shared:1 - {fs_type} {source} {options}\n"


def test_the_longest_mount_wins_and_of_equal_ones_the_upper() -> None:
    table = parse_mounts(
        mount("/", "8:1", "ext4", "/dev/sda1")
        + mount("/data", "8:17", "xfs", "/dev/sdb1")
        + mount("/data", "8:33", "btrfs", "/dev/sdc1")
        + mount("/database", "8:49", "ext4", "/dev/sdd1")
    )
    found = {path: mount_of(path, table) for path in ("/data/m", "/data", "/database/m", "/dat", "/")}
    assert {path: one and one.source for path, one in found.items()} == {
        "/data/m": "/dev/sdc1",
        "/data": "/dev/sdc1",
        "/database/m": "/dev/sdd1",
        "/dat": "/dev/sda1",
        "/": "/dev/sda1",
    }
    assert mount_of("/x", ()) is None


def test_a_path_is_followed_through_links_of_the_machine(tmp_path: Path) -> None:
    machine(
        tmp_path,
        mount("/", "8:1", "ext4", "/dev/sda1") + mount("/big\\040disk", "259:3", "ext4", "/dev/nvme0n1p3"),
        {BLOCK + "nvme0n1/queue/rotational": "0\n", "big disk/flash/config.json": "{}"},
        {"home/me/models": "/big disk", "loop": "loop", "up": "../../big disk"},
    )
    found = look(tmp_path, "/home/me/models/flash")
    assert (found.resolved.value, found.mount_point.value, found.kind.value) == ("/big disk/flash", "/big disk", "nvme")
    assert found.devices == ("nvme0n1p3", "nvme0n1")
    assert resolve_below(tmp_path, "/up/x/../y") == "/big disk/y"
    assert resolve_below(tmp_path, "/loop/x").endswith("loop/x") or resolve_below(tmp_path, "/loop/x") == "/loop"


def test_links_of_a_hub_cache_count_where_they_lead(tmp_path: Path) -> None:
    snapshot = "hub/models--a--b/snapshots/1"
    machine(
        tmp_path,
        mount("/", "8:1", "ext4", "/dev/sda1") + mount("/far", "0:60", "nfs4", "nas:/export"),
        {"far/blobs/1": "", "hub/models--a--b/blobs/2": "", f"{snapshot}/config.json": "{}"},
        {f"{snapshot}/m1.safetensors": "/far/blobs/1", f"{snapshot}/m2.safetensors": "../../blobs/2"},
    )
    found = probe_storage("model", Path("/") / snapshot, tmp_path)
    assert [(one.mount_point.value, one.fs_class.value) for one in found] == [("/far", "remote"), ("/", "local")]


def disk(name: str, rotational: int = 0, **files: str) -> dict[str, str]:
    return {BLOCK + f"{name}/queue/rotational": str(rotational)} | {BLOCK + f"{name}/{k}": v for k, v in files.items()}


SLOW_AND_FAST = disk("nvme0n1") | disk("sda", 1)


@pytest.mark.parametrize(
    ("line", "files", "links", "kind", "devices"),
    [
        # A volume group over an encrypted partition.
        (
            mount("/m", "254:1", "ext4", "/dev/mapper/vg-data"),
            disk("nvme0n1")
            | {
                BLOCK + "dm-1/dm/name": "vg-data",
                BLOCK + "dm-1/slaves/dm-0/x": "",
                BLOCK + "dm-0/dm/name": "crypt",
                BLOCK + "dm-0/slaves/nvme0n1p2/x": "",
            },
            {},
            "nvme",
            ("dm-1", "dm-0", "nvme0n1p2", "nvme0n1"),
        ),
        # By number alone, as sysfs really has it: links into the tree of devices.
        (
            mount("/m", "8:1", "ext4", "/dev/root"),
            {
                "sys/devices/pci0/ata1/block/sda/sda1/partition": "1",
                "sys/devices/pci0/ata1/block/sda/queue/rotational": "1",
            },
            {
                "sys/dev/block/8:1": "../../devices/pci0/ata1/block/sda/sda1",
                BLOCK + "sda1": "../../devices/pci0/ata1/block/sda/sda1",
                BLOCK + "sda": "../../devices/pci0/ata1/block/sda",
            },
            "hdd",
            ("sda1", "sda"),
        ),
        # A bridge shows only in the way to the device.
        (
            mount("/m", "8:16", "exfat", "/dev/sdb"),
            {"sys/devices/pci0/usb2/2-1/host6/block/sdb/queue/rotational": "0"},
            {BLOCK + "sdb": "../../devices/pci0/usb2/2-1/host6/block/sdb"},
            "usb",
            ("sdb",),
        ),
        # btrfs has numbers of its own, and several devices.
        (
            mount("/m", "0:41", "btrfs", "/dev/nvme0n1p1", "rw,subvol=/@data", "/@data"),
            SLOW_AND_FAST
            | {
                "sys/fs/btrfs/uuid/devices/nvme0n1p1/x": "",
                "sys/fs/btrfs/uuid/devices/sda1/x": "",
                "sys/fs/btrfs/features/x": "",
            },
            {},
            "hdd",
            ("nvme0n1p1", "sda1", "nvme0n1", "sda"),
        ),
        (
            mount("/m", "0:42", "bcachefs", "/dev/nvme0n1:/dev/sda"),
            SLOW_AND_FAST,
            {},
            "hdd",
            ("nvme0n1", "sda"),
        ),
        # A file on another mount, as a block device.
        (
            mount("/m", "7:3", "squashfs", "/dev/loop3") + mount("/store", "8:0", "ext4", "/dev/sda"),
            disk("sda", 1) | {BLOCK + "loop3/loop/backing_file": "/store/m.img\n", BLOCK + "loop3/dev": "7:3\n"},
            {},
            "hdd",
            ("loop3", "sda"),
        ),
        (
            mount("/m", "252:0", "xfs", "/dev/bcache0"),
            SLOW_AND_FAST | {BLOCK + "bcache0/slaves/sda/x": "", BLOCK + "bcache0/slaves/nvme0n1/x": ""},
            {},
            "hdd",
            ("bcache0", "nvme0n1", "sda"),
        ),
        (mount("/m", "179:1", "ext4", "/dev/mmcblk0p1"), disk("mmcblk0"), {}, "mmc", ("mmcblk0p1", "mmcblk0")),
        # The older place, a partition in its disk.
        (
            mount("/m", "259:2", "ext4", "/dev/nvme1n1p2"),
            {"sys/block/nvme1n1/queue/rotational": "0", "sys/block/nvme1n1/nvme1n1p2/partition": "2"},
            {},
            "nvme",
            ("nvme1n1p2", "nvme1n1"),
        ),
        # A hypervisor's disk says that it turns; it does not know.
        (mount("/m", "254:0", "ext4", "/dev/vda"), disk("vda", 1), {}, "virtual", ("vda",)),
        (
            mount("/m", "8:32", "ext4", "/dev/sdc"),
            disk("sdc", 1, **{"device/vendor": "Msft    "}),
            {},
            "virtual",
            ("sdc",),
        ),
        (mount("/m", "8:32", "vfat", "/dev/sdc"), disk("sdc", 0, removable="1"), {}, "usb", ("sdc",)),
        (mount("/m", "8:32", "ext4", "/dev/sdc"), disk("sdc"), {}, "ssd", ("sdc",)),
        # Nobody in /sys knows the disks of a pool, and an overlay of a container names a folder of another machine.
        (mount("/m", "0:50", "zfs", "tank/models"), SLOW_AND_FAST, {}, None, ()),
        (mount("/", "0:51", "overlay", "overlay", "rw,lowerdir=/l,upperdir=/var/u,workdir=/w"), {}, {}, None, ()),
        (
            mount("/", "8:0", "ext4", "/dev/sda")
            + mount("/m", "0:51", "overlay", "overlay", "rw,lowerdir=/l,upperdir=/u,workdir=/w"),
            disk("sda", 1),
            {},
            "hdd",
            ("sda",),
        ),
        (mount("/m", "0:44", "tmpfs", "tmpfs"), {}, {}, None, ()),
    ],
)
def test_a_model_is_as_fast_as_the_slowest_disk_below_it(
    tmp_path: Path, line: str, files: dict[str, str], links: dict[str, str], kind: str | None, devices: tuple[str, ...]
) -> None:
    found = look(machine(tmp_path, line, files, links), "/m/x")
    assert (found.kind.value, found.kind.known) == (kind, kind is not None)
    assert found.devices == devices


def test_a_disk_of_unknown_kind_may_be_the_slowest() -> None:
    assert decide_kind("sdz", "", usb=False, removable=False, rotational=None).known is False
    assert slowest_kind((), "zfs").known is False


@pytest.mark.parametrize(
    ("fs_type", "source", "wanted"),
    [
        ("ext4", "/dev/sda1", "local"),
        ("zfs", "tank", "local"),
        ("fuseblk", "/dev/sda1", "local"),
        ("nfs4", "nas:/x", "remote"),
        ("cifs", "//nas/x", "remote"),
        ("smb3", "//nas/x", "remote"),
        ("9p", "C:\\", "remote"),
        ("drvfs", "C:", "remote"),
        ("virtiofs", "share", "remote"),
        ("fuse.sshfs", "me@host:", "remote"),
        ("fuse.something", "host:/x", "remote"),
        ("ceph", "mon:/", "remote"),
        ("lustre", "mgs:/x", "remote"),
        ("tmpfs", "tmpfs", "memory"),
        ("ramfs", "ramfs", "memory"),
        ("overlay", "overlay", "overlay"),
        ("fuse.mergerfs", "a", None),
        ("futurefs", "/dev/sda", None),
    ],
)
def test_class_of_a_file_system(fs_type: str, source: str, wanted: str | None) -> None:
    found = decide_file_system_class(Mount("", "/", "/", (), fs_type, source, ()))
    assert (found.value, found.known) == (wanted, wanted is not None)


def test_without_a_table_nothing_is_claimed(tmp_path: Path) -> None:
    found = look(tmp_path, "/m")
    assert not any(
        fact.known for fact in (found.mount_point, found.fs_type, found.fs_class, found.kind, found.free_bytes)
    )


def test_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(bytes(8192))
    (found,) = probe_storage("model", tmp_path)
    status = os.statvfs(tmp_path)
    assert found.total_bytes.value == status.f_frsize * status.f_blocks
    assert found.direct_reads.known
    (later,) = probe_storage("cache", tmp_path / "not" / "made" / "yet")
    assert later.mount_point == found.mount_point
    assert later.total_bytes == found.total_bytes
