"""Kinds of driver, devices and loader: facts from coli.backends."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from adapter import Row
from pools import pool_facts
from prepared import TOOLS, Prepared

from coli.backends.abi import Slot
from coli.backends.candidates import Search, find_candidates
from coli.backends.cpu_level import Cpu
from coli.backends.device_gates import check_architecture, check_devices, check_driver
from coli.backends.devices import (
    DeviceFacts,
    Fact,
    Gpu,
    decide_advice,
    driver_at_least,
    driver_floor,
    engine_environment,
    memory_pools,
    probe_devices,
    select_devices,
    visible_devices,
)
from coli.backends.devices.facts import Driver
from coli.backends.devices.smi import lost_devices
from coli.backends.devices.visible import Selection, VisibleDevice
from coli.backends.handshake import decide_slots
from coli.backends.loader import decide, refusal_of
from coli.backends.manifest import Manifest
from coli.backends.targets import (
    Capability,
    DeviceCode,
    DriverLimits,
    decide_code,
    parse_capability,
    parse_target,
)
from coli.backends.trace import Candidate, CandidateTrace, Trace
from coli.errors import BackendRefused

MIB = 1 << 20


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def probe(machine: Prepared, smi: Path | None = None) -> DeviceFacts:
    """Run the detector on the machine of a case; ``smi``: another description of what nvidia-smi says."""
    folders = [machine.root / entry.lstrip("/") for entry in machine.environment["PATH"].split(":")]
    if smi is not None:
        stand_in = machine.root / smi.stem / "nvidia-smi"
        stand_in.parent.mkdir(exist_ok=True)
        command = shlex.join(["exec", sys.executable, "-IS", str(TOOLS / "fake_nvidia_smi.py")])
        stand_in.write_text(f'#!/bin/sh\nFAKE_SMI={shlex.quote(str(smi))} {command} "$@"\n', encoding="utf-8")
        stand_in.chmod(0o755)
        folders = [stand_in.parent]
    return probe_devices(machine.environment, folders, machine.root, "linux")


def mib(fact: Fact[int]) -> int | None:
    return None if fact.value is None else fact.value // MIB


def version(pair: tuple[int, int] | None) -> str | None:
    return None if pair is None else f"{pair[0]}.{pair[1]}"


def capability(value: Capability | None) -> str | None:
    return None if value is None else str(value)


def show(gpu: Gpu, facts: DeviceFacts) -> dict[str, Any]:
    memory = gpu.memory
    unified = memory.kind.value == "unified"
    return {
        "index": gpu.index,
        "name": gpu.name.value,
        "uuid": gpu.uuid.value,
        "cc": capability(gpu.capability.value),
        "memory.kind": memory.kind.value,
        "memory.total_mib": mib(memory.total_bytes),
        "memory.free_mib": mib(memory.free_bytes),
        "memory.used_mib": mib(memory.used_bytes),
        "memory.reserved_mib": mib(memory.reserved_bytes),
        "memory.total_is": "MemTotal" if unified and memory.total_bytes == facts.system_total_bytes else None,
        "memory.free_is": "MemAvailable" if unified and memory.free_bytes == facts.system_available_bytes else None,
        "mig": len(gpu.mig),
    }


def show_visible(device: VisibleDevice) -> dict[str, Any]:
    return {
        "index": device.gpu.index,
        "uuid": device.uuid,
        "name": device.name,
        "cc": capability(device.capability.value),
        "memory.total_mib": mib(device.memory.total_bytes),
        "memory.free_mib": mib(device.memory.free_bytes),
    }


def driver_facts(machine: Prepared) -> dict[str, Any]:
    """Return the facts of a case by the keys of `expect`. What its folder holds decides what is asked."""
    case = machine.case
    if (case / "layouts.json").is_file():
        return {"table": windows_rows(case, machine.root)}
    if (case / "pick.json").is_file():
        return {"table": [picked(cc, want) for cc, want in read(case / "pick.json")]}
    if (case / "symbols.json").is_file():
        return loaded_by_symbols(read(case / "symbols.json"), machine.root)
    several = sorted(case.glob("smi-*.json"))
    if several:
        each = [of_machine(probe(machine, path), machine.environment) for path in several]
        files = [path.stem.removeprefix("smi-") for path in several]
        rows = [{**(one["gpus"] or [{}])[0], **one, "gpus": len(one["gpus"])} for one in each]
        same = {key: value for key, value in rows[0].items() if all(row.get(key) == value for row in rows)}
        return {"each": same, "files": files}
    facts = probe(machine)
    found = {**pool_facts(machine, facts), **of_machine(facts, machine.environment)}
    if "table" in machine.expect:
        found["table"] = [visible_row(value, want, facts) for value, want in read(case / machine.expect["table"])]
    if (case / "lib.json").is_file():
        found |= predictions(read(case / "lib.json"), facts)
    return found


def visible_row(value: str | None, want: list[int], facts: DeviceFacts) -> Row:
    seen = [device.gpu.index for device in visible_devices(value, facts.gpus, "PCI_BUS_ID").devices]
    return Row(f"CUDA_VISIBLE_DEVICES={value!r}", want, seen, seen == want)


def picked(cc: str | None, want: str) -> Row:
    found = pick(cc)
    # "cpu or probe: ..." leaves the choice, and of a reason only that of the limit has fixed words.
    alike = found.startswith("cpu") if want.startswith("cpu or ") else found.partition(":")[0] == want.partition(":")[0]
    return Row(str(cc), want, found, alike and ("below" in want) == ("below" in found))


def of_machine(facts: DeviceFacts, environment: dict[str, str]) -> dict[str, Any]:
    driver = facts.driver
    selection = select_devices(facts, environment)
    advice = decide_advice(facts)
    pools = memory_pools(facts)
    variables = engine_environment(selection.usable, environment)
    lost = lost_devices(facts.notes)
    free = [device.memory.free_bytes for device in selection.usable]
    return {
        "driver.state": driver.state,
        "driver.version": driver.version.value,
        "driver.max_cuda": version(driver.max_cuda.value),
        "driver.module_version": driver.module_version.value,
        "driver.library_version": driver.library_version.value,
        "libcuda": driver.libcuda.value,
        "nvidia_smi": driver.nvidia_smi.value,
        "platform": facts.platform,
        "container": facts.container,
        "pci_nvidia_cards": facts.pci_cards.value,
        "gpus": [show(gpu, facts) for gpu in facts.gpus],
        "advice_kind": advice.kind if advice else None,
        "status": ("warn" if selection.skipped or lost else "ok") if selection.usable else "fail-gpu-only",
        "cpu_usable": True,  # nothing of the driver is linked or needed
        **{f"can_run_cuda{major}": runs_toolkit(driver, major) for major in (11, 12, 13)},
        "pool_count": sum(1 for pool in pools if pool.kind == "system" or pool.total_bytes.known),
        "pool_total_bytes": pools[0].total_bytes.value,
        "plan_base_mib": sum(fact.value // MIB for fact in free if fact.value is not None),
        "visible": [show_visible(device) for device in selection.usable],
        "usable": [device.gpu.index for device in selection.usable],
        "skipped": [{"index": skip.device.gpu.index, "reason": skip.reason} for skip in selection.skipped],
        "match_by": "uuid-or-bus" if variables.get("CUDA_VISIBLE_DEVICES", "").startswith(("GPU-", "MIG-")) else None,
        "engine_env": {name: value for name, value in variables.items() if name == "CUDA_DEVICE_ORDER"},
        "plan_gpu": selection.usable[0].name if selection.usable else None,
        "backend": "cuda" if check_driver(facts, (12, 8)).verdict == "ok" and selection.usable else "cpu",
        "warn": next((note.partition(":")[0] for note in facts.notes if "stubs" in note), None),
        "must_not": broken(facts, advice.text if advice else ""),
    }


def broken(facts: DeviceFacts, advice: str) -> list[str]:
    found = [f"a GPU named {gpu.name.value}" for gpu in facts.gpus if "ailed" in (gpu.name.value or "")]
    inside = facts.platform == "wsl2" or facts.container
    return found + [f"advise: {advice}" for word in ("apt", "install nvidia") if inside and word in advice.lower()]


def runs_toolkit(driver: Driver, major: int) -> bool | None:
    floor = driver_floor(major)
    if driver.version.value is None or floor is None:
        return None
    return driver_at_least(driver.version.value, floor)


def predictions(library: dict[str, Any], facts: DeviceFacts) -> dict[str, Any]:
    """Return, for every capability that a table may ask for, what happens to the library under this driver."""
    targets = tuple(
        parse_target(prefix + number)
        for prefix, name in (("sm_", "sass"), ("compute_", "ptx"))
        for number in library.get(name, ())
    )
    major, minor = library["built_with"].split(".")
    code = DeviceCode(targets, (int(major), int(minor)))
    limits = DriverLimits(facts.driver.max_cuda.value)
    found: dict[str, Any] = {}
    for number in (*range(50, 54), *range(60, 63), *range(70, 76), *range(80, 90), 90, *range(100, 104), 110, 120, 121):
        device = Capability(*divmod(number, 10))
        path = decide_code(code, device, limits)
        found[str(device)] = "ok" if path.works else f"fail:{path.code}"
        if path.needs_cuda:
            found["needs_driver_cuda"] = version(path.needs_cuda)
    return found


def windows_rows(case: Path, work: Path) -> list[Row]:
    rows = []
    for number, layout in enumerate(read(case / "layouts.json")):
        root = work / f"layout-{number}"
        for name in layout["files"]:
            path = root / re.sub(r"^[A-Za-z]:/", "", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"placeholder")
        folders = [root / re.sub(r"^[A-Za-z]:/", "", folder) for folder in layout.get("path", ())]
        driver = probe_devices({"SystemRoot": r"C:\Windows"}, folders, root, "win32").driver
        found = {"found": driver.nvidia_smi.value, "gpu_state": driver.state, "libcuda": driver.libcuda.value}
        want = {key: value for key, value in layout.items() if key not in ("files", "path")}
        rows.append(Row(f"layout {number}", want, found, all(found.get(key) == want[key] for key in want)))
    return rows


GENERIC = tuple(parse_target(t) for t in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120", "compute_120"))
DEEPGEMM = (parse_target("sm_120a"),)


def pick(cc: str | None) -> str:
    """Choose between the two CUDA libraries and the CPU for one card, with the loader's own gates."""
    value = None if cc is None else parse_capability(cc)
    known: Fact[Capability] = Fact.of(value, "table") if value else Fact.unknown("table")
    facts = DeviceFacts("linux", False, Driver("ok", "table"), (Gpu(0, capability=known),))
    selection: Selection = select_devices(facts, {})
    devices = check_devices(selection)
    if devices.verdict != "ok":
        return "cpu: " + "; ".join(skip.reason for skip in selection.skipped)
    for name, targets, flavour in (("deepgemm", DEEPGEMM, DEEPGEMM[0]), ("generic", GENERIC, None)):
        manifest = Manifest("f", "0", name, "cuda", "", "nvcc", "unverified", (12, 8), targets, flavour)
        finding, _ = check_architecture(targets, "table", manifest, selection, DriverLimits((13, 0)))
        if finding.verdict == "ok":
            return name
    return "cpu: no code"


