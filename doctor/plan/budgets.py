"""How many bytes of each tier a plan may fill: from what is free, never from totals, and a unified memory once."""

from __future__ import annotations

from dataclasses import dataclass

from coli.backends.devices.facts import DeviceFacts, Gpu, Memory
from coli.engine.host_memory import HostMemory, ram_budget_bytes
from coli.units import render_size

__all__ = ["Budgets", "Device", "TierBudget", "decide_budgets", "vram_reserve_bytes"]

# Other programs on the card, the driver's own growth, late uploads. Windows hands memory out to every window and takes
# it back by paging, which stalls a kernel for longer than a read from disk.
_RESERVE_BYTES = 1 << 30
_RESERVE_WINDOWS_BYTES = 3 << 29
# Of a unified memory at most this part goes to mirrors of weights that lie in the same memory already.
_UNIFIED_SHARE = 3


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

    ``total_bytes`` less ``free_bytes`` is held by others: ``held_by``. ``reserve_bytes`` of the free ones stay free.
    """

    tier: str
    total_bytes: int | None
    free_bytes: int | None
    reserve_bytes: int
    limit_bytes: int
    why: str
    held_by: str = ""


@dataclass(frozen=True)
class Budgets:
    """The tiers of a machine. ``pool_bytes``: what RAM and VRAM share where they are one memory."""

    ram: TierBudget
    vram: TierBudget | None = None
    pool_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def limits(self) -> dict[str, int | None]:
        """Return the limits of a ledger."""
        return {"ram": self.ram.limit_bytes, "vram": self.vram.limit_bytes if self.vram else 0}


def vram_reserve_bytes(windows: bool) -> int:
    """Return the bytes of a card's free memory that stay free."""
    return _RESERVE_WINDOWS_BYTES if windows else _RESERVE_BYTES


def decide_budgets(
    memory: HostMemory,
    device: Device | None = None,
    *,
    resident: int = 0,
    ram: int | None = None,
    vram: int | None = None,
    device_bytes: int = 0,
) -> Budgets:
    """Return the budgets. ``ram``, ``vram``: what the user set. ``device_bytes``: what could lie on the device. Pure.

    ``resident``: what this process holds already. Raises BudgetError when nobody says how much memory there is and
    ``ram`` is None.
    """
    total, available = memory.total_bytes.value, memory.available_bytes.value
    limit = _whole_mib(ram_budget_bytes(memory, resident)) if ram is None else ram
    why = f"available now, less what stays free ({memory.source})" if ram is None else "--ram"
    notes = []
    if ram is not None and available is not None and ram > available + resident:
        limit = _whole_mib(ram_budget_bytes(memory, resident))
        notes.append(f"--ram {render_size(ram)} is more than is free now; {render_size(limit)} is planned")
    pool = None
    vram_budget = None
    if device is not None:
        if device.unified:
            # One memory: what the device takes, the RAM does not have.
            pool = limit
            share = _whole_mib(min(device_bytes, limit // _UNIFIED_SHARE)) if vram is None else min(vram, limit)
            vram_budget = TierBudget("vram", total, available, 0, share, "a part of the same memory as the RAM")
            limit -= share
            why += "; less what the device takes of the same memory"
        else:
            vram_budget, more = _dedicated(device, vram)
            notes += more
    held = "" if total is None or available is None else "other programs, and page cache that is in use"
    ram_budget = TierBudget(
        "ram", total, available, 0 if available is None else max(0, available + resident - limit), limit, why, held
    )
    return Budgets(ram_budget, vram_budget, pool, tuple(notes))


def _whole_mib(nbytes: int) -> int:
    """Return whole MiB: a number that people can read and type."""
    return nbytes >> 20 << 20


def _dedicated(device: Device, asked: int | None) -> tuple[TierBudget, list[str]]:
    reserve = vram_reserve_bytes(device.windows)
    free = device.free_bytes
    held = "the driver's own share and other programs (`nvidia-smi` lists them)"
    if free is None:
        limit = asked or 0
        why = "--vram" if asked is not None else "free memory is not known, so nothing is planned: give --vram"
        return TierBudget("vram", device.total_bytes, None, reserve, limit, why, held), []
    most = max(0, free - reserve)
    keeps = f"free now, less {render_size(reserve)} that stays free" + (" (Windows pages it)" if device.windows else "")
    if asked is None:
        return TierBudget("vram", device.total_bytes, free, reserve, most, keeps, held), []
    if asked <= most:
        return TierBudget("vram", device.total_bytes, free, free - asked, asked, "--vram", held), []
    note = f"--vram {render_size(asked)} does not leave {render_size(reserve)} free; {render_size(most)} is planned"
    return TierBudget("vram", device.total_bytes, free, reserve, most, keeps, held), [note]
