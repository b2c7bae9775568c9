"""The level of this machine's CPU: the one detector, for the loader, the doctor and the build."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from coli.backends.files import is_file, is_there

__all__ = ["LEVELS", "Cpu", "cpu_level", "machine_below", "missing_flags", "normal_machine"]

# What a library of a level may execute beyond the baseline, as Linux spells the flags (the x86-64 psABI levels; lzcnt
# is "abm"; xsave stands for OSXSAVE, which the kernel only reports when it saves those registers).
_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

# Level -> (machine or None for any, flags that it needs), the preferred first.
LEVELS: dict[str, tuple[str | None, frozenset[str]]] = {
    "x86-64-v4": ("x86_64", _V4),
    "x86-64-v3": ("x86_64", _V3),
    "neon": ("aarch64", frozenset()),
    "portable": (None, frozenset()),
}

_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Cpu:
    """A machine (``x86_64``, ``aarch64``), its flags as Linux spells them, the levels that it runs, preferred first.

    ``flags`` is None when they are not known: then only levels that need none are offered.
    """

    machine: str
    flags: frozenset[str] | None
    levels: tuple[str, ...]

    @property
    def best(self) -> str:
        """Return the preferred level."""
        return self.levels[0]


def normal_machine(name: str) -> str:
    """Return one spelling for each machine: ``AMD64`` and ``x86_64`` are ``x86_64``, ``arm64`` is ``aarch64``."""
    return _MACHINES.get(name.lower(), name.lower())


# What only the kernel of one kind of machine writes into /proc/cpuinfo.
_KINDS = (
    ("x86_64", r"^vendor_id\s*: (?!IBM/S390)|^flags\s*:"),
    ("aarch64", r"^CPU architecture\s*: (?:8|AArch64)\b"),
    ("armv7l", r"^CPU architecture\s*: "),
    ("riscv64", r"^isa\s*: rv64"),
    ("ppc64le", r"^cpu\s*: POWER"),
    ("s390x", r"^vendor_id\s*: IBM/S390"),
    ("loongarch64", r"^(?:Model Name|cpu family)\s*: Loongson"),
)
_LOADERS = {
    "lib64/ld-linux-x86-64.so.2": "x86_64",
    "lib/ld-musl-x86_64.so.1": "x86_64",
    "lib/ld-linux-aarch64.so.1": "aarch64",
    "lib/ld-musl-aarch64.so.1": "aarch64",
}


def machine_below(root: Path) -> str | None:
    """Return what kind of machine a recorded tree is of: it may be examined on another kind. None: nothing tells."""
    text = _cpuinfo(root) or ""
    named = next((name for name, mark in _KINDS if re.search(mark, text, re.MULTILINE)), None)
    if named is not None:
        return named
    return next((name for loader, name in _LOADERS.items() if is_there(root / loader)), None)


def missing_flags(cpu: Cpu, level: str) -> tuple[str, ...] | None:
    """Return the flags that ``level`` needs and ``cpu`` lacks, sorted; None when the CPU's flags are not known."""
    needed = LEVELS[level][1]
    if cpu.flags is None:
        return None if needed else ()
    return tuple(sorted(needed - cpu.flags))


def _cpuinfo(root: Path) -> str | None:
    path = root / "proc/cpuinfo"
    try:
        if not is_file(path):  # in a recorded tree it may be anything: a FIFO would be waited for
            return None
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(16 << 20)
    except OSError:
        return None


def _linux_flags(root: Path) -> frozenset[str] | None:
    """Read the flags that every processor has from ``/proc/cpuinfo`` (a kernel may report cores that differ)."""
    text = _cpuinfo(root)
    if text is None:
        return None
    rows = [frozenset(line.partition(":")[2].split()) for line in text.splitlines() if line.startswith("flags")]
    return frozenset.intersection(*rows) if rows else None


def _archspec_flags() -> frozenset[str] | None:
    """Ask archspec, which knows the ways of the systems without ``/proc``; its names are those of Linux."""
    try:
        from archspec import cpu as archspec_cpu

        flags = frozenset(archspec_cpu.host().features)
        if sys.platform == "win32":
            import ctypes

            kernel = ctypes.WinDLL("kernel32")
            kernel.GetEnabledXStateFeatures.restype = ctypes.c_uint64
            return saved_flags(flags, kernel.GetEnabledXStateFeatures())
        return flags
    except Exception:  # whatever fails in a foreign probe, the answer is "not known"
        return None


def saved_flags(flags: frozenset[str], enabled: int) -> frozenset[str]:
    """Return the flags whose registers the system saves.

    ``enabled``: XCR0, as GetEnabledXStateFeatures has it: bits 1 and 2 for AVX, 5 to 7 more for AVX-512. CPUID alone
    shows what the processor has, also where a hypervisor or a boot option keeps the system from saving it.
    """
    if enabled & 0x06 != 0x06:
        return flags - _V4 | (flags & {"bmi1", "bmi2", "abm", "movbe"})
    return flags if enabled & 0xE0 == 0xE0 else flags - (_V4 - _V3)


def decide_levels(machine: str, flags: frozenset[str] | None) -> tuple[str, ...]:
    """Return the levels that run on ``machine`` with ``flags``, preferred first. Portable always does."""
    return tuple(
        level
        for level, (needs_machine, needs_flags) in LEVELS.items()
        if needs_machine in (None, machine) and (not needs_flags or (flags is not None and needs_flags <= flags))
    )


def cpu_level(root: Path = Path("/"), machine: str | None = None) -> Cpu:
    """Detect the CPU of the machine below ``root``.

    Another root replays a recorded machine; then ``machine`` names it.
    """
    name = normal_machine(machine or platform.machine())
    flags: frozenset[str] | None = None
    if name == "x86_64":
        # On Windows "/" is the root of the current drive, where anyone may make a folder proc.
        if sys.platform != "win32" or root != Path("/"):
            flags = _linux_flags(root)
        if flags is None and root == Path("/"):
            flags = _archspec_flags()
    return Cpu(name, flags, decide_levels(name, flags))
