"""The kinds driver, unified-memory, visible-devices, gpu, container, wsl, windows, mig and loader: facts from a case.

`observe(case, work)` runs the real detector and the real decisions on what the folder holds and returns the keys that
`expected.json` uses. What a folder holds decides what is done, not its name.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

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

KINDS = frozenset(
    {"driver", "unified-memory", "visible-devices", "gpu", "container", "wsl", "windows", "mig", "loader"}
)
TOOL = Path(__file__).with_name("tools") / "fake_nvidia_smi.py"
MIB = 1 << 20
PCI_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def prepare(case: Path, work: Path, smi: str = "smi.json") -> tuple[Path, Path, dict[str, str]]:
    """Lay a case out: return its root, the folder that stands for PATH, and the environment."""
    root, tools = work / "root", work / "bin"
    for folder in (root, tools):
        shutil.rmtree(folder, ignore_errors=True)
    tools.mkdir(parents=True)
    if (case / "root").is_dir():
        shutil.copytree(case / "root", root, symlinks=True)
    root.mkdir(exist_ok=True)
    environment = {"PATH": str(tools)}
    if (case / smi).is_file():
        tool = tools / "nvidia-smi"
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{TOOL}" "$@"\n', encoding="utf-8")
        tool.chmod(0o755)
        environment["FAKE_SMI"] = str(case / smi)
    if (case / "env.json").is_file():
        for name, value in read(case / "env.json").items():
            if value is not None:
                environment[name] = value.replace("$ROOT", str(root))
    return root, tools, environment


def probe(case: Path, work: Path, smi: str = "smi.json") -> tuple[DeviceFacts, dict[str, str]]:
    root, tools, environment = prepare(case, work, smi)
    return probe_devices(environment, (tools,), root, "linux"), environment


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


def observe(case: Path, work: Path) -> dict[str, Any]:
    """Return the facts of a case by the keys of `expect`."""
    if (case / "layouts.json").is_file():
        return {"table": windows_rows(case, work)}
    if (case / "pick.json").is_file():
        return {"table": [[cc, pick(cc)] for cc, _ in read(case / "pick.json")]}
    if (case / "symbols.json").is_file():
        return loaded_by_symbols(read(case / "symbols.json"), work)
    several = sorted(case.glob("smi-*.json"))
    if several:
        files = [path.stem.removeprefix("smi-") for path in several]
        return {"each": [of_machine(*probe(case, work, path.name)) for path in several], "files": files}
    facts, environment = probe(case, work)
    found = of_machine(facts, environment)
    if (case / "visible.json").is_file():
        rows = [(value, visible_devices(value, facts.gpus, "PCI_BUS_ID")) for value, _ in read(case / "visible.json")]
        found["table"] = [[value, [device.gpu.index for device in seen.devices]] for value, seen in rows]
    if (case / "lib.json").is_file():
        found |= predictions(read(case / "lib.json"), facts)
    return found


def of_machine(facts: DeviceFacts, environment: dict[str, str]) -> dict[str, Any]:
    driver = facts.driver
    selection = select_devices(facts, environment)
    advice = decide_advice(facts)
    pools = memory_pools(facts)
    variables = engine_environment(selection.usable, environment)
    free = [device.memory.free_bytes for device in selection.usable]
    return {
        "driver.state": driver.state,
        "driver.version": driver.version.value,
        "driver.max_cuda": version(driver.max_cuda.value),
        "libcuda": driver.libcuda.value,
        "nvidia_smi": driver.nvidia_smi.value,
        "platform": facts.platform,
        "container": facts.container,
        "pci_nvidia_cards": facts.pci_cards.value,
        "gpus": [show(gpu, facts) for gpu in facts.gpus],
        "advice_kind": advice.kind if advice else None,
        "advice": advice.text if advice else "",
        "status": "ok" if driver.state == "ok" and selection.usable else "fail-gpu-only",
        "status_at_most": "ok" if not selection.skipped else "warn" if selection.usable else "fail",
        "cpu_usable": True,  # nothing of the driver is linked or needed
        "can_run_cuda12": runs_toolkit(driver, 12),
        "can_run_cuda13": runs_toolkit(driver, 13),
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
        "warn": "; ".join(facts.notes),
        "notes": facts.notes,
    }


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


def windows_rows(case: Path, work: Path) -> list[dict[str, Any]]:
    rows = []
    for number, layout in enumerate(read(case / "layouts.json")):
        root = work / f"layout-{number}"
        for name in layout["files"]:
            path = root / re.sub(r"^[A-Za-z]:/", "", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"placeholder")
        facts = probe_devices({"SystemRoot": r"C:\Windows"}, (), root, "win32")
        row: dict[str, Any] = {"found": facts.driver.nvidia_smi.value}
        if row["found"] is None:
            row["gpu_state"] = facts.driver.state
        rows.append(row)
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
    for library in sorted(set(table) - {"required", "optional"}):
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


def differences(case: Path, observed: dict[str, Any]) -> list[str]:
    """Compare what was observed with `expected.json`; return a line for each difference."""
    expect = read(case / "expected.json")["expect"]
    return [line for key, want in expect.items() for line in _differs(key, want, observed, case)]


def _differs(key: str, want: Any, observed: dict[str, Any], case: Path) -> list[str]:
    if key == "table":
        return _table(read(case / want), observed.get("table"))
    if key == "each":
        rows = observed["each"]
        flat = [{**row["gpus"][0], "gpus": len(row["gpus"])} for row in rows if row["gpus"]]
        return [f"{row}" for row in flat if any(row.get(k) != v for k, v in want.items())] or (
            [] if len(flat) == len(rows) else ["a rendering without a device"]
        )
    if key in ("gpus", "visible", "skipped"):
        have = observed[key]
        if len(have) != len(want):
            return [f"{key}: {len(have)} instead of {len(want)}"]
        return [
            line
            for one, wanted in zip(have, want, strict=True)
            for name, value in wanted.items()
            for line in _differs(name, value, one, case)
        ]
    if key.endswith("_in"):
        have = observed.get(key[:-3])
        return [] if have in want else [f"{key}: {have!r}"]
    if key.endswith("_max"):
        have = observed.get(key[:-4])
        return [] if have is not None and have <= want else [f"{key}: {have!r}"]
    if key == "status_at_most":
        scale = ("ok", "note", "warn", "fail")
        return [] if scale.index(observed[key]) <= scale.index(want) else [f"{key}: {observed[key]}"]
    if key == "warn":
        return [] if want in observed["warn"] else [f"warn: {observed['warn']!r}"]
    if key == "files":
        return [] if observed["files"] == sorted(want) else [f"files: {observed['files']}"]
    have = observed.get(key)
    return [] if have == want else [f"{key}: {have!r} instead of {want!r}"]


def _table(want: list[Any], have: list[Any] | None) -> list[str]:
    if have is None or len(have) != len(want):
        return ["table: rows are missing"]
    lines = []
    for wanted, one in zip(want, have, strict=True):
        if isinstance(wanted, dict):
            keys = set(wanted) - {"files"}
            if any(one.get(key) != wanted[key] for key in keys):
                lines.append(f"table: {one} instead of {wanted}")
        # "cpu or probe: ..." leaves the choice.
        elif str(wanted[1]).startswith("cpu or "):
            if not str(one[1]).startswith("cpu"):
                lines.append(f"table: {one} instead of {wanted}")
        elif list(one) != list(wanted):
            lines.append(f"table: {one} instead of {wanted}")
    return lines
