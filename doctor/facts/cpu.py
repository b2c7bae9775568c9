"""The processor: model, level, cores, and how many of them this process may use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from coli.backends.cpu_level import cpu_level
from coli.backends.devices.facts import UNKNOWN, Fact
from coli.engine.host_cpu import decide_threads, probe_host_cpu
from coli.engine.small_files import read_small

__all__ = ["CpuFacts", "probe_cpu"]

# What /proc/cpuinfo calls the model: x86, then the kinds of Arm, POWER and RISC-V kernels.
_MODEL = re.compile(r"^(model name|Model|Hardware|cpu model|cpu|uarch)\s*:[ \t]*(\S.{0,199})$", re.MULTILINE)
_FLAGS = re.compile(r"^(?:flags|Features)\s*:[ \t]*(.*)$", re.MULTILINE)
_TREE_MODELS = ("proc/device-tree/model", "sys/firmware/devicetree/base/model")


@dataclass(frozen=True)
class CpuFacts:
    """``levels``: those that it runs, preferred first. ``features``: flags as Linux spells them.

    ``affinity``: logical processors that the process may run on. ``quota_cores``: the tightest limit of its cgroups,
    in cores, absent when there is none, and ``quota_at`` the group that sets it. ``threads``: what an engine starts.
    """

    machine: str
    level: str
    levels: tuple[str, ...]
    model: Fact[str] = UNKNOWN
    features: Fact[frozenset[str]] = UNKNOWN
    physical_cores: Fact[int] = UNKNOWN
    logical_cores: Fact[int] = UNKNOWN
    affinity: Fact[int] = UNKNOWN
    quota_cores: Fact[float] = UNKNOWN
    quota_at: Fact[str] = UNKNOWN
    threads: Fact[int] = UNKNOWN


def probe_cpu(root: Path = Path("/"), machine: str | None = None) -> CpuFacts:
    """Look at the processor of the machine below ``root``; ``machine`` names its kind for another root."""
    cpu = cpu_level(root, machine)
    host = probe_host_cpu(root)
    text = read_small(root / "proc/cpuinfo") or ""
    threads: Fact[int] = Fact.unknown(host.logical_cores.source)
    if host.logical_cores.known:
        threads = Fact.of(decide_threads(host), "coli.engine.host_cpu")
    return CpuFacts(
        cpu.machine,
        cpu.best,
        cpu.levels,
        _model(root, text),
        _features(cpu.flags, text),
        host.physical_cores,
        host.logical_cores,
        host.affinity,
        host.quota_cores,
        host.quota_at,
        threads,
    )


def _model(root: Path, cpuinfo: str) -> Fact[str]:
    names = dict(reversed([(name, value.strip()) for name, value in _MODEL.findall(cpuinfo)]))
    for name in ("model name", "Model", "Hardware", "cpu model", "cpu", "uarch"):
        if name in names:
            return Fact.of(names[name], f"/proc/cpuinfo {name}")
    for name in _TREE_MODELS:  # Arm kernels name the board there and nothing in cpuinfo
        text = (read_small(root / name, 256) or "").strip("\0 \n")
        if text:
            return Fact.of(text, f"/{name}")
    return Fact.unknown("/proc/cpuinfo names no model")


def _features(flags: frozenset[str] | None, cpuinfo: str) -> Fact[frozenset[str]]:
    if flags is not None:
        return Fact.of(flags, "coli.backends.cpu_level")
    rows = [frozenset(row.split()) for row in _FLAGS.findall(cpuinfo)]
    if not rows:
        return Fact.unknown("/proc/cpuinfo names no flags")
    return Fact.of(frozenset.intersection(*rows), "/proc/cpuinfo")