def loaded_by_symbols(table: dict[str, Any], work: Path) -> dict[str, Any]:
    """Judge libraries by which of the listed functions they have, with the loader's own gate and choice."""
    names = [(name, True) for name in table["required"]] + [(name, False) for name in table["optional"]]
    slots = [
        Slot(index, "stage", "mandatory" if needed else "optional", name, (), index)
        for index, (name, needed) in enumerate(names)
    ]
    found: dict[str, Any] = {}
    traces: dict[str, CandidateTrace] = {}
    libraries = {name for name, functions in table.items() if isinstance(functions, list)}
    for library in sorted(libraries - {"required", "optional"}):
        rows = [[slot.name, slot.signature, slot.name in table[library]] for slot in slots]
        finding = decide_slots(rows, slots=slots)
        path = work / f"lib{library}.so"
        traces[library] = CandidateTrace(Candidate(path, library, "test"), (finding,), kind="cpu")
        if finding.verdict == "ok":
            absent = "optional absent" in finding.evidence
            found[library] = "loaded, feature off" if absent else "loaded"
        else:
            found[library] = "refused:" + finding.evidence.removeprefix("absent: ").replace(", ", ",")
        forced = Search(str(path), "COLI_BACKEND")
        trace = Trace("x86_64", str(path), (), (traces[library],))
        chosen, _ = decide(trace, forced, Cpu("x86_64", None, ("portable",)))
        refused = chosen is None and isinstance(refusal_of(trace, forced), BackendRefused)
        found[f"forced {library}"] = "error" if refused else "loaded"
    for name in ("libcoli_cpu_portable.so", "libcoli_cuda.so", "libcoli_cuda_dg.so"):
        (work / "order").mkdir(parents=True, exist_ok=True)
        (work / "order" / name).write_bytes(b"")
    _, candidates = find_candidates(Search(package_folder=work / "order"))
    words = {"cuda-dg": "deepgemm", "cuda": "generic", "cpu-portable": "cpu"}
    found["order"] = [words[candidate.name] for candidate in candidates]
    return found


KINDS = dict.fromkeys(
    ("driver", "unified-memory", "visible-devices", "gpu", "container", "wsl", "windows", "mig", "loader"), driver_facts
)
