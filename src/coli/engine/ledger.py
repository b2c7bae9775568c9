"""The memory ledger: every allocation of a model is reserved here first, against a hard limit a tier.

A plan is the same calls on a ledger whose grants nobody allocates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from coli.errors import BudgetError
from coli.units import render_size

__all__ = ["Grant", "Item", "ItemReport", "Ledger", "TierReport"]

# What is charged was measured, and a process is not of the same size at each start: the amount that a refusal names
# has this part of it to spare.
_CHARGE_SPREAD = 64
_OPTIONS = {"ram": "--ram", "vram": "--vram"}


@dataclass(frozen=True)
class Item:
    """One allocation: ``count`` units of ``nbytes + per_token * tokens`` bytes in ``tier``.

    ``minimum``: units below ``count`` with which it still works, slower; 0 means that all of it is needed.
    """

    name: str
    tier: str
    nbytes: int
    per_token: int = 0
    count: int = 1
    minimum: int = 0

    def unit_bytes(self, tokens: int = 0) -> int:
        """Return the bytes of one unit for a context of ``tokens``."""
        return self.nbytes + self.per_token * tokens

    def total_bytes(self, tokens: int = 0) -> int:
        """Return the bytes of all units for a context of ``tokens``."""
        return self.unit_bytes(tokens) * self.count

    def least_bytes(self, tokens: int = 0) -> int:
        """Return the bytes without which the model cannot run."""
        return self.unit_bytes(tokens) * (self.minimum or self.count)


@dataclass(frozen=True)
class Grant:
    """What a reservation got: ``count`` units, ``nbytes`` bytes in all."""

    item: Item
    count: int
    nbytes: int


class ItemReport(TypedDict):
    """A grant as data."""

    name: str
    count: int
    bytes: int


class TierReport(TypedDict):
    """A tier as data; ``limit_bytes`` None: it has none."""

    limit_bytes: int | None
    reserved_bytes: int
    peak_bytes: int
    items: list[ItemReport]


@dataclass
class _Tier:
    limit: int | None
    reserved: int = 0
    peak: int = 0
    charged: int = 0
    grants: list[Grant] = field(default_factory=list)


class Ledger:
    """Keep the sum of all grants of a tier at or below its limit.

    ``limits``: bytes by tier; a tier that is missing or None has no limit. ``options``: the option that raises a tier's
    limit, for error texts.
    """

    def __init__(self, limits: Mapping[str, int | None], *, options: Mapping[str, str] = _OPTIONS) -> None:
        self._tiers = {tier: _Tier(limit) for tier, limit in limits.items()}
        self._options = dict(options)

    def limit(self, tier: str, nbytes: int) -> None:
        """Open a tier whose size was not known before."""
        self._tiers[tier] = _Tier(nbytes)

    def reserve(self, item: Item, tokens: int = 0) -> Grant:
        """Grant all units of ``item``, or as many whole ones as fit when it has a minimum.

        Elastic items come last: they take what is left. Raises BudgetError with need, limit and what holds the rest.
        """
        tier = self._tiers.setdefault(item.tier, _Tier(None))
        unit = item.unit_bytes(tokens)
        count = item.count
        if tier.limit is not None and unit > 0:
            fitting = max(0, tier.limit - tier.reserved) // unit
            if fitting < count:
                if fitting < (item.minimum or item.count):
                    raise self._refusal(item.tier, item.name, item.least_bytes(tokens))
                count = fitting
        return self._hold(tier, Grant(item, count, unit * count))

    def charge(self, item: Item) -> Grant:
        """Note what is held already or has no smaller form, even beyond the limit: the next `require` counts it.

        So one refusal names everything, instead of one item after the other.
        """
        tier = self._tiers.setdefault(item.tier, _Tier(None))
        tier.charged += item.total_bytes()
        return self._hold(tier, Grant(item, item.count, item.total_bytes()))

    def _hold(self, tier: _Tier, grant: Grant) -> Grant:
        tier.reserved += grant.nbytes
        tier.peak = max(tier.peak, tier.reserved)
        tier.grants.append(grant)
        return grant

    def require(self, items: Iterable[Item], tokens: int = 0) -> None:
        """Refuse now what cannot fit later: raise BudgetError with the least that all ``items`` need together.

        A tier that was charged beyond its limit is refused whatever the items are.
        """
        needs: dict[str, list[tuple[int, str]]] = {
            name: [] for name, tier in self._tiers.items() if tier.limit is not None and tier.reserved > tier.limit
        }
        for item in items:
            needs.setdefault(item.tier, []).append((item.least_bytes(tokens), item.name))
        for name, parts in needs.items():
            tier = self._tiers.get(name)
            need = sum(nbytes for nbytes, _ in parts)
            if tier is not None and tier.limit is not None and tier.reserved + need > tier.limit:
                shown = ", ".join(f"{part} {render_size(nbytes)}" for nbytes, part in sorted(parts, reverse=True)[:4])
                listed = f" ({shown}{', ...' if len(parts) > 4 else ''})" if parts else ""
                raise self._refusal(name, "the model", need, f" at least{listed}")

    def release(self, grant: Grant) -> None:
        """Give a grant back. Raises ValueError when this ledger does not hold it."""
        tier = self._tiers.get(grant.item.tier)
        position = next((i for i, held in enumerate(tier.grants) if held is grant), None) if tier else None
        if tier is None or position is None:
            raise ValueError(f"{grant.item.name}: this ledger does not hold the grant")
        del tier.grants[position]
        tier.reserved -= grant.nbytes

    def reserved(self, tier: str) -> int:
        """Return the bytes held now in ``tier``."""
        return self._tiers[tier].reserved if tier in self._tiers else 0

    def peak(self, tier: str) -> int:
        """Return the most bytes that were held at once in ``tier``."""
        return self._tiers[tier].peak if tier in self._tiers else 0

    def free(self, tier: str) -> int | None:
        """Return the bytes left in ``tier``, or None when it has no limit."""
        held = self._tiers.get(tier)
        return None if held is None or held.limit is None else max(0, held.limit - held.reserved)

    def grants(self) -> tuple[Grant, ...]:
        """Return all grants that are held, tier by tier in order of reservation."""
        return tuple(grant for tier in self._tiers.values() for grant in tier.grants)

    def report(self) -> dict[str, TierReport]:
        """Return, by tier: limit, reserved and peak bytes, and the items that hold them in order of reservation."""
        return {
            name: {
                "limit_bytes": tier.limit,
                "reserved_bytes": tier.reserved,
                "peak_bytes": tier.peak,
                "items": [{"name": g.item.name, "count": g.count, "bytes": g.nbytes} for g in tier.grants],
            }
            for name, tier in self._tiers.items()
        }

    def _refusal(self, tier: str, subject: str, need: int, largest: str = "") -> BudgetError:
        state = self._tiers[tier]
        holders = sorted(state.grants, key=lambda grant: -grant.nbytes)
        held = ", ".join(f"{grant.item.name} {render_size(grant.nbytes)}" for grant in holders[:6])
        if len(holders) > 6:
            held += f", {len(holders) - 6} more"
        limit = state.limit or 0
        least = _rounded_up(state.reserved + need + state.charged // _CHARGE_SPREAD)
        option = self._options.get(tier)
        return BudgetError(
            subject,
            f"it does not fit the {tier} budget of {_exact(limit)}",
            observed=f"{_exact(need)} needed{largest}, {render_size(state.reserved)} reserved already"
            + (f" ({held})" if held else ""),
            expected=f"at most {_exact(max(0, limit - state.reserved))}",
            fix=f"{option} {least} or more" if option else f"a {tier} budget of {least} or more",
            code=f"budget.{tier}",
        )


def _exact(nbytes: int) -> str:
    """Return a size with all its digits: near the limit two rounded ones look the same."""
    return f"{nbytes} bytes" + (f" ({render_size(nbytes)})" if nbytes >= 1024 else "")


def _rounded_up(nbytes: int) -> str:
    """Return a size that people can type and that is enough."""
    mebibyte = 1 << 20
    return f"{nbytes}B" if nbytes < mebibyte else f"{-(-nbytes // mebibyte)}MiB"
