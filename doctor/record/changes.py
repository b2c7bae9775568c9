"""`--set KEY=VALUE`: another machine out of a known one. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, get_args

from coli.backends.cpu_level import LEVELS
from coli.backends.devices import DeviceFacts, Driver, Fact, Gpu, Memory
from coli.backends.devices.facts import DriverState
from coli.backends.targets import parse_capability
from coli.build_matrix.version import parse_version
from coli.doctor.facts.cpu import CpuFacts
from coli.doctor.facts.disks import DiskKind
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.facts.memory import MemoryFacts
from coli.doctor.facts.storage import StorageFacts
from coli.engine.host_memory import HostMemory, ram_budget_bytes
from coli.errors import UsageError
from coli.settings.names import nearest
from coli.units import parse_size, render_size

__all__ = ["KEYS", "change_facts"]

_SOURCE = "--set"
_GPU = re.compile(r"gpu\.(\d{1,2})\.(\w+)")
_MAX_GPUS = 16
_STATES: tuple[DriverState, ...] = get_args(DriverState)
_KINDS: tuple[DiskKind, ...] = get_args(DiskKind)

KEYS = {
    "gpu.N.vram": "memory of GPU N, all of it free; N may be one more than there are",
    "gpu.N.free": "free memory of GPU N",
    "gpu.N.capability": "compute capability of GPU N: 8.6",
    "gpu.N.name": "name of GPU N",
    "ram.total": "memory of the machine",
    "ram.available": "memory that is available",
    "cpu.cores": "physical cores, which is the number of threads",
    "cpu.level": f"level of the processor: {', '.join(LEVELS)}",
    "driver.state": "state of the driver: ok, absent, mismatch, ...",
    "driver.version": "release of the driver",
    "driver.cuda": "newest CUDA that the driver runs: 12.4",
    "model.disk": f"kind of the disk of MODEL: {', '.join(_KINDS)}",
}
"""Key -> what it changes. Sizes are as everywhere: 12GiB; a bare number is GiB."""


def change_facts(facts: MachineFacts, changes: Iterable[str]) -> MachineFacts:
    """Return ``facts`` with each `KEY=VALUE` applied, in order. Raises UsageError for an unknown key or a bad value.

    What the gates of CUDA libraries said of other devices or another driver holds no longer: where there are such
    libraries, backends are not known then.
    """
    changes = tuple(changes)
    there = len(facts.devices.gpus) if facts.devices is not None else 0
    if changes:
        facts = replace(facts, here=False, name=facts.name or "a changed machine")
    for change in changes:
        key, equals, value = change.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not value:
            raise _refuse(change, "is not KEY=VALUE", f"for example gpu.0.vram=10GiB; keys: {', '.join(KEYS)}")
        found = _GPU.fullmatch(key)
        if found is not None and f"gpu.N.{found[2]}" in KEYS:
            facts = _with_devices(facts, _gpu(facts.devices, int(found[1]), found[2], value))
        elif key in _CHANGES:
            facts = _CHANGES[key](facts, value)
        else:
            general = re.sub(r"^gpu\.\d+\.", "gpu.N.", key)
            close = nearest(general, KEYS)
            raise _refuse(
                key, "is not a fact that can be set", ", ".join(KEYS), f"did you mean {close}?" if close else None
            )
    for gpu in facts.devices.gpus[there:] if facts.devices is not None else ():
        if gpu.capability.value is None:
            key = f"gpu.{gpu.index}.capability"
            raise _refuse(
                f"gpu.{gpu.index}",
                "makes a GPU that the machine has not, and its compute capability is not known",
                f"{key} beside it",
                f"add --set {key}=8.6, or what that card has",
            )
    return facts


def _refuse(text: str, rule: str, expected: str, fix: str | None = None) -> UsageError:
    return UsageError(f"--set {text}", rule, expected=expected, fix=fix, code="usage.set")


def _no_facts(key: str) -> UsageError:
    return _refuse(key, "changes what was not looked at", "facts to change", "choose checks that look at it (--only)")


def _with_devices(facts: MachineFacts, devices: DeviceFacts) -> MachineFacts:
    trace = facts.backends
    judged = trace is not None and any(row.kind == "cuda" for row in trace.candidates)
    return replace(facts, devices=devices, backends=None if judged else trace)


def _no_devices() -> DeviceFacts:
    """Return what stands for the devices of a machine where nobody looked for any."""
    return DeviceFacts("linux", False, Driver("absent", _SOURCE))


def _gpu(devices: DeviceFacts | None, index: int, field: str, value: str) -> DeviceFacts:
    devices = devices or _no_devices()
    gpus = list(devices.gpus)
    if index > len(gpus) or index >= _MAX_GPUS:
        raise _refuse(f"gpu.{index}", "is not a GPU of the machine", f"gpu.0 to gpu.{len(gpus)}, the last one is new")
    if index == len(gpus):
        gpus.append(Gpu(index, name=Fact.of("GPU", _SOURCE), memory=Memory(kind=Fact.of("dedicated", _SOURCE))))
    gpu, memory = gpus[index], gpus[index].memory
    if field == "vram":
        size = Fact.of(parse_size(value, f"--set gpu.{index}.vram"), _SOURCE)
        none = Fact.of(0, _SOURCE)
        gpu = replace(gpu, memory=Memory(memory.kind, size, size, none, none))
    elif field == "free":
        nbytes, total = parse_size(value, f"--set gpu.{index}.free"), memory.total_bytes.value
        if total is not None and nbytes > total:
            raise _refuse(
                f"gpu.{index}.free={value}",
                "is more than the GPU has",
                f"at most {render_size(total)}",
                "set its vram first",
            )
        size = Fact.of(nbytes, _SOURCE)
        gpu = replace(gpu, memory=replace(memory, free_bytes=size))
    elif field == "capability":
        capability = parse_capability(value)
        if capability is None:
            raise _refuse(f"gpu.{index}.capability={value}", "is not a compute capability", "two numbers: 8.6")
        gpu = replace(gpu, capability=Fact.of(capability, _SOURCE))
    else:
        gpu = replace(gpu, name=Fact.of(value[:200], _SOURCE))
    gpus[index] = gpu
    driver = devices.driver
    if not devices.gpus and driver.state != "ok":  # a first card comes with a driver that runs it
        driver = Driver(
            "ok",
            _SOURCE,
            version=Fact.of("580.65.06", _SOURCE),
            max_cuda=Fact.of((13, 0), _SOURCE),
            libcuda=Fact.of("libcuda.so.1", _SOURCE),
            cuda_error=Fact.of(0, _SOURCE),
        )
    return replace(devices, gpus=tuple(gpus), driver=driver)


def _ram(field: str) -> Callable[[MachineFacts, str], MachineFacts]:
    def change(facts: MachineFacts, value: str) -> MachineFacts:
        if facts.memory is None:
            raise _no_facts(f"ram.{field}")
        size = Fact.of(parse_size(value, f"--set ram.{field}"), _SOURCE)
        host = facts.memory.host
        total = host.total_bytes.value
        if field == "available" and total is not None and size.value is not None and size.value > total:
            raise _refuse(
                f"ram.available={value}",
                "is more than the machine has",
                f"at most {render_size(total)}",
                "set ram.total first",
            )
        if field == "total":
            # The same share of it is in use as before would be a guess: all of a machine that is imagined is free.
            host = replace(
                host,
                total_bytes=size,
                system_total_bytes=size,
                available_bytes=size,
                system_available_bytes=size,
                source=_SOURCE,
                limit_at=Fact.absent(_SOURCE),
                groups=(),
            )
        else:
            host = replace(host, available_bytes=size, system_available_bytes=size)
        return replace(facts, memory=_budget(facts.memory, host))

    return change


def _budget(memory: MemoryFacts, host: HostMemory) -> MemoryFacts:
    resident = memory.resident_bytes.value or 0
    return replace(memory, host=host, budget_bytes=Fact.of(ram_budget_bytes(host, resident), _SOURCE))


def _cpu(facts: MachineFacts, key: str, **changes: Any) -> MachineFacts:
    if facts.cpu is None:
        raise _no_facts(key)
    cpu: CpuFacts = replace(facts.cpu, **changes)
    return replace(facts, cpu=cpu)


def _cores(facts: MachineFacts, value: str) -> MachineFacts:
    if not value.isdecimal() or not 1 <= int(value[:6]) <= 1024:
        raise _refuse(f"cpu.cores={value}", "is not a number of cores", "1 to 1024")
    cores = Fact.of(int(value), _SOURCE)
    return _cpu(facts, "cpu.cores", physical_cores=cores, threads=cores, quota_cores=Fact[float].absent(_SOURCE))


def _level(facts: MachineFacts, value: str) -> MachineFacts:
    if value not in LEVELS:
        raise _refuse(f"cpu.level={value}", "is not a level", ", ".join(LEVELS))
    machines = {LEVELS[level][0] for level in facts.cpu.levels} - {None} if facts.cpu is not None else set()
    if machines and LEVELS[value][0] not in (None, *machines):
        known = [level for level, (machine, _) in LEVELS.items() if machine is None or machine in machines]
        raise _refuse(f"cpu.level={value}", "is a level of another kind of processor", ", ".join(known))
    order = list(LEVELS)
    levels = tuple(level for level in order[order.index(value) :] if LEVELS[level][0] in (None, LEVELS[value][0]))
    # The loader chose for the processor that is there.
    return replace(_cpu(facts, "cpu.level", level=value, levels=levels), backends=None)


def _driver(field: str) -> Callable[[MachineFacts, str], MachineFacts]:
    def change(facts: MachineFacts, value: str) -> MachineFacts:
        devices = facts.devices or _no_devices()
        driver = devices.driver
        if field == "state":
            state = next((state for state in _STATES if state == value), None)
            if state is None:
                raise _refuse(f"driver.state={value}", "is not a state", ", ".join(_STATES))
            gpus = devices.gpus if value == "ok" else ()
            driver = replace(driver, state=state, evidence=_SOURCE)
            return _with_devices(facts, replace(devices, driver=driver, gpus=gpus))
        version = parse_version(value)
        if version is None:
            raise _refuse(f"driver.{field}={value}", "is not a version", "numbers with dots")
        if field == "cuda":
            driver = replace(driver, max_cuda=Fact.of((version.major, version.minor), _SOURCE))
        else:
            driver = replace(driver, version=Fact.of(value, _SOURCE))
        return _with_devices(facts, replace(devices, driver=driver))

    return change


def _disk(facts: MachineFacts, value: str) -> MachineFacts:
    kind = next((kind for kind in _KINDS if kind == value), None)
    if kind is None:
        raise _refuse(f"model.disk={value}", "is not a kind of disk", ", ".join(_KINDS))
    storage: list[StorageFacts] = [
        replace(one, kind=Fact.of(kind, _SOURCE), fs_class=Fact.of("local", _SOURCE)) if one.role == "model" else one
        for one in facts.storage or ()
    ]
    if not any(one.role == "model" for one in storage):
        raise _no_facts("model.disk")
    return replace(facts, storage=tuple(storage))


_CHANGES: dict[str, Callable[[MachineFacts, str], MachineFacts]] = {
    "ram.total": _ram("total"),
    "ram.available": _ram("available"),
    "cpu.cores": _cores,
    "cpu.level": _level,
    "driver.state": _driver("state"),
    "driver.version": _driver("version"),
    "driver.cuda": _driver("cuda"),
    "model.disk": _disk,
}
