"""The child process that asks the driver's own libraries: libcuda and libnvidia-ml, through ctypes.

Each line of its answer is one JSON object, written before the next call, so that the parent knows where a library
crashed or hung. No CUDA context is made.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["main"]

_MAX_DEVICES = 256
_UNIFIED, _MAJOR, _MINOR, _BUS, _DEVICE, _DOMAIN = 18, 75, 76, 33, 34, 50  # CUdevice_attribute

Tell = Callable[..., None]


def _hex_uuid(data: bytes) -> str:
    text = data.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _ask_cuda(library: ctypes.CDLL, tell: Tell) -> None:
    number = ctypes.c_int(0)
    # Works before cuInit, and with a driver that cannot start.
    error = library.cuDriverGetVersion(ctypes.byref(number))
    tell("version", error=error, version=number.value)
    error = library.cuInit(ctypes.c_uint(0))
    tell("init", error=error)
    if error:
        return
    error = library.cuDeviceGetCount(ctypes.byref(number))
    tell("count", error=error, count=number.value)
    if error:
        return
    uuid_of = getattr(library, "cuDeviceGetUuid_v2", None) or getattr(library, "cuDeviceGetUuid", None)
    for ordinal in range(min(number.value, _MAX_DEVICES)):
        device = ctypes.c_int(-1)
        error = library.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal))
        if error:
            tell(f"device {ordinal}", error=error)
            continue
        name = ctypes.create_string_buffer(256)
        named = library.cuDeviceGetName(name, ctypes.c_int(255), device) == 0
        uuid = ctypes.create_string_buffer(16)
        has_uuid = uuid_of is not None and uuid_of(uuid, device) == 0
        total = ctypes.c_size_t(0)
        sized = library.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
        attributes: dict[str, int | None] = {}
        names = (("unified", _UNIFIED), ("major", _MAJOR), ("minor", _MINOR), ("bus", _BUS), ("device", _DEVICE))
        for key, attribute in (*names, ("domain", _DOMAIN)):
            value = ctypes.c_int(0)
            answer = library.cuDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(attribute), device)
            attributes[key] = value.value if answer == 0 else None
        tell(
            f"device {ordinal}",
            error=0,
            ordinal=ordinal,
            name=name.value.decode("utf-8", "replace") if named else None,
            uuid=_hex_uuid(uuid.raw) if has_uuid else None,
            total=total.value if sized else None,
            **attributes,
        )


class _Pci(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("ids", ctypes.c_uint * 2),
        ("bus_id", ctypes.c_char * 32),
    ]


class _Memory(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
    ]


class _OldMemory(ctypes.Structure):
    """nvmlMemory_t: what the driver reserves counts as used."""

    _fields_ = [("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64)]


def _nvml_text(library: ctypes.CDLL, name: str, *arguments: Any) -> str | None:
    call = getattr(library, name, None)
    buffer = ctypes.create_string_buffer(128)
    if call is None or call(*arguments, buffer, ctypes.c_uint(127)):
        return None
    return buffer.value.decode("utf-8", "replace")


def _nvml_numbers(library: ctypes.CDLL, name: str, handle: Any, count: int = 1) -> list[int] | None:
    call = getattr(library, name, None)
    values = [ctypes.c_int(0) for _ in range(count)]
    if call is None or call(handle, *map(ctypes.byref, values)):
        return None
    return [value.value for value in values]


def _nvml_memory(library: ctypes.CDLL, handle: Any) -> dict[str, int] | None:
    memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
    call = getattr(library, "nvmlDeviceGetMemoryInfo_v2", None)
    if call is not None and call(handle, ctypes.byref(memory)) == 0:
        return {name: getattr(memory, name) for name in ("total", "reserved", "free", "used")}
    old = _OldMemory()
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(old)) == 0:
        return {name: getattr(old, name) for name in ("total", "free", "used")}
    return None


def _nvml_device(library: ctypes.CDLL, handle: Any) -> dict[str, Any]:
    pci = _Pci()
    on_bus = library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) == 0
    mig = _nvml_numbers(library, "nvmlDeviceGetMigMode", handle, 2)
    virtual = _nvml_numbers(library, "nvmlDeviceGetVirtualizationMode", handle)
    slices = []
    if mig and mig[0] == 1:
        most = _nvml_numbers(library, "nvmlDeviceGetMaxMigDeviceCount", handle)
        for index in range(min(most[0], 64) if most else 0):
            part = ctypes.c_void_p()
            if library.nvmlDeviceGetMigDeviceHandleByIndex(handle, ctypes.c_uint(index), ctypes.byref(part)):
                continue
            instance = _nvml_numbers(library, "nvmlDeviceGetGpuInstanceId", part)
            compute = _nvml_numbers(library, "nvmlDeviceGetComputeInstanceId", part)
            slices.append(
                {
                    "index": index,
                    "uuid": _nvml_text(library, "nvmlDeviceGetUUID", part),
                    "gpu_instance": instance[0] if instance else None,
                    "compute_instance": compute[0] if compute else None,
                    "memory": _nvml_memory(library, part),
                }
            )
    return {
        "name": _nvml_text(library, "nvmlDeviceGetName", handle),
        "uuid": _nvml_text(library, "nvmlDeviceGetUUID", handle),
        "bus_id": pci.bus_id.decode("ascii", "replace") if on_bus else None,
        "capability": _nvml_numbers(library, "nvmlDeviceGetCudaComputeCapability", handle, 2),
        "memory": _nvml_memory(library, handle),
        "mig": mig[0] if mig else None,
        "virtualization": virtual[0] if virtual else None,
        "slices": slices,
    }


def _ask_nvml(library: ctypes.CDLL, tell: Tell) -> None:
    error = library.nvmlInit_v2()
    tell("init", error=error)
    if error:
        return
    cuda = ctypes.c_int(0)
    call = getattr(library, "nvmlSystemGetCudaDriverVersion_v2", None)
    has_cuda = call is not None and call(ctypes.byref(cuda)) == 0
    tell(
        "version",
        error=0,
        driver=_nvml_text(library, "nvmlSystemGetDriverVersion"),
        version=cuda.value if has_cuda else None,
    )
    count = ctypes.c_uint(0)
    error = library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    tell("count", error=error, count=count.value)
    for index in range(min(count.value, _MAX_DEVICES)):
        handle = ctypes.c_void_p()
        error = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        if error:
            tell(f"device {index}", error=error)
            continue
        tell(f"device {index}", error=0, index=index, **_nvml_device(library, handle))


def main(arguments: list[str]) -> int:
    """Ask the library ``arguments[1]``, which is ``cuda`` or ``nvml`` (``arguments[0]``); return the exit code."""
    channel = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not mix with the answer

    def tell(step: str, **facts: Any) -> None:
        os.write(channel, json.dumps({"step": step, **facts}).encode() + b"\n")

    kind, path = arguments
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        tell("open", error=str(error))
        return 0
    tell("open", error=None)
    try:
        (_ask_cuda if kind == "cuda" else _ask_nvml)(library, tell)
    except AttributeError as error:  # a function that every driver since 450 has
        tell("symbol", error=str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
