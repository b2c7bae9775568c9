"""The structs of ``coli_backend.h`` in ctypes, for the handshake and the canary."""

from __future__ import annotations

import ctypes
import sys

__all__ = [
    "AGREED_SIZES",
    "DONE",
    "PLACE_HOST",
    "TYPE_F32",
    "TYPE_I32",
    "Backend",
    "ContextConfig",
    "DeviceInfo",
    "Error",
    "Matrix",
    "MemoryInfo",
    "SlotEntry",
    "WeightDesc",
    "WeightList",
    "platform_tag",
    "workspace_bytes",
]

DONE, DECLINED, FAILED = 0, 1, 2
TYPE_F32, TYPE_I32 = 0, 1
PLACE_HOST = 0


class Error(ctypes.Structure):
    """``coli_error``."""

    _fields_ = [("size", ctypes.c_uint32), ("code", ctypes.c_int32), ("text", ctypes.c_char * 248)]


class Matrix(ctypes.Structure):
    """``coli_matrix``."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("place", ctypes.c_int32),
    ]


class WeightDesc(ctypes.Structure):
    """``coli_weight_desc``."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("format", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("codes", ctypes.c_void_p),
        ("codes_bytes", ctypes.c_uint64),
        ("scales", ctypes.c_void_p),
        ("scales_bytes", ctypes.c_uint64),
    ]


class WeightList(ctypes.Structure):
    """``coli_weight_list``."""

    _fields_ = [("items", ctypes.POINTER(ctypes.c_void_p)), ("count", ctypes.c_int64)]


class ContextConfig(ctypes.Structure):
    """``coli_context_config``."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("workspace_bytes", ctypes.c_uint64),
    ]


class DeviceInfo(ctypes.Structure):
    """``coli_device_info``."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("compute_major", ctypes.c_int32),
        ("compute_minor", ctypes.c_int32),
        ("integrated", ctypes.c_int32),
        ("name", ctypes.c_char * 128),
    ]


class MemoryInfo(ctypes.Structure):
    """``coli_memory_info``."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("total_bytes", ctypes.c_uint64),
        ("free_bytes", ctypes.c_uint64),
        ("context_bytes", ctypes.c_uint64),
    ]


class SlotEntry(ctypes.Structure):
    """``coli_slot``."""

    _fields_ = [("name", ctypes.c_char_p), ("signature", ctypes.c_uint64), ("function", ctypes.c_void_p)]


class Backend(ctypes.Structure):
    """``coli_backend``: the table that the query symbol returns."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("platform", ctypes.c_uint32),
        ("abi_major", ctypes.c_uint16),
        ("abi_minor", ctypes.c_uint16),
        ("slot_count", ctypes.c_uint32),
        ("slots", ctypes.POINTER(SlotEntry)),
        ("name", ctypes.c_char_p),
        ("error_size", ctypes.c_uint32),
        ("matrix_size", ctypes.c_uint32),
        ("weight_desc_size", ctypes.c_uint32),
        ("weight_list_size", ctypes.c_uint32),
        ("context_config_size", ctypes.c_uint32),
        ("device_info_size", ctypes.c_uint32),
        ("memory_info_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


# Field of the table -> the size that this side has.
AGREED_SIZES: dict[str, int] = {
    "error_size": ctypes.sizeof(Error),
    "matrix_size": ctypes.sizeof(Matrix),
    "weight_desc_size": ctypes.sizeof(WeightDesc),
    "weight_list_size": ctypes.sizeof(WeightList),
    "context_config_size": ctypes.sizeof(ContextConfig),
    "device_info_size": ctypes.sizeof(DeviceInfo),
    "memory_info_size": ctypes.sizeof(MemoryInfo),
}


def platform_tag() -> int:
    """Return ``COLI_PLATFORM_TAG`` of this process: operating system, pointer size, byte order."""
    system = {"win32": 2, "darwin": 3}.get(sys.platform, 1)
    order = 1 if sys.byteorder == "little" else 0
    return 0xC0110000 | (system << 8) | (ctypes.sizeof(ctypes.c_void_p) << 4) | order


def workspace_bytes(threads: int) -> int:
    """Return ``COLI_WORKSPACE_BYTES(threads)``: scratch that is enough for every stage, in bytes."""
    return (8 << 20) + (2 << 20) * threads
