"""What is known of the driver and the devices of a machine: frozen data, each value with its source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Generic, Literal, TypeVar

from coli.backends.targets import Capability

__all__ = [
    "UNKNOWN",
    "DeviceFacts",
    "Driver",
    "DriverState",
    "Fact",
    "Gpu",
    "Holder",
    "Link",
    "Memory",
    "MemoryPool",
    "MigSlice",
    "Platform",
    "memory_pools",
]

T = TypeVar("T")

MIB = 1 << 20


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A value and where it comes from. None is either not known or, with ``known``, known not to be there."""

    value: T | None
    source: str
    known: bool

    @classmethod
    def of(cls, value: T, source: str) -> Fact[T]:
        """Return a known value."""
        return cls(value, source, True)

    @classmethod
    def absent(cls, source: str) -> Fact[T]:
        """Return that there is none; ``source`` says where it was looked for."""
        return cls(None, source, True)

    @classmethod
    def unknown(cls, source: str = "no source has it") -> Fact[T]:
        """Return that it is not known, and why."""
        return cls(None, source, False)

    def otherwise(self, other: Fact[T]) -> Fact[T]:
        """Return this fact if it is known, else the other."""
        return self if self.known else other

    def as_dict(self) -> dict[str, Any]:
        """Return value, source and known as plain data."""
        value: Any = self.value
        if isinstance(value, Capability | PurePosixPath):
            value = str(value)
        elif isinstance(value, tuple):
            value = ".".join(map(str, value))
        return {"value": value, "source": self.source, "known": self.known}


UNKNOWN: Fact[Any] = Fact.unknown()

Platform = Literal["linux", "wsl2", "tegra", "windows", "other"]

# ok                          devices were found and nothing speaks against their use
# absent                      no trace of a driver
# mismatch                    kernel module and libraries are of different releases
# not-loaded                  the libraries are there, the kernel module does not answer
# no-usable-device            the driver runs and has no device that it can start
# no-permission               the driver is there, access is denied
# nvml-unknown-error          "Unknown Error": in a container, the devices were taken away
# library-missing             the tool is there, a library of the driver is not
# driver-present-tool-missing the driver's library is there, no tool tells more
# driver-too-old, stub-library, not-ready, unsupported-compatibility   what cuInit says
# timeout, failed             a tool hung or said something that is not known
DriverState = Literal[
    "ok",
    "absent",
    "mismatch",
    "not-loaded",
    "no-usable-device",
    "no-permission",
    "nvml-unknown-error",
    "library-missing",
    "driver-present-tool-missing",
    "driver-too-old",
    "stub-library",
    "not-ready",
    "unsupported-compatibility",
    "timeout",
    "failed",
]


@dataclass(frozen=True)
class Memory:
    """Bytes of a device's memory. ``kind``: ``dedicated``, or ``unified`` with the system's memory.

    Total is not used plus free: the driver reserves some. Plan from free.
    """

    kind: Fact[str] = UNKNOWN
    total_bytes: Fact[int] = UNKNOWN
    free_bytes: Fact[int] = UNKNOWN
    used_bytes: Fact[int] = UNKNOWN
    reserved_bytes: Fact[int] = UNKNOWN


@dataclass(frozen=True)
class Link:
    """The PCIe link of a device: lanes and generation, now and at most. An idle one may run at a lower generation."""

    width: Fact[int] = UNKNOWN
    width_max: Fact[int] = UNKNOWN
    generation: Fact[int] = UNKNOWN
    generation_max: Fact[int] = UNKNOWN


@dataclass(frozen=True)
class Holder:
    """A program that holds memory of a device. ``kind``: ``C`` computes, ``G`` draws, ``C+G`` both."""

    pid: int
    name: Fact[str] = UNKNOWN
    kind: Fact[str] = UNKNOWN
    used_bytes: Fact[int] = UNKNOWN


@dataclass(frozen=True)
class MigSlice:
    """A part of a divided GPU. ``index`` counts within its GPU."""

    index: int
    profile: Fact[str] = UNKNOWN
    uuid: Fact[str] = UNKNOWN
    gpu_instance: Fact[int] = UNKNOWN
    compute_instance: Fact[int] = UNKNOWN
    memory: Memory = Memory()


@dataclass(frozen=True)
class Gpu:
    """One device. ``index`` is nvidia-smi's, in the order of the bus; ``ordinal`` is CUDA's without restriction."""

    index: int
    name: Fact[str] = UNKNOWN
    uuid: Fact[str] = UNKNOWN
    bus_id: Fact[str] = UNKNOWN
    capability: Fact[Capability] = UNKNOWN
    architecture: Fact[str] = UNKNOWN
    memory: Memory = Memory()
    mig_enabled: Fact[bool] = UNKNOWN
    mig: tuple[MigSlice, ...] = ()
    virtualization: Fact[str] = UNKNOWN
    driver_model: Fact[str] = UNKNOWN
    display_active: Fact[bool] = UNKNOWN
    addressing: Fact[str] = UNKNOWN
    integrated: Fact[bool] = UNKNOWN
    ordinal: Fact[int] = UNKNOWN
    link: Link = Link()
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True)
class Driver:
    """The driver: whether it can be used, its release, the CUDA version that it has, and where its parts lie.

    Paths are those of the machine that was looked at. ``cuda_error``: what cuInit returned, 0 for success.
    ``module_version`` is the kernel's, ``library_version`` the one that NVML named when they differ.
    """

    state: DriverState
    evidence: str
    version: Fact[str] = UNKNOWN
    max_cuda: Fact[tuple[int, int]] = UNKNOWN
    module_version: Fact[str] = UNKNOWN
    library_version: Fact[str] = UNKNOWN
    libcuda: Fact[str] = UNKNOWN
    nvidia_smi: Fact[str] = UNKNOWN
    cuda_error: Fact[int] = UNKNOWN


@dataclass(frozen=True)
class DeviceFacts:
    """Everything that was found out. ``notes`` are sentences on what is odd; nothing in them decides."""

    platform: Platform
    container: bool
    driver: Driver
    gpus: tuple[Gpu, ...] = ()
    pci_cards: Fact[int] = UNKNOWN
    system_total_bytes: Fact[int] = UNKNOWN
    system_available_bytes: Fact[int] = UNKNOWN
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, each value with its source."""
        plain: dict[str, Any] = _plain(self)
        return plain


@dataclass(frozen=True)
class MemoryPool:
    """One memory that is planned once, and the GPUs that use it; none for the system's own."""

    kind: Literal["system", "dedicated"]
    total_bytes: Fact[int]
    free_bytes: Fact[int]
    gpus: tuple[int, ...]


def memory_pools(facts: DeviceFacts) -> tuple[MemoryPool, ...]:
    """Return the memories of the machine, a unified one counted once, with the system. Pure."""
    unified = tuple(gpu.index for gpu in facts.gpus if gpu.memory.kind.value == "unified")
    system = MemoryPool("system", facts.system_total_bytes, facts.system_available_bytes, unified)
    return (
        system,
        *(
            MemoryPool("dedicated", gpu.memory.total_bytes, gpu.memory.free_bytes, (gpu.index,))
            for gpu in facts.gpus
            if gpu.memory.kind.value != "unified"
        ),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Fact):
        return value.as_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value
