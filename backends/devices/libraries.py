"""What libcuda and libnvidia-ml say, asked in a child process with a deadline: a crash or a hang is a finding."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coli.backends.child import run_child
from coli.backends.devices.facts import UNKNOWN, DriverState, Fact, Gpu, Memory, MigSlice
from coli.backends.devices.smi import classify_failure, normal_bus_id, parse_version
from coli.backends.targets import Capability

__all__ = ["CUDA_STATES", "LibraryReport", "ask_library", "parse_cuda", "parse_nvml"]

_MAX_BYTES = 1 << 20
_MAX_MEMORY = 1 << 50
_CHILD = Path(__file__).with_name("_library.py")  # imports nothing of coli: it starts in a few milliseconds

# What cuInit returns -> state, and what that number means.
CUDA_STATES: dict[int, tuple[DriverState, str]] = {
    34: ("stub-library", "the library is a stub for linking"),
    35: ("driver-too-old", "the driver is older than the library needs"),
    100: ("no-usable-device", "no device"),
    101: ("no-usable-device", "invalid device"),
    304: ("no-permission", "the operating system refused a call"),
    800: ("no-permission", "not permitted"),
    801: ("failed", "not supported"),
    802: ("not-ready", "the system is not ready: on machines with NVSwitch the fabric manager must run"),
    803: ("mismatch", "kernel module and libcuda are of different releases"),
    804: ("unsupported-compatibility", "this card cannot use the forward compatibility package (cuda-compat)"),
    999: ("failed", "unknown error"),
}

Step = Mapping[str, Any]


@dataclass(frozen=True)
class LibraryReport:
    """What a library told. ``state`` None: nothing speaks against it, or it could not be asked (``asked`` False)."""

    asked: bool
    state: DriverState | None = None
    evidence: str = ""
    error: Fact[int] = UNKNOWN
    version: Fact[str] = UNKNOWN
    max_cuda: Fact[tuple[int, int]] = UNKNOWN
    gpus: tuple[Gpu, ...] = ()


def ask_library(
    kind: Literal["cuda", "nvml"], path: Path, environment: Mapping[str, str], deadline_s: float
) -> LibraryReport:
    """Open a library in a child process and ask it for driver and devices. Never raises.

    The child sees every device, in the order of the bus unless the environment says another.
    """
    name = "libcuda" if kind == "cuda" else "libnvidia-ml"
    visible = {key: value for key, value in environment.items() if key != "CUDA_VISIBLE_DEVICES"}
    visible.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    command = [sys.executable, "-I", str(_CHILD), kind, str(path)]
    ended = run_child(command, deadline_s=deadline_s, max_bytes=_MAX_BYTES, environment=visible)
    steps = _steps(ended.output)
    last = next(reversed(steps), "open")
    report = (parse_cuda if kind == "cuda" else parse_nvml)(steps)
    if ended.end == "timeout":
        return LibraryReport(True, "timeout", f"{name} did not answer within {deadline_s:g} s after step {last!r}")
    if ended.end == "signal":
        return LibraryReport(True, "failed", f"{name} crashed after step {last!r} (signal {ended.code})")
    if ended.end == "not started" or ended.code != 0:
        said = ended.errors.splitlines()[-1][:200] if ended.errors else f"exit code {ended.code}"
        return LibraryReport(False, evidence=f"{name} could not be asked: {said}")
    return report


def _steps(data: bytes) -> dict[str, dict[str, Any]]:
    steps: dict[str, dict[str, Any]] = {}
    for line in data.splitlines():
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(facts, dict) or not isinstance(facts.get("step"), str):
            break
        steps[facts["step"]] = facts
    return steps


def _number(value: Any, most: int = 1 << 31) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def _word(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) and value.strip() and value.isprintable() else None


def _fact(value: Any, source: str) -> Fact[Any]:
    return Fact.unknown(source) if value is None else Fact.of(value, source)


def _cuda_version(value: Any, source: str) -> Fact[tuple[int, int]]:
    number = _number(value, 100_000)
    return Fact.of((number // 1000, number % 1000 // 10), source) if number else Fact.unknown(source)


def _not_opened(steps: Mapping[str, Step], name: str) -> LibraryReport | None:
    opened = steps.get("open")
    if opened is None:
        return LibraryReport(False, evidence=f"{name} could not be asked")
    if opened.get("error") is not None:
        return LibraryReport(False, evidence=f"{name} does not open: {str(opened['error'])[:200]}")
    if "symbol" in steps:
        return LibraryReport(False, evidence=f"{name} lacks a function: {str(steps['symbol'].get('error'))[:200]}")
    return None


def _devices(steps: Mapping[str, Step]) -> list[Step]:
    return [facts for step, facts in steps.items() if re.fullmatch(r"device \d+", step) and facts.get("error") == 0]


def parse_cuda(steps: Mapping[str, Step]) -> LibraryReport:
    """Turn the child's steps for libcuda into facts. Pure."""
    broken = _not_opened(steps, "libcuda")
    if broken is not None:
        return broken
    source = "libcuda"
    version = steps.get("version", {})
    max_cuda = _cuda_version(version.get("version") if version.get("error") == 0 else None, source)
    error = _number(steps.get("init", {}).get("error"), 9999)
    if error is None:
        return LibraryReport(False, evidence="libcuda did not say whether it starts", max_cuda=max_cuda)
    if error:
        state, meaning = CUDA_STATES.get(error, ("failed", "an error that is not known"))
        return LibraryReport(
            True, state, f"cuInit returned {error}: {meaning}", Fact.of(error, source), UNKNOWN, max_cuda
        )
    gpus: list[Gpu] = []
    for facts in _devices(steps):
        major, minor = _number(facts.get("major"), 99), _number(facts.get("minor"), 9)
        capability = Capability(major, minor) if major and minor is not None else None
        place = [_number(facts.get(key), 1 << 20) for key in ("domain", "bus", "device")]
        bus = f"{place[0]:08X}:{place[1]:02X}:{place[2]:02X}.0" if None not in place else None
        unified = _number(facts.get("unified"), 1)
        uuid = _word(facts.get("uuid"))
        total = _number(facts.get("total"), _MAX_MEMORY)
        gpus.append(
            Gpu(
                len(gpus),
                name=_fact(_word(facts.get("name")), source),
                uuid=_fact(f"GPU-{uuid}" if uuid else None, source),
                bus_id=_fact(normal_bus_id(bus), source),
                capability=_fact(capability, source),
                memory=Memory(total_bytes=_fact(total, source)),
                integrated=_fact(None if unified is None else bool(unified), source),
                ordinal=_fact(_number(facts.get("ordinal"), 255), source),
            )
        )
    return LibraryReport(True, None, "cuInit succeeded", Fact.of(0, source), UNKNOWN, max_cuda, tuple(gpus))


