"""Commands that a user can paste: true for the platform, the distribution and the rights of this user. Pure."""

from __future__ import annotations

import shlex
from typing import Literal

from coli.doctor.facts.machine import MachineFacts

__all__ = [
    "PROFILE",
    "as_root",
    "container_words",
    "driver_commands",
    "install",
    "install_compiler",
    "install_driver",
    "install_libcuda",
    "without_stubs",
]

PROFILE = "if a new shell sets it again, remove it from your shell's profile too"
"""Belongs to every `unset`: it lasts as long as the shell."""

# What a container was not given -> the kind of container -> how it is given.
_CONTAINERS = {
    "gpu": {
        "docker": "start the container with access to the GPU: docker run --gpus all",
        "podman": "start the container with access to the GPU: podman run --device nvidia.com/gpu=all",
        "kubernetes": "ask for a GPU in the pod's specification (resources.limits: nvidia.com/gpu: 1); the cluster "
        "needs nodes with NVIDIA's device plugin",
        "apptainer": "start the container with access to the GPU: apptainer run --nv",
        "lxc": "pass /dev/nvidia* and the driver's libraries through in the container's configuration",
    },
    "memory": {
        "docker": "raise the limit: docker run --memory; docker update --memory for one that runs",
        "podman": "raise the limit: podman run --memory; podman update --memory for one that runs",
        "kubernetes": "raise resources.limits.memory in the pod's specification",
        "lxc": "raise the container's limit of memory in its configuration",
        "": "raise the limit of the group (systemd: MemoryMax= of the unit or slice; a cluster's job: ask for more)",
    },
    "cpu": {
        "docker": "raise the limit or leave it out: docker run --cpus; docker update --cpus for one that runs",
        "podman": "raise the limit or leave it out: podman run --cpus; podman update --cpus for one that runs",
        "kubernetes": "raise resources.limits.cpu in the pod's specification, or leave it out",
        "lxc": "raise the container's limit of processors in its configuration",
        "": "raise the limit of the group (systemd: CPUQuota= of the unit or slice), if you may",
    },
}

# Word in the name of the system -> how its package manager installs.
_MANAGERS = (
    (("ubuntu", "debian", "mint", "pop!_os", "raspbian"), "apt-get install"),
    (("fedora", "red hat", "rocky", "alma", "centos", "oracle", "amazon"), "dnf install"),
    (("arch", "manjaro", "endeavour", "cachyos"), "pacman -S"),
    (("suse",), "zypper install"),
    (("alpine",), "apk add"),
)
# Words in the name of a release -> the versions of g++ that are packages there, beside the default one.
_PACKAGED_GCC: dict[tuple[str, ...], range] = {
    ("debian", "11"): range(9, 11),
    ("debian", "12"): range(11, 13),
    ("debian", "13"): range(12, 15),
    ("ubuntu", "20.04"): range(7, 11),
    ("ubuntu", "22.04"): range(9, 13),
    ("ubuntu", "24.04"): range(9, 15),
    ("ubuntu", "24.10"): range(11, 15),
    ("ubuntu", "25.04"): range(11, 16),
}
_GXX = {"apt-get install": "g++", "dnf install": "gcc-c++", "pacman -S": "gcc", "zypper install": "gcc-c++"}


def as_root(command: str, facts: MachineFacts) -> str:
    """Return ``command`` as this user must type it."""
    superuser = facts.settings.superuser if facts.settings is not None else None
    if superuser is None:  # containers seldom have sudo, and are seldom entered as another user
        superuser = facts.system is not None and facts.system.container.value is not None
    return command if superuser else f"sudo {command}"


def container_words(what: Literal["gpu", "memory", "cpu"], facts: MachineFacts) -> str | None:
    """Return how this kind of container, or group of a machine, is given more of something; None: not known."""
    if facts.system is None or not facts.system.container.known:
        return None
    words = _CONTAINERS[what]
    return words.get(facts.system.container.value or "") or words.get("")


