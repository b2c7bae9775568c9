"""What files below a root folder tell of driver, devices and machine. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from coli.backends.devices.facts import UNKNOWN, Fact, Gpu, Platform
from coli.backends.devices.smi import normal_bus_id
from coli.backends.files import is_file, is_folder, is_there
from coli.backends.targets import Capability

__all__ = [
    "probe_container",
    "probe_container_kind",
    "probe_module_version",
    "probe_pci_cards",
    "probe_platform",
    "probe_proc_gpus",
    "probe_system_memory",
    "probe_tegra",
]

_MAX_BYTES = 1 << 20
_MAX_ENTRIES = 4096

# The chip in the device tree -> its capability. 264 reports 11.0 from CUDA 13 on and 10.1 before.
_TEGRA_CHIPS = {
    "tegra210": Capability(5, 3),
    "tegra186": Capability(6, 2),
    "tegra194": Capability(7, 2),
    "tegra234": Capability(8, 7),
    "tegra264": Capability(11, 0),
}


def _read(path: Path) -> str | None:
    try:
        if not is_file(path):
            return None
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for _, entry in zip(range(_MAX_ENTRIES), folder.iterdir(), strict=False))
    except OSError:
        return []


def probe_module_version(root: Path) -> Fact[str]:
    """Read the release of the loaded kernel module; both the proprietary and the open one write it."""
    source = "/proc/driver/nvidia/version"
    text = _read(root / "proc/driver/nvidia/version")
    if text is None:
        return Fact.unknown(f"{source} is not there")
    release = r"(\d{1,4}(?:\.\d{1,4}){1,3})(?![\d.])"
    found = re.search(rf"^NVRM version:.*?Kernel Module(?: for \S+)?\s+{release}", text, re.MULTILINE)
    return Fact.of(found[1], source) if found else Fact.unknown(f"{source} names no release")


def probe_proc_gpus(root: Path) -> tuple[Gpu, ...]:
    """Read the devices that the kernel module has, in the order of the bus."""
    source = "/proc/driver/nvidia/gpus"
    gpus: list[Gpu] = []
    for folder in _entries(root / "proc/driver/nvidia/gpus"):
        text = _read(folder / "information")
        if text is None:
            continue
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
        name, uuid, bus = fields.get("Model"), fields.get("GPU UUID", ""), normal_bus_id(fields.get("Bus Location"))
        gpus.append(
            Gpu(
                len(gpus),
                name=Fact.of(name[:200], source) if name and name != "Unknown" else Fact.unknown(source),
                # A device that was never started shows question marks.
                uuid=Fact.of(uuid, source) if re.fullmatch(r"GPU-[0-9a-f-]{36}", uuid) else Fact.unknown(source),
                bus_id=Fact.of(bus, source) if bus else Fact.unknown(source),
            )
        )
    return tuple(gpus)


def probe_pci_cards(root: Path) -> Fact[int]:
    """Count display and 3D controllers of NVIDIA on the bus, whether a driver knows them or not."""
    folder = root / "sys/bus/pci/devices"
    if not is_folder(folder):
        return Fact.unknown("/sys/bus/pci/devices is not there")
    count = 0
    for device in _entries(folder):
        vendor, kind = (_read(device / "vendor") or "").strip(), (_read(device / "class") or "").strip()
        count += vendor.lower() == "0x10de" and kind[:6] in ("0x0300", "0x0302")
    return Fact.of(count, "/sys/bus/pci/devices")


def probe_tegra(root: Path) -> Fact[Capability] | None:
    """Return the capability of a Tegra from its device tree; unknown for a chip that we do not know, None elsewhere."""
    source = "/proc/device-tree/compatible"
    text = _read(root / "proc/device-tree/compatible") or ""
    chip = re.search(r"nvidia,(tegra\d+)", text)
    if chip:
        known = _TEGRA_CHIPS.get(chip[1])
        return Fact.of(known, f"{source}: {chip[1]}") if known else Fact.unknown(f"{source}: {chip[1]} is not known")
    if is_file(root / "etc/nv_tegra_release"):
        return Fact.unknown("/etc/nv_tegra_release names no chip")
    return None


def probe_platform(root: Path, system: str) -> Platform:
    """Say on what kind of system the driver would live. ``system``: ``linux`` or ``win32``, as sys.platform."""
    if system == "win32":
        return "windows"
    if system != "linux":
        return "other"
    kernel = (_read(root / "proc/version") or "") + (_read(root / "proc/sys/kernel/osrelease") or "")
    if "microsoft" in kernel.lower():
        return "wsl2"
    return "tegra" if probe_tegra(root) is not None else "linux"


# The mark of each kind in the name of the first process's group, most particular first.
_CONTAINER_GROUPS = ("kubepods", "libpod", "docker", "containerd", "lxc")


def probe_container_kind(root: Path, environment: Mapping[str, str]) -> Fact[str]:
    """Name the kind of container that this is the inside of: its marks are files, a variable, the name of its group."""
    given = environment.get("container", "")
    if is_there(root / "run/.containerenv"):
        return Fact.of("podman", "/run/.containerenv")
    groups = _read(root / "proc/1/cgroup") or ""
    group = next((word for word in _CONTAINER_GROUPS if word in groups), None)
    if group == "kubepods" or environment.get("KUBERNETES_SERVICE_HOST"):
        return Fact.of("kubernetes", "/proc/1/cgroup" if group else "KUBERNETES_SERVICE_HOST")
    if is_there(root / ".dockerenv"):
        return Fact.of("docker", "/.dockerenv")
    if is_folder(root / ".singularity.d"):
        return Fact.of("apptainer", "/.singularity.d")
    if group:
        return Fact.of("podman" if group == "libpod" else group, "/proc/1/cgroup")
    if given and given != "wsl":
        return Fact.of(given[:40], "the variable container")
    # systemd and LXC set the variable for the first process and leave a note for the others.
    note = (_read(root / "run/systemd/container") or "").strip()
    if note and note != "wsl":  # systemd counts WSL 2 as a container; it is a machine of its own
        return Fact.of(note[:40], "/run/systemd/container")
    return Fact.absent("no mark of one")


def probe_container(root: Path, environment: Mapping[str, str]) -> bool:
    """Say whether this is the inside of a container."""
    return probe_container_kind(root, environment).value is not None


def probe_system_memory(root: Path) -> tuple[Fact[int], Fact[int]]:
    """Read total and available bytes of the system's memory."""
    text = _read(root / "proc/meminfo")
    if text is None:
        return UNKNOWN, UNKNOWN
    found = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d{1,15}) kB", text, re.MULTILINE))

    def field(name: str) -> Fact[int]:
        source = f"/proc/meminfo {name}"
        return Fact.of(int(found[name]) * 1024, source) if name in found else Fact.unknown(source)

    return field("MemTotal"), field("MemAvailable")
