"""The gates of CUDA libraries: driver, devices, architecture, memory. They judge facts and return findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coli.backends.containers import ContainerError
from coli.backends.devices.advice import decide_advice, driver_at_least, driver_floor
from coli.backends.devices.facts import DeviceFacts
from coli.backends.devices.visible import Selection, VisibleDevice
from coli.backends.fatbin import FatbinError, read_fatbin
from coli.backends.manifest import Manifest
from coli.backends.targets import MINIMUM, DeviceCode, DriverLimits, Target, decide_code
from coli.backends.trace import Finding, ok, refused
from coli.units import render_size

__all__ = ["Served", "check_architecture", "check_devices", "check_driver", "check_memory", "read_targets"]


# What a context takes before the first weight: the driver's own part, kernels, workspace.
CONTEXT_BYTES = 512 << 20


@dataclass(frozen=True)
class Served:
    """A device that a library serves, and the code that will run on it."""

    device: VisibleDevice
    why: str


def check_driver(facts: DeviceFacts, toolkit: tuple[int, int] | None) -> Finding:
    """Gate driver: one that works, its libcuda can be opened, and it is not older than the toolkit's major asks for."""
    gate = "driver"
    driver = facts.driver
    advice = decide_advice(facts)
    fix = advice.text if advice else "use a CPU backend"
    if driver.state != "ok":
        return refused(gate, driver.state, driver.evidence, expected="a driver that works", fix=fix)
    if driver.libcuda.value is None:
        fix = "install the driver's compute libraries; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return refused(gate, "no-libcuda", f"libcuda.so.1 is {driver.libcuda.source}", expected="libcuda.so.1", fix=fix)
    if driver.cuda_error.value != 0:
        evidence = next((note for note in facts.notes if note.startswith("libcuda")), "libcuda could not be asked")
        return refused(
            gate, "libcuda-broken", evidence, expected="a libcuda that starts", fix="install the driver again"
        )
    if toolkit is None:
        return refused(gate, "toolkit-unknown", "the manifest names no toolkit", expected="the toolkit's version")
    windows = facts.platform == "windows"
    floor = driver_floor(toolkit[0], windows)
    if floor is None:
        return refused(
            gate,
            "toolkit-unknown",
            f"built with CUDA {toolkit[0]}.{toolkit[1]}",
            expected="CUDA 11, 12 or 13",
            fix="use a library that this coli's `coli build` made",
        )
    version, max_cuda = driver.version.value, driver.max_cuda.value
    shown = f"driver {version or 'of an unknown release'}" + (f", CUDA {max_cuda[0]}.{max_cuda[1]}" if max_cuda else "")
    # A compatibility package brings a libcuda that is newer than the kernel's module: its own word decides.
    if max_cuda is not None and max_cuda[0] >= toolkit[0]:
        return ok(gate, f"{shown}; CUDA {toolkit[0]}.{toolkit[1]} needs {floor} or later")
    if max_cuda is None and version is not None and driver_at_least(version, floor):
        return ok(gate, f"{shown}; CUDA {toolkit[0]}.{toolkit[1]} needs {floor} or later")
    return refused(
        gate,
        "too-old",
        f"{shown}; the library was built with CUDA {toolkit[0]}.{toolkit[1]}",
        expected=f"driver {floor} or later",
        fix=f"install a newer driver, or build with a toolkit of CUDA {max_cuda[0]}"
        if max_cuda
        else "install a newer driver",
    )


def check_devices(selection: Selection) -> Finding:
    """Gate devices: CUDA_VISIBLE_DEVICES leaves a device that can compute, and which ones is known."""
    gate = "devices"
    skipped = [f"{skip.device.name} is skipped: {skip.reason}" for skip in selection.skipped]
    if not selection.order_known:
        return refused(
            gate,
            "order-unknown",
            "CUDA_DEVICE_ORDER is set, and which device a number means is not known",
            expected="devices that are known",
            fix="unset CUDA_DEVICE_ORDER, or name the devices in CUDA_VISIBLE_DEVICES by UUID (nvidia-smi -L)",
        )
    if not selection.usable:
        return refused(
            gate,
            "none",
            "; ".join([selection.why, *skipped]),
            expected=f"a visible device of capability {MINIMUM} or later",
            fix="set CUDA_VISIBLE_DEVICES to a device that can compute (nvidia-smi -L), or unset it",
        )
    named = [f"{device.name} ({device.capability.value})" for device in selection.usable]
    return ok(gate, "; ".join([", ".join(named), *skipped]))


