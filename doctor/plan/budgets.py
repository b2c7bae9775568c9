"""How many bytes of each tier a plan may fill: from what is free, never from totals, and a unified memory once."""

from __future__ import annotations

from dataclasses import dataclass

from coli.backends.device_gates import CONTEXT_BYTES
from coli.backends.devices.facts import DeviceFacts, Gpu, Memory
from coli.engine.device_memory import DEVICE_RESERVE_BYTES, vram_budget_bytes
from coli.engine.host_memory import HostMemory, ram_budget_bytes
from coli.units import render_size

__all__ = ["Budgets", "Device", "TierBudget", "decide_budgets"]


@dataclass(frozen=True)
class Device:
    """The device that a plan is made for. ``windows``: its memory is managed by WDDM, also below WSL2."""

    name: str
    total_bytes: int | None
    free_bytes: int | None
    unified: bool = False
    windows: bool = False

    @classmethod
    def of(cls, gpu: Gpu, facts: DeviceFacts, memory: Memory | None = None) -> Device:
        """Return what a plan needs of a device. ``memory``: that of a part of it (MIG)."""
        memory = memory or gpu.memory
        windows = facts.platform in ("windows", "wsl2") or gpu.driver_model.value == "WDDM"
        return cls(
            gpu.name.value or f"GPU {gpu.index}",
            memory.total_bytes.value,
            memory.free_bytes.value,
            memory.kind.value == "unified",
            windows,
        )


@dataclass(frozen=True)
class TierBudget:
    """What a tier has and what a plan may take of it, in bytes; ``why`` says how the one follows from the other.

    The total is what others hold (``held_by`` says who), ``reserve_bytes`` that stay free, ``context_bytes`` of a
    device's driver, and ``limit_bytes``.
    """

    tier: str
    total_bytes: int | None
    free_bytes: int | None
    reserve_bytes: int
    limit_bytes: int
    why: str
    held_by: str = ""
    context_bytes: int = 0

    @property
    def others_bytes(self) -> int | None:
        """Return what others hold, this process not counted; None when the total is not known."""
        if self.total_bytes is None or self.free_bytes is None:
            return None
        return max(0, self.total_bytes - self.reserve_bytes - self.context_bytes - self.limit_bytes)


@dataclass(frozen=True)
class Budgets:
    """The tiers of a machine. ``pool_bytes``: the one memory of a machine whose device has none of its own."""

    ram: TierBudget
    vram: TierBudget | None = None
    pool_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def limits(self) -> dict[str, int | None]:
        """Return the limits of a ledger."""
        return {"ram": self.ram.limit_bytes, "vram": self.vram.limit_bytes if self.vram else 0}


def decide_budgets(
    memory: HostMemory,
    device: Device | None = None,
    *,
    resident: int = 0,
    ram: int | None = None,
    vram: int | None = None,
) -> Budgets:
    """Return the budgets. ``ram``, ``vram``: what the user set. Pure.

    ``resident``: what this process holds already. Raises BudgetError when nobody says how much memory there is and
    ``ram`` is None.
    """
    total, available = memory.total_bytes.value, memory.available_bytes.value
    limit = _whole_mib(ram_budget_bytes(memory, resident)) if ram is None else ram
    why = f"what is available now, by {memory.source}, less a sixteenth of all" if ram is None else "--ram"
    notes = []
    if ram is not None and available is not None and ram > available + resident:
        limit = _whole_mib(ram_budget_bytes(memory, resident))
        notes.append(f"--ram {render_size(ram)} is more than is free now; {render_size(limit)} is planned")
    pool = None
    vram_budget = None
    if device is not None and device.unified:
        # One memory: a copy for the device would only take from what holds the original.
        pool = limit
        notes.append(f"{device.name} computes in the machine's own memory: nothing is copied")
    elif device is not None:
        vram_budget, more = _dedicated(device, vram)
        notes += more
    held = "" if total is None or available is None else "other programs and page cache in use"
    left = 0 if available is None else max(0, available + resident - limit)
    return Budgets(TierBudget("ram", total, available, left, limit, why, held), vram_budget, pool, tuple(notes))


def _whole_mib(nbytes: int) -> int:
    """Return whole MiB: a number that people can read and type."""
    return nbytes >> 20 << 20


def _dedicated(device: Device, asked: int | None) -> tuple[TierBudget, list[str]]:
    held = "the driver and other programs (`nvidia-smi` lists them)"
    if device.free_bytes is None:
        why = "--vram" if asked is not None else "free memory is not known, so nothing is planned: give --vram"
        return TierBudget("vram", device.total_bytes, None, 0, asked or 0, why, held), []
    usable = max(0, device.free_bytes - CONTEXT_BYTES)
    limit = _whole_mib(vram_budget_bytes(usable, shared_with_windows=device.windows, asked_bytes=asked))
    left = usable - limit
    why = (
        "--vram"
        if asked is not None
        else "what is free now, less a reserve" + (": Windows takes back what other programs need" * device.windows)
    )
    notes = []
    if asked is not None and left < DEVICE_RESERVE_BYTES:
        notes.append(f"--vram leaves {render_size(left)} of {device.name} free: other programs may push copies out")
    return TierBudget("vram", device.total_bytes, device.free_bytes, left, limit, why, held, CONTEXT_BYTES), notes
