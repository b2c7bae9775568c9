"""The machine that a plan is for: this one, or one from a file. Of a machine's facts the plan reads these few."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from coli.backends.devices import DeviceFacts, VisibleDevice, select_devices
from coli.backends.loader import Loaded
from coli.doctor.facts.cpu import CpuFacts
from coli.doctor.facts.measure import Measured, read_measured
from coli.doctor.facts.memory import MemoryFacts
from coli.doctor.facts.storage import StorageFacts, probe_storage
from coli.doctor.plan.budgets import Device
from coli.doctor.plan.forecast import Speeds
from coli.doctor.plan.speeds import decide_speeds
from coli.engine.host_memory import HostMemory, probe_host_memory
from coli.errors import UsageError
from coli.paths import cache_folder

__all__ = ["PlanFacts", "PlanMachine", "machine_of", "probe_machine", "read_plan_facts"]

SCHEMA = "coli.machine/1"
_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class PlanMachine:
    """A machine. ``resident_bytes``: what this process holds of its memory, 0 on another machine."""

    name: str
    threads: int
    memory: HostMemory
    device: Device | None
    speeds: Speeds
    resident_bytes: int = 0


@dataclass(frozen=True)
class PlanFacts:
    """The facts of a machine that a plan reads, by the names that they have in a machine's file."""

    memory: MemoryFacts
    cpu: CpuFacts
    storage: tuple[StorageFacts, ...] | None = None
    devices: DeviceFacts | None = None
    measured: Measured | None = None


def machine_of(name: str, facts: PlanFacts, threads: int | None = None, gpu: str | None = None) -> PlanMachine:
    """Return the machine of these facts. ``threads``, ``gpu``: what the user set. Pure. Raises UsageError."""
    device = choose_device(facts.devices, gpu) if facts.devices is not None else None
    threads = threads or facts.cpu.threads.value or facts.cpu.physical_cores.value or 1
    speeds = decide_speeds(threads, facts.measured, disk_kind=disk_kind(facts.storage or ()), device=device is not None)
    return PlanMachine(name, threads, facts.memory.host, device, speeds)


def probe_machine(model: Path, threads: int, resident_bytes: int, loaded: Loaded) -> PlanMachine:
    """Look at this machine. The device is the one that ``loaded`` computes on, as the loader found it."""
    trace = loaded.trace
    served = [trace.candidates[index].devices[0] for index in trace.chain if trace.candidates[index].devices]
    device = _device(served[0], trace.devices) if served and trace.devices is not None else None
    storage = probe_storage("model", model)
    # Of several mounts the one that was measured slowest is waited for.
    measured = [found for one in storage if (found := read_measured(cache_folder(), one)) is not None]
    slowest = min(measured, key=lambda found: found.disk_bytes_per_s.value or 0.0, default=None)
    speeds = decide_speeds(threads, slowest, disk_kind=disk_kind(storage), device=device is not None)
    return PlanMachine("this machine", threads, probe_host_memory(), device, speeds, resident_bytes)


def choose_device(facts: DeviceFacts, gpu: str | None) -> Device | None:
    """Return the device that ``gpu`` names as CUDA_VISIBLE_DEVICES would, or the first usable one. Pure."""
    environment = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": "" if gpu == "none" else gpu}
    selection = select_devices(facts, environment)
    if selection.usable:
        return _device(selection.usable[0], facts)
    if gpu in (None, "none"):
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


def disk_kind(storage: tuple[StorageFacts, ...]) -> str | None:
    """Return the kind of disk below the model, the slowest when it lies on several."""
    order = ("hdd", "usb", "mmc", "virtual", "ssd", "nvme")
    kinds = [str(one.kind.value) for one in storage if one.role == "model" and one.kind.value]
    return min(kinds, key=lambda kind: order.index(kind) if kind in order else 0, default=None)


def read_plan_facts(path: Path) -> tuple[str, PlanFacts]:
    """Read a machine's file, as `coli doctor --record` writes it: name and facts. Raises UsageError."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LIMIT_BYTES + 1)
        if len(raw) > _LIMIT_BYTES:
            raise ValueError(f"more than {_LIMIT_BYTES} bytes")
        document: Any = json.loads(raw)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        name = document.get("name")
        return name if isinstance(name, str) else path.stem, msgspec.convert(document.get("facts"), PlanFacts)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise UsageError(
            str(path),
            "it is not the file of a machine, or it lacks its memory and processor",
            observed=str(error)[:300],
            fix="`coli doctor MODEL --record FILE` writes one",
            code="usage.machine-file",
        ) from None