def read_targets(path: Path, manifest: Manifest) -> tuple[tuple[Target, ...], str] | Finding:
    """Return the targets of a library's device code and where they were read; a refusal when file and manifest differ.

    A section that we cannot read (a toolkit that writes another format) leaves the manifest, tied to the file by its
    hash.
    """
    gate = "architecture"
    try:
        fatbin = read_fatbin(path)
    except FatbinError as error:
        return manifest.targets, f"the manifest ({error})"
    except (ContainerError, OSError) as error:
        return refused(gate, "unreadable", str(error), expected="a library that can be read")
    found = fatbin.targets if fatbin is not None else ()
    if set(found) != set(manifest.targets):
        return refused(
            gate,
            "manifest",
            f"the file has {', '.join(map(str, found)) or 'no device code'}",
            expected=f"{', '.join(map(str, manifest.targets))}, as the manifest says",
            fix="build the backend again",
        )
    return found, "the library"


def check_architecture(
    targets: tuple[Target, ...], origin: str, manifest: Manifest, selection: Selection, driver: DriverLimits
) -> tuple[Finding, tuple[Served, ...]]:
    """Gate architecture: the library has code for a selected device, and the driver takes it.

    Every device is judged. Those that are not served are named. A flavour is for the one device whose capability is
    exactly that of its own kernels.
    """
    gate = "architecture"
    code = DeviceCode(targets, manifest.toolkit)
    flavour = manifest.flavour_arch
    served: list[Served] = []
    others: list[str] = []
    codes: list[str] = []
    for device in selection.usable:
        capability = device.capability.value
        path = decide_code(code, capability, driver)
        label = f"{device.name} ({capability})"
        if flavour is not None and capability != flavour.capability:
            others.append(f"{label}: its own kernels are {flavour}")
            codes.append("flavour")
        elif path.works:
            served.append(Served(device, f"{label}: {path.why}"))
        else:
            others.append(f"{label}: {path.why}")
            codes.append(path.code)
    if served:
        return ok(gate, "; ".join([*(s.why for s in served), *(f"skipped: {text}" for text in others)])), tuple(served)
    fix = {
        "driver-too-old-for-ptx": "install a newer driver, or build for this device: CUDA_ARCH=native coli build",
        "flavour": "use the generic CUDA library",
    }.get(codes[0] if codes else "", "build for this device: CUDA_ARCH=native coli build")
    finding = refused(
        gate,
        codes[0] if codes else "no-device",
        "; ".join(others) or "no device is selected",
        expected=f"code for a selected device (targets from {origin})",
        fix=fix,
    )
    return finding, ()


def check_memory(served: Sequence[Served]) -> Finding:
    """Gate memory: the first served device has room for a context. How many weights fit too is the plan's matter."""
    gate = "memory"
    device = served[0].device
    memory = device.memory
    if memory.kind.value == "unified":
        return ok(gate, f"{device.name} shares the machine's memory")
    free, total = memory.free_bytes.value, memory.total_bytes.value
    if free is None:
        return ok(gate, f"{device.name}: how much is free is not known ({memory.free_bytes.source})")
    evidence = f"{device.name}: {render_size(free)} free" + (f" of {render_size(total)}" if total else "")
    if free >= CONTEXT_BYTES:
        return ok(gate, evidence)
    return refused(
        gate,
        "full",
        evidence,
        expected=f"at least {render_size(CONTEXT_BYTES)} for the context",
        fix="end the programs that hold the memory: nvidia-smi lists them",
    )