_VIRTUALIZATION = {0: "None", 1: "Pass-Through", 2: "VGPU", 3: "Host VGPU", 4: "Host VSGA"}


def _nvml_memory(value: Any, source: str) -> Memory:
    facts = value if isinstance(value, dict) else {}

    def field(name: str) -> Fact[int]:
        number = _number(facts.get(name), _MAX_MEMORY)
        # Drivers of unified memory answer with zeros.
        return Fact.unknown(source) if number is None or facts.get("total") == 0 else Fact.of(number, source)

    return Memory(UNKNOWN, field("total"), field("free"), field("used"), field("reserved"))


def parse_nvml(steps: Mapping[str, Step]) -> LibraryReport:
    """Turn the child's steps for libnvidia-ml into facts. Pure."""
    broken = _not_opened(steps, "libnvidia-ml")
    if broken is not None:
        return broken
    source = "libnvidia-ml"
    error = _number(steps.get("init", {}).get("error"), 9999)
    if error is None:
        return LibraryReport(False, evidence="libnvidia-ml did not say whether it starts")
    if error:
        known = classify_failure(error, "")
        state: DriverState = known[0] if known else "nvml-unknown-error" if error == 999 else "failed"
        return LibraryReport(True, state, f"nvmlInit returned {error}")
    version = steps.get("version", {})
    gpus: list[Gpu] = []
    for facts in _devices(steps):
        pair = facts.get("capability")
        numbers = [_number(item, 99) for item in pair] if isinstance(pair, list) and len(pair) == 2 else [None, None]
        capability = Capability(numbers[0], numbers[1]) if numbers[0] and numbers[1] is not None else None
        mig, virtual = _number(facts.get("mig"), 1), _number(facts.get("virtualization"), 99)
        slices = facts.get("slices")
        gpus.append(
            Gpu(
                _number(facts.get("index"), 255) or 0,
                name=_fact(_word(facts.get("name")), source),
                uuid=_fact(_word(facts.get("uuid")), source),
                bus_id=_fact(normal_bus_id(_word(facts.get("bus_id"))), source),
                capability=_fact(capability, source),
                memory=_nvml_memory(facts.get("memory"), source),
                mig_enabled=_fact(None if mig is None else bool(mig), source),
                mig=tuple(_slice(part, source) for part in slices if isinstance(part, dict))
                if isinstance(slices, list)
                else (),
                virtualization=_fact(_VIRTUALIZATION.get(-1 if virtual is None else virtual), source),
            )
        )
    return LibraryReport(
        True,
        None,
        "nvmlInit succeeded",
        UNKNOWN,
        parse_version(_word(version.get("driver")), source),
        _cuda_version(version.get("version"), source),
        tuple(gpus),
    )


def _slice(part: Step, source: str) -> MigSlice:
    return MigSlice(
        _number(part.get("index"), 255) or 0,
        uuid=_fact(_word(part.get("uuid")), source),
        gpu_instance=_fact(_number(part.get("gpu_instance"), 255), source),
        compute_instance=_fact(_number(part.get("compute_instance"), 255), source),
        memory=_nvml_memory(part.get("memory"), source),
    )
