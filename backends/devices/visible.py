"""Which devices CUDA will offer: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, as the runtime reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coli.backends.devices.facts import DeviceFacts, Fact, Gpu, Memory, MigSlice
from coli.backends.targets import MINIMUM, Capability

__all__ = [
    "Selection",
    "Skipped",
    "VisibleDevice",
    "VisibleDevices",
    "engine_environment",
    "select_devices",
    "visible_devices",
]

_MAX_ENTRIES = 1024


@dataclass(frozen=True)
class VisibleDevice:
    """A device that a program sees: a GPU, or one MIG slice of it."""

    gpu: Gpu
    mig: MigSlice | None = None

    @property
    def name(self) -> str:
        """Return what people call it."""
        name = self.gpu.name.value or f"GPU {self.gpu.index}"
        return name if self.mig is None else f"{name} MIG {self.mig.profile.value or self.mig.index}"

    @property
    def uuid(self) -> str | None:
        """Return the UUID by which CUDA_VISIBLE_DEVICES selects it."""
        return self.gpu.uuid.value if self.mig is None else self.mig.uuid.value

    @property
    def capability(self) -> Fact[Capability]:
        """Return the compute capability; a slice has its GPU's."""
        return self.gpu.capability

    @property
    def memory(self) -> Memory:
        """Return the memory: a slice's own."""
        return self.gpu.memory if self.mig is None else self.mig.memory


@dataclass(frozen=True)
class VisibleDevices:
    """The devices in CUDA's order, why there are no more, and whether the order is known.

    ``twice``: there is none because one was named twice.
    """

    devices: tuple[VisibleDevice, ...]
    why: str
    order_known: bool = True
    twice: bool = False


def visible_devices(value: str | None, gpus: Sequence[Gpu], order: str | None = None) -> VisibleDevices:
    """Apply CUDA_VISIBLE_DEVICES to the GPUs of a machine (in the order of the bus).

    ``order``: CUDA_DEVICE_ORDER; None is PCI_BUS_ID, which the engine sets unless the user has set another. Rules of
    the runtime: unset is all; the first entry that is no device ends the list; a device named twice gives none; a
    UUID may be cut where it stays unambiguous; of MIG slices only one is offered.
    """
    ordered, order_known = _ordered(gpus, order)
    if value is None:
        return _all(ordered, order_known)
    taken: list[VisibleDevice] = []
    why = "CUDA_VISIBLE_DEVICES"
    for text in value.split(",")[:_MAX_ENTRIES]:
        entry = text.strip()
        device = _find(entry, ordered)
        if device is None:
            rest = "no device is visible" if not taken else "the list ends there"
            why = f"CUDA_VISIBLE_DEVICES={value[:80]!r}: {entry[:50]!r} names no device, {rest}"
            break
        if any(_same(device, other) for other in taken):
            why = f"CUDA_VISIBLE_DEVICES={value[:80]!r} names {entry[:50]} twice: no device is visible"
            return VisibleDevices((), why, order_known, twice=True)
        taken.append(device)
    slices = [device for device in taken if device.mig is not None]
    if slices and len(taken) > 1:
        # A program gets one slice, and not together with other devices.
        why = f"CUDA offers one MIG slice: {slices[0].uuid or slices[0].name}"
        taken = [slices[0]]
    return VisibleDevices(
        tuple(taken), why, order_known or not any(re.fullmatch(r"\s*\d+\s*", e) for e in value.split(","))
    )


def _ordered(gpus: Sequence[Gpu], order: str | None) -> tuple[list[Gpu], bool]:
    """Return the GPUs as CUDA numbers them, and whether that order is known."""
    by_bus = sorted(gpus, key=lambda gpu: gpu.index)
    if order is None or order == "PCI_BUS_ID" or len(gpus) < 2:
        return by_bus, True
    if all(gpu.ordinal.known for gpu in gpus):
        return sorted(gpus, key=lambda gpu: gpu.ordinal.value or 0), True
    # FASTEST_FIRST: only the driver knows. Equal cards are alike, whatever their order.
    return by_bus, len({gpu.name.value for gpu in gpus}) == 1 and gpus[0].name.known


