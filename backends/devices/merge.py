"""One list of devices from what several sources say of them, and what follows from all of it together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from coli.backends.devices.facts import Fact, Gpu, Link, Memory, MigSlice
from coli.backends.targets import TEGRA, Capability

__all__ = ["merge_gpus", "with_memory_kind", "with_tegra"]

# Systems on a chip that are no Tegra: one memory for all, which the tools cannot give in numbers (GB10).
_SHARED_MEMORY = TEGRA | {Capability(12, 1)}


def merge_gpus(first: Sequence[Gpu], second: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Fill what ``first`` does not know from ``second``; devices that only ``second`` has come at the end.

    Devices are the same when UUID or bus id are; two lists of one device each, with neither, are of the same one.
    """
    merged = list(first)
    for gpu in second:
        at = _find(merged, gpu, alone=len(first) == len(second) == 1)
        if at is None:
            index = gpu.index if all(gpu.index != other.index for other in merged) else len(merged)
            merged.append(replace(gpu, index=index))
        else:
            merged[at] = _fill(merged[at], gpu)
    return tuple(merged)


def _find(gpus: Sequence[Gpu], gpu: Gpu, alone: bool) -> int | None:
    for key in ("uuid", "bus_id"):
        value = getattr(gpu, key).value
        for at, other in enumerate(gpus):
            if value is not None and getattr(other, key).value == value:
                return at
    for at, other in enumerate(gpus):
        differs = any(getattr(other, key).known and getattr(gpu, key).known for key in ("uuid", "bus_id"))
        if alone and not differs:  # what both know differs, or it would have been found above
            return at
        # Sources of one tool count alike; their rows may lack both names of a device.
        same = other.index == gpu.index and other.name.known and other.name.value == gpu.name.value
        if same and not (other.uuid.known and gpu.uuid.known) and not (other.bus_id.known and gpu.bus_id.known):
            return at
    return None


def _fill(first: Any, second: Any) -> Any:
    changes: dict[str, Any] = {}
    for field in fields(first):
        one, two = getattr(first, field.name), getattr(second, field.name)
        if isinstance(one, Fact):
            changes[field.name] = one.otherwise(two)
        elif isinstance(one, (Memory, Link)):
            changes[field.name] = _fill(one, two)
        elif field.name == "holders":
            changes[field.name] = one or two
        elif field.name == "mig":
            changes[field.name] = _merge_slices(one, two)
    return replace(first, **changes)


def _merge_slices(first: Sequence[MigSlice], second: Sequence[MigSlice]) -> tuple[MigSlice, ...]:
    merged = list(first)
    for part in second:
        at = next((i for i, other in enumerate(merged) if other.index == part.index), None)
        if at is None:
            merged.append(part)
        else:
            merged[at] = _fill(merged[at], part)
    return tuple(merged)


def with_tegra(gpus: Sequence[Gpu], tegra: Fact[Capability] | None) -> tuple[Gpu, ...]:
    """Give the built-in device of a Tegra, which has no place on a PCI bus, the capability of its chip."""
    if tegra is None:
        return tuple(gpus)
    own = [gpu for gpu in gpus if not gpu.bus_id.known or len(gpus) == 1]
    return tuple(replace(gpu, capability=gpu.capability.otherwise(tegra)) if gpu in own else gpu for gpu in gpus)


def with_memory_kind(
    gpus: Sequence[Gpu], tegra: bool, total_bytes: Fact[int], available_bytes: Fact[int]
) -> tuple[Gpu, ...]:
    """Say of each device whether its memory is the system's; then total and free are the system's."""
    return tuple(_memory_kind(gpu, tegra and len(gpus) == 1, total_bytes, available_bytes) for gpu in gpus)


def _memory_kind(gpu: Gpu, tegra: bool, total_bytes: Fact[int], available_bytes: Fact[int]) -> Gpu:
    evidence = None
    if gpu.integrated.value:
        evidence = gpu.integrated.source
    elif tegra:
        evidence = "/proc/device-tree/compatible"
    elif gpu.capability.value in _SHARED_MEMORY:
        evidence = f"capability {gpu.capability.value}, a system on a chip"
    elif gpu.addressing.value == "ATS" and not gpu.memory.total_bytes.known:
        evidence = "addressing mode ATS without a memory of its own"
    if evidence is not None:
        memory = Memory(Fact.of("unified", evidence), total_bytes, available_bytes)
        return replace(gpu, memory=memory)
    if gpu.memory.total_bytes.known:
        kind = Fact.of("dedicated", gpu.memory.total_bytes.source)
        return replace(gpu, memory=replace(gpu.memory, kind=kind))
    return gpu
