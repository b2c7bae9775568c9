"""Tensor roles: every tensor of a checkpoint has one, and the bytes of the roles add up to the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from coli.errors import CheckpointError
from coli.families.descriptor import Descriptor
from coli.families.patterns import EXPERT, LAYER, Pattern, expand, split_numbers

__all__ = ["Inventory", "Role", "RoleSum", "RoleTable", "Tensor"]

# How many unknown names an error shows; the rest is a number.
SHOWN = 8


class Role(NamedTuple):
    """What a tensor is for: `kind` (of ROLE_KINDS), numbers of its name, dotted `part`, and whether it is a scale."""

    kind: str
    layer: int | None
    expert: int | None
    part: str
    is_scale: bool


class Tensor(Protocol):
    """What the inventory needs to know of a tensor: its type (`I8`, `BF16` ...) and its size in bytes."""

    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...


class RoleSum(NamedTuple):
    """One kind of role: tensors, bytes (`scale_bytes` of them are scales), and the types of its weights."""

    tensors: int
    nbytes: int
    scale_bytes: int
    dtypes: tuple[str, ...]


class Inventory(NamedTuple):
    """A checkpoint by role. `expert_bytes[layer]` are bytes of one expert with scales, None if they differ."""

    kinds: dict[str, RoleSum]
    layers: int
    experts: dict[int, int]
    expert_bytes: dict[int, int | None]
    total_bytes: int
    unknown: tuple[str, ...]
    unknown_bytes: int

    def require_known(self, subject: str) -> None:
        """Raise one CheckpointError that lists the names no pattern knows."""
        if not self.unknown:
            return
        shown = ", ".join(self.unknown[:SHOWN])
        more = f" and {len(self.unknown) - SHOWN} more" if len(self.unknown) > SHOWN else ""
        raise CheckpointError(
            subject,
            "every tensor must have a role",
            observed=f"{len(self.unknown)} of unknown role: {shown}{more}",
            fix="use a checkpoint of this family, or add the names to the roles of its family.toml",
            code="checkpoint.unknown-tensor",
        )


class _Entry(NamedTuple):
    kind: str
    part: str
    is_scale: bool
    layer: int | None  # which number of the name is the layer
    expert: int | None


class RoleTable:
    """Classifies tensor names: a lookup by name with its numbers replaced, so 70 000 names take 0.2 s."""

    def __init__(self, descriptor: Descriptor) -> None:
        self._prefix = descriptor.prefix
        self._closed: dict[str, _Entry] = {}
        self._wild: list[tuple[Pattern, _Entry]] = []
        self._renames: dict[str, Pattern] = {}
        self._seen: dict[str, _Entry | None] = {}
        for role in descriptor.roles:
            for is_scale, texts in ((False, role.names), (True, role.scales)):
                for pattern in (p for text in texts for p in expand(text)):
                    part = pattern.part if role.part is None else role.part
                    entry = _Entry(role.kind, part, is_scale, pattern.hole(LAYER), pattern.hole(EXPERT))
                    if pattern.wild:
                        self._wild.append((pattern, entry))
                    else:
                        self._closed[pattern.key] = entry
        for rename in descriptor.renames:
            for old, new in zip(expand(rename.old), expand(rename.new), strict=True):
                self._renames[old.key] = new

    def canonical(self, name: str) -> str:
        """Return the family's own name of a tensor: without the optional prefix, renames undone."""
        if self._prefix and name.startswith(self._prefix):
            name = name[len(self._prefix) :]
        if self._renames:
            key, numbers = split_numbers(name)
            new = self._renames.get(key)
            if new is not None:
                holes = iter(numbers)
                return ".".join(next(holes) if s in (LAYER, EXPERT) else s for s in new.segments)
        return name

    def find(self, name: str) -> Role | None:
        """Return the role of a tensor, None for a name that no pattern knows."""
        if self._prefix and name.startswith(self._prefix):
            name = name[len(self._prefix) :]
        key, numbers = split_numbers(name)
        new = self._renames.get(key)
        if new is not None:
            key = new.key
        entry = self._closed.get(key)
        if entry is None:
            if key not in self._seen:
                self._seen[key] = next((e for p, e in self._wild if p.fits(name)), None)
            entry = self._seen[key]
            if entry is None:
                return None
        if entry.layer is None and entry.expert is None:
            return Role(entry.kind, None, None, entry.part, entry.is_scale)
        layer = None if entry.layer is None else int(numbers[entry.layer])
        expert = None if entry.expert is None else int(numbers[entry.expert])
        return Role(entry.kind, layer, expert, entry.part, entry.is_scale)

    def classify(self, name: str) -> Role:
        """Return the role of a tensor. Raises CheckpointError for a name that no pattern knows."""
        role = self.find(name)
        if role is None:
            Inventory({}, 0, {}, {}, 0, (name,), 0).require_known(name)
            raise AssertionError(name)
        return role

    def inventory(self, tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> Inventory:
        """Sum the bytes of each role over names and tensors. Unknown names are counted apart, not raised."""
        items = tensors.items() if isinstance(tensors, Mapping) else tensors
        counts: dict[str, list[int]] = {}
        dtypes: dict[str, set[str]] = {}
        records: dict[int, dict[int, int]] = {}
        unknown: list[str] = []
        unknown_bytes = total = 0
        last_layer = -1
        for name, tensor in items:
            nbytes = tensor.nbytes
            total += nbytes
            role = self.find(name)
            if role is None:
                unknown.append(name)
                unknown_bytes += nbytes
                continue
            sums = counts.setdefault(role.kind, [0, 0, 0])
            sums[0] += 1
            sums[1] += nbytes
            if role.is_scale:
                sums[2] += nbytes
            else:
                dtypes.setdefault(role.kind, set()).add(tensor.dtype)
            if role.kind == "draft" or role.layer is None:
                continue
            last_layer = max(last_layer, role.layer)
            if role.expert is not None:
                layer = records.setdefault(role.layer, {})
                layer[role.expert] = layer.get(role.expert, 0) + nbytes
        return Inventory(
            kinds={k: RoleSum(c[0], c[1], c[2], tuple(sorted(dtypes.get(k, ())))) for k, c in sorted(counts.items())},
            layers=last_layer + 1,
            experts={layer: len(r) for layer, r in sorted(records.items())},
            expert_bytes={layer: _same(set(r.values())) for layer, r in sorted(records.items())},
            total_bytes=total,
            unknown=tuple(unknown),
            unknown_bytes=unknown_bytes,
        )


def _same(sizes: set[int]) -> int | None:
    return sizes.pop() if len(sizes) == 1 else None
