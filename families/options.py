"""Options that an engine may not read: a family says what it honours, and the rest is refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coli.errors import UsageError
from coli.families.descriptor import Descriptor

__all__ = ["OPTION_CAPABILITIES", "Unread", "require_read", "unread_options"]

# Option: the capability of the family that reads it, and what is the matter where it has none.
OPTION_CAPABILITIES = {
    "--ram": ("ram_budget", "its engine keeps to no memory limit"),
    "--gpu": ("cuda", "it has no CUDA backend"),
    "--vram": ("cuda", "it has no CUDA backend"),
}


class Unread(NamedTuple):
    """An option that was given and would do nothing."""

    option: str
    reason: str


def unread_options(capabilities: Iterable[str], given: Iterable[str]) -> tuple[Unread, ...]:
    """Return which of the ``given`` options a family with these capabilities does not read. Pure."""
    known = frozenset(capabilities)
    return tuple(
        Unread(option, OPTION_CAPABILITIES[option][1])
        for option in dict.fromkeys(given)
        if option in OPTION_CAPABILITIES and OPTION_CAPABILITIES[option][0] not in known
    )


def require_read(descriptor: Descriptor, given: Iterable[str]) -> None:
    """Raise UsageError when an option was given that the family's engine would ignore."""
    unread = unread_options(descriptor.capabilities, given)
    if unread:
        raise UsageError(
            ", ".join(one.option for one in unread),
            f"the family {descriptor.id} does not read it",
            observed="; ".join(f"{one.option}: {one.reason}" for one in unread),
            fix=f"leave {' and '.join(one.option for one in unread)} out",
            code="usage.unread-option",
        )
