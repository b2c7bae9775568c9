"""What to do about a driver that cannot be used, by its state and the kind of machine. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from coli.backends.devices.facts import DeviceFacts

__all__ = ["DRIVER_FLOORS", "Advice", "decide_advice", "driver_at_least", "driver_floor"]

# The lowest driver that runs what a toolkit of this major makes (minor version compatibility), Linux and Windows.
DRIVER_FLOORS: dict[int, tuple[str, str]] = {
    11: ("450.80.02", "452.39"),
    12: ("525.60.13", "528.33"),
    13: ("580.65.06", "580.88"),
}


def driver_floor(toolkit_major: int, windows: bool = False) -> str | None:
    """Return the lowest driver for a toolkit's major; None for a major that we do not know."""
    floors = DRIVER_FLOORS.get(toolkit_major)
    return None if floors is None else floors[windows]


def driver_at_least(version: str, floor: str) -> bool:
    """Compare releases of a driver by their numbers: 525.125.06 is later than 525.60.13. Only two fields decide.

    The floors of a release differ in the third field between packagings (580.65.06, 580.65.05).
    """
    return _numbers(version) >= _numbers(floor)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version)[:2])


@dataclass(frozen=True)
class Advice:
    """``kind`` is stable; ``text`` is one sentence of what to do."""

    kind: str
    text: str


def decide_advice(facts: DeviceFacts) -> Advice | None:
    """Return what makes the GPU usable; None when it is, or when there is none to be used."""
    state = facts.driver.state
    if state == "ok":
        return None
    cards = facts.pci_cards.value or 0
    if facts.container and state in ("nvml-unknown-error", "no-permission"):
        return Advice(
            "restart-container",
            "restart the container: it lost access to the GPU while it ran, and the host's driver is sound",
        )
    # A tool that does not start, without the library that it needs: only a part of the driver was handed in.
    partial = state == "failed" and facts.driver.libcuda.value is None
    if facts.container and (
        partial or state in ("absent", "library-missing", "driver-present-tool-missing", "not-loaded")
    ):
        return Advice(
            "container-gpu-runtime",
            "start the container with access to the GPU (docker run --gpus all; podman --device nvidia.com/gpu=all)",
        )
    if facts.platform == "wsl2":
        return Advice(
            "wsl-windows-driver",
            "update NVIDIA's driver on the Windows side and run `wsl --shutdown`; none is installed inside WSL",
        )
    if state == "mismatch":
        return Advice("reboot", "reboot: the driver was upgraded, and the kernel still runs the module of the old one")
    if state == "absent":
        if cards and facts.platform == "linux":
            return Advice("install-driver", "install NVIDIA's driver from the packages of your distribution")
        return None
    if state == "no-usable-device" and cards:
        return Advice(
            "card-not-started",
            "look into `dmesg | grep NVRM`: cards of the RTX 50 series need the open kernel module; others may need "
            "Resizable BAR and Above 4G Decoding switched on in the BIOS",
        )
    if state == "stub-library":
        return Advice("remove-stubs", "take the toolkit's stubs folder out of LD_LIBRARY_PATH and the run path")
    if state == "driver-too-old":
        return Advice("update-driver", "install a newer NVIDIA driver")
    if state == "unsupported-compatibility":
        return Advice("remove-cuda-compat", "take cuda-compat out of LD_LIBRARY_PATH, or install a newer driver")
    if state == "not-ready":
        return Advice("fabric-manager", "start the fabric manager: systemctl start nvidia-fabricmanager")
    if state == "not-loaded":
        return Advice(
            "load-module", "load the kernel module (modprobe nvidia); after a kernel update, reinstall the driver"
        )
    if state == "no-permission":
        return Advice("permissions", "give this user access to /dev/nvidia*")
    if state in ("library-missing", "driver-present-tool-missing"):
        return Advice("reinstall-driver", "install the driver again, with its libraries and nvidia-smi")
    return Advice("reboot", "look into `dmesg | grep NVRM`, then reboot")