def _first_slice(gpu: Gpu) -> VisibleDevice | None:
    """Return what CUDA offers for a GPU by its number: itself, or its first slice when it is divided."""
    if not gpu.mig_enabled.value:
        return VisibleDevice(gpu)
    first = min(gpu.mig, key=lambda part: part.index, default=None)
    return None if first is None else VisibleDevice(gpu, first)


def _all(gpus: Sequence[Gpu], order_known: bool) -> VisibleDevices:
    whole = tuple(VisibleDevice(gpu) for gpu in gpus if not gpu.mig_enabled.value)
    if whole or not gpus:
        divided = len(gpus) - len(whole)
        why = "all devices" + (f", without the slices of {divided} divided by MIG" if divided else "")
        return VisibleDevices(whole, why, order_known)
    for gpu in gpus:
        first = _first_slice(gpu)
        if first is not None:
            return VisibleDevices((first,), "CUDA offers one MIG slice, the first", order_known)
    return VisibleDevices((), "MIG is on and no GPU has a slice", order_known)


def _find(entry: str, gpus: Sequence[Gpu]) -> VisibleDevice | None:
    if re.fullmatch(r"[0-9]{1,9}", entry):
        number = int(entry)
        return _first_slice(gpus[number]) if number < len(gpus) else None
    old = re.fullmatch(r"MIG-(GPU-[0-9A-Fa-f-]+)/(\d{1,3})/(\d{1,3})", entry)  # before driver 470
    if entry.startswith("MIG-"):
        found = [
            VisibleDevice(gpu, part)
            for gpu in gpus
            for part in gpu.mig
            if _begins(part.uuid.value, entry)
            or (
                old is not None
                and _begins(gpu.uuid.value, old[1])
                and part.gpu_instance.value == int(old[2])
                and part.compute_instance.value == int(old[3])
            )
        ]
        return found[0] if len(found) == 1 else None
    if entry.startswith("GPU-"):
        matching = [gpu for gpu in gpus if _begins(gpu.uuid.value, entry)]
        return _first_slice(matching[0]) if len(matching) == 1 else None
    return None


def _begins(uuid: str | None, prefix: str) -> bool:
    return uuid is not None and uuid.casefold().startswith(prefix.casefold())


def _same(one: VisibleDevice, other: VisibleDevice) -> bool:
    return one.gpu.index == other.gpu.index and (one.mig and one.mig.index) == (other.mig and other.mig.index)


@dataclass(frozen=True)
class Skipped:
    """A visible device that is not used, and why."""

    device: VisibleDevice
    reason: str


@dataclass(frozen=True)
class Selection:
    """The visible devices that can compute, those that cannot, and why there are no more (see `VisibleDevices`)."""

    usable: tuple[VisibleDevice, ...]
    skipped: tuple[Skipped, ...]
    why: str
    order_known: bool = True
    twice: bool = False


def select_devices(facts: DeviceFacts, environment: Mapping[str, str]) -> Selection:
    """Return which devices a backend may use: visible, of a known capability, not below 8.0. Pure."""
    visible = visible_devices(
        environment.get("CUDA_VISIBLE_DEVICES"), facts.gpus, environment.get("CUDA_DEVICE_ORDER") or None
    )
    usable: list[VisibleDevice] = []
    skipped: list[Skipped] = []
    for device in visible.devices:
        capability = device.capability.value
        if capability is None:
            skipped.append(Skipped(device, "capability unknown"))
        elif capability < MINIMUM:
            skipped.append(Skipped(device, f"below sm_{MINIMUM.number}"))
        else:
            usable.append(device)
    return Selection(tuple(usable), tuple(skipped), visible.why, visible.order_known, visible.twice)


def engine_environment(devices: Sequence[VisibleDevice], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables under which CUDA numbers exactly ``devices``, in this order, from 0. Pure.

    By UUID, for numbers mean other cards to nvidia-smi than to CUDA. A device without one (Tegra) stays as it is.
    """
    variables = {}
    if "CUDA_DEVICE_ORDER" not in environment:
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    uuids = [device.uuid for device in devices]
    if uuids and all(uuids):
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(uuid for uuid in uuids if uuid)
    return variables
