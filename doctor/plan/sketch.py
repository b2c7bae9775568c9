"""A machine written by hand, to plan for one that is not this one: `coli plan MODEL --machine FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from coli.backends.devices.facts import Fact
from coli.doctor.plan.budgets import Device
from coli.doctor.plan.speeds import Rated
from coli.engine.host_memory import HostMemory
from coli.errors import UsageError
from coli.units import parse_size

__all__ = ["SCHEMA", "Sketch", "read_sketch"]

SCHEMA = "coli.machine-sketch/1"
_LIMIT_BYTES = 1 << 20


class _Disk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str | None = None
    bytes_per_s: float | None = None


class _Ram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    total: str
    available: str
    bytes_per_s: float | None = None


class _Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    total: str
    free: str
    bytes_per_s: float | None = None
    unified: bool = False
    windows: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: str
    name: str
    threads: int
    ram: _Ram
    disk: _Disk = _Disk()
    gpu: _Gpu | None = None
    source: str = ""
    published_tokens_per_s: tuple[float, float] | None = None


class Sketch(msgspec.Struct, frozen=True):
    """A machine: memory, device, threads, disk. ``published``: tokens per second that somebody measured on it."""

    name: str
    threads: int
    memory: HostMemory
    device: Device | None
    disk_kind: str | None
    rated: Rated
    published: tuple[float, float] | None


def read_sketch(path: Path) -> Sketch:
    """Read a machine file: sizes as text ("32GiB"), rates in bytes per second. Raises UsageError."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LIMIT_BYTES + 1)
    except OSError as error:
        raise _refused(path, "it must be readable", error.strerror or str(error)) from None
    if len(raw) > _LIMIT_BYTES:
        raise _refused(path, "it is too large", f"more than {_LIMIT_BYTES} bytes")
    try:
        found = msgspec.json.decode(raw, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(path, "it must describe a machine", str(error)) from None
    rates: list[Any] = [found.ram.bytes_per_s, found.disk.bytes_per_s, found.gpu.bytes_per_s if found.gpu else None]
    if found.schema != SCHEMA or found.threads < 1 or any(rate is not None and not rate > 0 for rate in rates):
        raise _refused(path, f"its schema is {SCHEMA}, threads and rates are above 0", found.schema)
    total, available = parse_size(found.ram.total, "ram.total"), parse_size(found.ram.available, "ram.available")
    device = None
    if found.gpu is not None:
        gpu = found.gpu
        free = parse_size(gpu.free, "gpu.free")
        device = Device(gpu.name, parse_size(gpu.total, "gpu.total"), free, gpu.unified, gpu.windows)
    return Sketch(
        found.name,
        found.threads,
        HostMemory(Fact.of(total, str(path)), Fact.of(available, str(path)), source=path.name),
        device,
        found.disk.kind,
        Rated(found.disk.bytes_per_s, found.ram.bytes_per_s, found.gpu.bytes_per_s if found.gpu else None),
        found.published_tokens_per_s,
    )


def _refused(path: Path, rule: str, observed: str) -> UsageError:
    return UsageError(str(path), rule, observed=observed, fix="docs/plan.md shows a machine file", code="usage.machine")
