"""Who may write a file on Windows: its access control list, and what follows from it."""

from __future__ import annotations

import ctypes
import errno
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FOLDER_REPLACE", "FOLDER_WRITE", "WRITE", "Grant", "parse_acl", "probe_grants", "who_may"]

_DELETE, _WRITE_DAC, _WRITE_OWNER = 0x1_0000, 0x4_0000, 0x8_0000
_GENERIC_ALL, _GENERIC_WRITE = 0x1000_0000, 0x4000_0000
_CONTROL = _DELETE | _WRITE_DAC | _WRITE_OWNER | _GENERIC_ALL

WRITE = 0x2 | 0x4 | _CONTROL | _GENERIC_WRITE  # write, append
FOLDER_WRITE = 0x2 | 0x40 | _CONTROL | _GENERIC_WRITE  # add a file (a dependency is looked for there), delete any
FOLDER_REPLACE = 0x40 | _CONTROL  # of the folders above: delete or move what lies there

# Groups that nobody is kept out of. Then those of everybody with an account on the machine: Windows lets them change
# files on every drive but the system's, so that is no reason to refuse, but it is said.
ANYONE = {
    "S-1-1-0": "Everyone",
    "S-1-5-7": "Anonymous",
    "S-1-5-2": "Network",
    "S-1-5-32-546": "Guests",
}
ACCOUNTS = {
    "S-1-5-11": "Authenticated Users",
    "S-1-5-32-545": "Users",
    "S-1-5-4": "Interactive",
    "S-1-2-0": "Local",
}

_INHERIT_ONLY = 0x08
_ALLOW, _DENY = (0, 9), (1, 10)  # plain and conditional entries
_MAX_ENTRIES = 4096


@dataclass(frozen=True)
class Grant:
    """One entry of an access list: whose (a SID such as ``S-1-1-0``), which rights, allowed or denied."""

    who: str
    rights: int
    allowed: bool


def parse_acl(data: bytes) -> tuple[Grant, ...]:
    """Read the entries of an ACL that count for the object itself. Raises ValueError for a damaged one."""
    if len(data) < 8:
        raise ValueError(f"an ACL of {len(data)} bytes")
    count = struct.unpack_from("<H", data, 4)[0]
    if count > _MAX_ENTRIES:
        raise ValueError(f"{count} entries")
    grants: list[Grant] = []
    at = 8
    for _ in range(count):
        if at + 4 > len(data):
            raise ValueError("the ACL ends within an entry")
        kind, flags, size = struct.unpack_from("<BBH", data, at)
        if size < 4 or at + size > len(data):
            raise ValueError(f"an entry of {size} bytes at {at} of {len(data)}")
        if kind in (*_ALLOW, *_DENY) and not flags & _INHERIT_ONLY:
            if size < 16:
                raise ValueError(f"an entry of {size} bytes")
            rights = struct.unpack_from("<I", data, at + 4)[0]
            grants.append(Grant(_parse_sid(data[at + 8 : at + size]), rights, kind in _ALLOW))
        at += size
    return tuple(grants)


def _parse_sid(data: bytes) -> str:
    revision, count = data[0], data[1]
    if count > 15 or len(data) < 8 + 4 * count:
        raise ValueError(f"a SID of {count} parts in {len(data)} bytes")
    parts = struct.unpack_from(f"<{count}I", data, 8)
    return "-".join(["S", str(revision), str(int.from_bytes(data[2:8], "big")), *map(str, parts)])


def who_may(grants: Sequence[Grant] | None, rights: int, groups: dict[str, str]) -> str | None:
    """Return the first of ``groups`` that has one of ``rights``, None when none has.

    ``grants`` None: an object without a list, which lets everyone do everything. Entries count in their order: a right
    that was denied before is not granted any more.
    """
    if grants is None:
        return groups.get("S-1-1-0")
    denied: dict[str, int] = {}
    for grant in grants:
        if not grant.allowed:
            denied[grant.who] = denied.get(grant.who, 0) | grant.rights
        elif grant.who in groups and grant.rights & rights & ~(denied.get(grant.who, 0) | denied.get("S-1-1-0", 0)):
            return groups[grant.who]
    return None


def probe_grants(path: Path) -> tuple[Grant, ...] | None:
    """Return the access list of a file or folder, None for one without a list. Raises OSError."""
    if sys.platform != "win32":
        raise OSError(errno.ENOSYS, "access control lists are those of Windows")
    security, kernel = ctypes.WinDLL("advapi32"), ctypes.WinDLL("kernel32")
    acl, descriptor = ctypes.c_void_p(), ctypes.c_void_p()
    code = security.GetNamedSecurityInfoW(
        ctypes.c_wchar_p(str(path)),
        1,  # SE_FILE_OBJECT
        4,  # DACL_SECURITY_INFORMATION
        None,
        None,
        ctypes.byref(acl),
        None,
        ctypes.byref(descriptor),
    )
    if code:
        raise ctypes.WinError(code)
    try:
        if not acl.value:
            return None
        size = struct.unpack_from("<H", ctypes.string_at(acl.value, 8), 2)[0]
        return parse_acl(ctypes.string_at(acl.value, size))
    except ValueError as error:
        raise OSError(errno.EINVAL, f"its access list is damaged: {error}") from None
    finally:
        kernel.LocalFree(descriptor)