def _name(facts: MachineFacts) -> str:
    return (facts.system.name.value or "").lower() if facts.system is not None else ""


def _manager(facts: MachineFacts) -> str | None:
    name = _name(facts)
    return next((manager for words, manager in _MANAGERS if any(word in name for word in words)), None)


def install(package: str, facts: MachineFacts) -> tuple[str, ...]:
    """Return the command that installs ``package``; none where the package manager is not known."""
    manager = _manager(facts)
    return (as_root(f"{manager} {package}", facts),) if manager else ()


def install_compiler(facts: MachineFacts, newest_gcc: int | None = None) -> tuple[str, ...]:
    """Return the command that installs a C++ compiler, not later than ``newest_gcc`` where that is a package."""
    manager = _manager(facts)
    if manager is None:
        return ()
    if newest_gcc is None:
        return install(_GXX.get(manager, "g++"), facts)
    name = _name(facts)
    for release, packaged in _PACKAGED_GCC.items():
        if all(word in name for word in release):
            fitting = [version for version in packaged if version <= newest_gcc]
            return install(f"g++-{max(fitting)}", facts) if fitting else ()
    return ()


def install_driver(facts: MachineFacts) -> tuple[str, ...]:
    """Return the commands that install NVIDIA's driver from the distribution's packages."""
    name = _name(facts)
    if "ubuntu" in name or "pop!_os" in name or "mint" in name:
        return (as_root("ubuntu-drivers install", facts), as_root("reboot", facts))
    if "debian" in name:  # its packages are in the section non-free
        return (
            as_root("apt-get install linux-headers-$(uname -r) nvidia-driver", facts),
            as_root("reboot", facts),
        )
    if "fedora" in name:  # from RPM Fusion
        return (as_root("dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda", facts), as_root("reboot", facts))
    if _manager(facts) == "pacman -S":
        return (as_root("pacman -S nvidia-open nvidia-utils", facts), as_root("reboot", facts))
    return ()


def install_libcuda(facts: MachineFacts) -> tuple[str, ...]:
    """Return the command that installs libcuda beside a driver that has none."""
    name = _name(facts)
    if "ubuntu" in name or "pop!_os" in name or "mint" in name:
        version = facts.devices.driver.version.value if facts.devices is not None else None
        return install(f"libnvidia-compute-{version.split('.')[0]}", facts) if version else ()
    if "debian" in name:
        return install("libcuda1", facts)
    if "fedora" in name:
        return install("xorg-x11-drv-nvidia-cuda-libs", facts)
    return install("nvidia-utils", facts) if _manager(facts) == "pacman -S" else ()


def without_stubs(facts: MachineFacts) -> tuple[str, ...]:
    """Return the line that takes the toolkit's stubs out of LD_LIBRARY_PATH."""
    entries = facts.environment.get("LD_LIBRARY_PATH", "").split(":")
    kept = [entry for entry in entries if entry and "stubs" not in entry.split("/")]
    if not kept:
        return ("unset LD_LIBRARY_PATH",)
    return (f"export LD_LIBRARY_PATH={shlex.quote(':'.join(kept))}",)


def driver_commands(kind: str, facts: MachineFacts) -> tuple[str, ...]:
    """Return what does what an advice of this kind (`coli.backends.devices.advice`) says."""
    if kind in ("install-driver", "update-driver", "reinstall-driver"):
        return install_driver(facts)
    if kind == "remove-stubs":
        return without_stubs(facts)
    if kind == "wsl-windows-driver":
        return ("wsl.exe --shutdown",)
    if kind == "permissions":
        return ("ls -l /dev/nvidia*", as_root('usermod -aG video,render "$USER"', facts))
    plain = {
        "reboot": "reboot",
        "load-module": "modprobe nvidia",
        "fabric-manager": "systemctl start nvidia-fabricmanager",
        "card-not-started": "dmesg | grep NVRM",
    }.get(kind)
    return (as_root(plain, facts),) if plain else ()
