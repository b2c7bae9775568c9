"""Which file systems keep their bytes on a disk of this machine, and which do not."""

from __future__ import annotations

from typing import Literal

from coli.backends.devices.facts import Fact
from coli.engine.mounts import Mount

__all__ = ["FileSystemClass", "decide_file_system_class"]

FileSystemClass = Literal["local", "remote", "memory", "overlay"]

_TYPES: dict[FileSystemClass, str] = {
    "local": """
        ext2 ext3 ext4 xfs btrfs bcachefs zfs f2fs ntfs ntfs3 exfat vfat msdos fuseblk jfs reiserfs nilfs2 ufs hfs
        hfsplus apfs iso9660 udf squashfs erofs lxfs wslfs fuse.ntfs fuse.ntfs-3g fuse.exfat fuse.zfs
    """,
    # Files of another machine, or of the host of a virtual one through a bridge: slow whatever the disk there is.
    "remote": """
        nfs nfs3 nfs4 cifs smbfs smb2 smb3 9p drvfs virtiofs vboxsf vmhgfs prl_fs osxfs grpcfuse ceph glusterfs lustre
        gpfs beegfs afs orangefs ocfs2 gfs2 davfs ncpfs coda fuse.sshfs fuse.rclone fuse.s3fs fuse.goofys fuse.gcsfuse
        fuse.blobfuse2 fuse.mount-s3 fuse.ceph fuse.ceph-fuse fuse.glusterfs fuse.juicefs fuse.davfs2 fuse.curlftpfs
        fuse.vmhgfs-fuse fuse.portal fuse.gvfsd-fuse fuse.virtiofs fuse.osxfs fuse.grpcfuse
    """,
    "memory": "tmpfs ramfs rootfs devtmpfs hugetlbfs",
    "overlay": "overlay overlayfs aufs unionfs fuse.fuse-overlayfs fuse.unionfs",
}
_CLASSES: dict[str, FileSystemClass] = {word: name for name, words in _TYPES.items() for word in words.split()}


def decide_file_system_class(mount: Mount) -> Fact[FileSystemClass]:
    """Say whether reads of a mount end on a disk of this machine; not known for a type that we do not know. Pure."""
    kind = mount.fs_type
    known = _CLASSES.get(kind)
    if known is None and kind.startswith("fuse.") and (":/" in mount.source or "@" in mount.source):
        known = "remote"  # a program of its own, for files that another machine serves
    return Fact.of(known, f"file system {kind}") if known else Fact.unknown(f"file system {kind} is not known")
