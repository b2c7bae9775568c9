"""The system: which one, its kernel and C library, and whether it is a container, a WSL or a Tegra."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from coli.backends.devices.facts import UNKNOWN, Fact, Platform
from coli.backends.devices.proc import probe_container_kind, probe_platform
from coli.backends.files import is_file
from coli.build_matrix.compilers import probe_glibc
from coli.build_matrix.tool import ask
from coli.build_matrix.toolkits import Places
from coli.engine.small_files import read_small

__all__ = ["SystemFacts", "probe_system"]

_OS_RELEASE = ("etc/os-release", "usr/lib/os-release")
_MUSL_LOADERS = ("lib/ld-musl-x86_64.so.1", "lib/ld-musl-aarch64.so.1")


@dataclass(frozen=True)
class SystemFacts:
    """``platform`` as the device probe names it. ``container``: its kind (`docker`, `podman`, ...), absent outside.

    ``libc``: name and version (`glibc 2.41`, `musl`). ``wsl``: 1 or 2, absent elsewhere.
    """

    platform: Platform
    name: Fact[str] = UNKNOWN
    kernel: Fact[str] = UNKNOWN
    machine: Fact[str] = UNKNOWN
    libc: Fact[str] = UNKNOWN
    container: Fact[str] = UNKNOWN
    wsl: Fact[int] = UNKNOWN
    tegra: Fact[bool] = UNKNOWN


def probe_system(places: Places, system: str | None = None) -> SystemFacts:
    """Look at the machine of ``places``. ``system``: as sys.platform names it, this one's if None."""
    root = places.root
    system = system or sys.platform
    kind = probe_platform(root, system)
    kernel = _kernel(root)
    return SystemFacts(
        kind,
        _name(root, system),
        kernel,
        Fact.of(places.machine, "given" if root != Path("/") else "uname"),
        _libc(places, system),
        probe_container_kind(root, places.environment),
        _wsl(root, system, kernel),
        Fact.of(kind == "tegra", "/proc/device-tree/compatible, /etc/nv_tegra_release"),
    )


def _name(root: Path, system: str) -> Fact[str]:
    for name in _OS_RELEASE if system == "linux" else ():
        fields = _shell_fields(read_small(root / name, 64 << 10) or "")
        text = fields.get("PRETTY_NAME") or " ".join(filter(None, (fields.get("NAME"), fields.get("VERSION_ID"))))
        if text:
            return Fact.of(text[:200], f"/{name}")
    if root == Path("/") and system != "linux":
        return Fact.of(platform.platform(), "platform")
    return Fact.unknown("/etc/os-release names no system")


def _shell_fields(text: str) -> dict[str, str]:
    """Return the assignments of os-release(5): shell words, nothing expanded. Lines that are none are left out."""
    fields = {}
    for line in text.split("\n")[:256]:
        name, _, value = line.partition("=")
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            continue
        try:
            fields[name] = "".join(shlex.split(value))
        except ValueError:  # an open quote
            continue
    return fields


def _kernel(root: Path) -> Fact[str]:
    text = (read_small(root / "proc/sys/kernel/osrelease", 256) or "").strip()
    if text:
        return Fact.of(text, "/proc/sys/kernel/osrelease")
    found = re.match(r"Linux version (\S{1,200})", read_small(root / "proc/version", 4096) or "")
    if found:
        return Fact.of(found[1], "/proc/version")
    if root == Path("/"):
        return Fact.of(platform.release(), "uname")
    return Fact.unknown("/proc/version names no kernel")


def _libc(places: Places, system: str) -> Fact[str]:
    if system != "linux":
        return Fact.absent("a system with another C library")
    version = probe_glibc(places)
    if version is not None:
        return Fact.of(f"glibc {version.short}", "ldd --version")
    if any(is_file(places.root / name) for name in _MUSL_LOADERS):
        return _musl(places)
    if places.root == Path("/"):
        name, number = platform.libc_ver()
        if name:
            return Fact.of(f"{name} {number}", "platform")
    return Fact.unknown("no ldd on PATH tells")


def _musl(places: Places) -> Fact[str]:
    """Return the version of musl, which its ldd tells beside the complaint that it knows no `--version`."""
    for folder in places.path_folders():
        if is_file(folder / "ldd"):
            answer = ask([folder / "ldd", "--version"], places.environment)
            found = re.search(r"^musl libc.*\nVersion (\d+(?:\.\d+){1,3})", answer.errors + answer.output, re.MULTILINE)
            if found:
                return Fact.of(f"musl {found[1]}", "ldd")
    return Fact.of("musl", "/lib/ld-musl")


def _wsl(root: Path, system: str, kernel: Fact[str]) -> Fact[int]:
    """Return 2 for the virtual machine (its kernel is called so), 1 for the layer without a kernel of Linux."""
    if system != "linux":
        return Fact.absent("not Linux")
    version = (kernel.value or "") + (read_small(root / "proc/version", 4096) or "")
    if not version:
        return Fact.unknown("/proc/version cannot be read")
    if "microsoft" not in version.lower():
        return Fact.absent("/proc/version")
    # WSL 1 answers 4.4.0-NNNNN-Microsoft; own kernels of WSL 2 are from 4.19 on.
    return Fact.of(1 if re.search(r"4\.4\.0-\d+-Microsoft", version) else 2, "/proc/version")
