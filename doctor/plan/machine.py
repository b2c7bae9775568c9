"""The machine that a plan is for: the few of its facts that a plan reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coli.backends.devices import DeviceFacts, VisibleDevice, select_devices
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.facts.storage import StorageFacts
from coli.doctor.plan.budgets import Device
from coli.doctor.plan.forecast import Speeds
from coli.doctor.plan.speeds import decide_speeds
from coli.engine.host_memory import HostMemory
from coli.errors import UsageError

__all__ = ["FIELDS", "PlanMachine", "decide_device", "machine_of"]

FIELDS = ("memory", "cpu", "storage", "devices", "measured", "last_run", "settings")
"""The fields of MachineFacts that a plan reads, beside those of the model."""


@dataclass(frozen=True)
class PlanMachine:
    """A machine. ``resident_bytes``: what this process holds of its memory, 0 on another machine.

    ``unmeasured``: why measuring the model's disk gave nothing; None when it did, or when nobody tried.
    """

    name: str
    threads: int
    memory: HostMemory
    device: Device | None
    speeds: Speeds
    resident_bytes: int = 0
    unmeasured: str | None = None


def machine_of(facts: MachineFacts, threads: int | None = None, gpu: str | None = None) -> PlanMachine:
    """Return the machine of these facts. ``threads``, ``gpu``: what the user set.

    Raises UsageError when nothing is known of its memory or its processor, or when ``gpu`` names no GPU of it.
    """
    if facts.memory is None or facts.cpu is None:
        raise UsageError(
            facts.name or "the machine",
            "a plan needs its memory and its processor",
            observed="nothing is known of its " + ("memory" if facts.memory is None else "processor"),
            fix="record the machine with `coli doctor MODEL --record FILE`",
            code="plan.machine",
        )
    device = decide_device(facts, gpu)
    threads = threads or facts.cpu.threads.value or facts.cpu.physical_cores.value or 1
    kind = disk_kind(facts.storage or ())
    speeds = decide_speeds(threads, facts.measured, disk_kind=kind, device=device is not None)
    name = facts.name or ("this machine" if facts.here else "another machine")
    disk = facts.measured.disk_bytes_per_s if facts.measured is not None else None
    unmeasured = disk.source if disk is not None and disk.value is None else None
    resident = facts.memory.resident_bytes.value or 0
    return PlanMachine(name, threads, facts.memory.host, device, speeds, resident, unmeasured)


def decide_device(facts: MachineFacts, gpu: str | None = None) -> Device | None:
    """Return the device that an engine would compute on, None for the CPU alone. Raises UsageError for a wrong ``gpu``.

    Where the loader looked, it is the first of its chain, whatever else the machine has. Of a machine whose libraries
    nobody opened, a plan is made for the GPU that a library of coli would take.
    """
    trace = facts.backends
    if gpu == "none" or facts.devices is None:
        return None
    if trace is None:
        return _choose(facts.devices, gpu)
    served = [trace.candidates[index].devices[0] for index in trace.chain if trace.candidates[index].devices]
    return _device(served[0], facts.devices) if served else None


def _choose(facts: DeviceFacts, gpu: str | None) -> Device | None:
    """Return the device that ``gpu`` names as CUDA_VISIBLE_DEVICES would, or the first usable one."""
    selection = select_devices(facts, {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
    if selection.usable:
        return _device(selection.usable[0], facts)
    if gpu is None:
        return None
    raise UsageError(
        "--gpu",
        "it must name a GPU of that machine that can be used",
        observed=f"{gpu}: {selection.why}",
        expected=", ".join(f"{one.index} ({one.name.value})" for one in facts.gpus) or "none is there",
        code="usage.gpu",
    )


def _device(chosen: VisibleDevice, facts: DeviceFacts) -> Device:
    return Device.of(chosen.gpu, facts, chosen.memory)


def disk_kind(storage: Sequence[StorageFacts]) -> str | None:
    """Return the kind of disk below the model, the slowest when it lies on several."""
    order = ("hdd", "usb", "mmc", "virtual", "ssd", "nvme")
    kinds = [str(one.kind.value) for one in storage if one.role == "model" and one.kind.value]
    return min(kinds, key=lambda kind: order.index(kind) if kind in order else 0, default=None)
