"""Access control lists of Windows, written by hand as MS-DTYP lays them out, and what follows from them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coli.backends.windows_access import (
    ACCOUNTS,
    ANYONE,
    FOLDER_REPLACE,
    FOLDER_WRITE,
    WRITE,
    Grant,
    parse_acl,
    who_may,
)

# SIDs: revision, number of parts, authority (big-endian), parts (little-endian).
EVERYONE = bytes.fromhex("01 01 00 00 00 00 00 01 00 00 00 00")
USERS = bytes.fromhex("01 02 00 00 00 00 00 05 20 00 00 00 21 02 00 00")  # S-1-5-32-545
AUTHENTICATED = bytes.fromhex("01 01 00 00 00 00 00 05 0b 00 00 00")
SYSTEM = bytes.fromhex("01 01 00 00 00 00 00 05 12 00 00 00")

FULL, READ_EXECUTE, MODIFY, WRITE_DATA = 0x1F01FF, 0x1200A9, 0x1301BF, 0x2


def entry(sid: bytes, rights: int, kind: int = 0, flags: int = 0) -> bytes:
    """Return one ACE: type, flags, size, rights, SID."""
    return struct.pack("<BBHI", kind, flags, 8 + len(sid), rights) + sid


def acl(*entries: bytes) -> bytes:
    """Return an ACL: revision 2, its size, the number of entries."""
    body = b"".join(entries)
    return struct.pack("<BBHHH", 2, 0, 8 + len(body), len(entries), 0) + body


def test_entries() -> None:
    data = acl(entry(SYSTEM, FULL), entry(USERS, READ_EXECUTE, flags=0x10), entry(EVERYONE, WRITE_DATA, kind=1))
    assert parse_acl(data) == (
        Grant("S-1-5-18", FULL, True),
        Grant("S-1-5-32-545", READ_EXECUTE, True),
        Grant("S-1-1-0", WRITE_DATA, False),
    )


def test_entries_that_only_children_inherit_do_not_count() -> None:
    """C: of a fresh Windows: accounts may add folders, and change what lies in those."""
    data = acl(entry(AUTHENTICATED, 0x4), entry(AUTHENTICATED, MODIFY, flags=0x0B), entry(USERS, READ_EXECUTE))
    grants = parse_acl(data)
    assert who_may(grants, FOLDER_REPLACE, ACCOUNTS) is None
    assert who_may(parse_acl(acl(entry(AUTHENTICATED, MODIFY))), FOLDER_REPLACE, ACCOUNTS) == "Authenticated Users"


@pytest.mark.parametrize(
    ("entries", "rights", "who"),
    [
        ((entry(SYSTEM, FULL), entry(EVERYONE, READ_EXECUTE)), WRITE, None),
        ((entry(EVERYONE, FULL),), WRITE, "Everyone"),
        ((entry(EVERYONE, 0x40000),), WRITE, "Everyone"),  # may change the list itself
        ((entry(EVERYONE, WRITE_DATA),), FOLDER_REPLACE, None),  # adding files beside it is another matter ...
        ((entry(EVERYONE, WRITE_DATA),), FOLDER_WRITE, "Everyone"),  # ... than in the library's own folder
        ((entry(EVERYONE, WRITE_DATA, kind=1), entry(EVERYONE, WRITE_DATA)), WRITE, None),
        ((entry(EVERYONE, WRITE_DATA), entry(EVERYONE, WRITE_DATA, kind=1)), WRITE, "Everyone"),  # the first counts
        ((entry(AUTHENTICATED, MODIFY),), WRITE, None),
        ((), WRITE, None),  # an empty list: nobody
    ],
)
def test_who_is_anyone(entries: tuple[bytes, ...], rights: int, who: str | None) -> None:
    assert who_may(parse_acl(acl(*entries)), rights, ANYONE) == who


def test_no_list_is_everyone() -> None:
    assert who_may(None, WRITE, ANYONE) == "Everyone"


@given(st.binary(max_size=200))
def test_damage_is_a_value_error(data: bytes) -> None:
    try:
        parse_acl(data)
    except ValueError:
        return


@given(cut=st.integers(0, 60), at=st.integers(8, 59), value=st.integers(0, 255))
def test_damage_of_a_sound_list(cut: int, at: int, value: int) -> None:
    data = bytearray(acl(entry(SYSTEM, FULL), entry(USERS, READ_EXECUTE), entry(EVERYONE, WRITE_DATA)))
    data[at % len(data)] = value
    try:
        assert len(parse_acl(bytes(data[: max(8, len(data) - cut)]))) <= 3
    except ValueError:
        return
