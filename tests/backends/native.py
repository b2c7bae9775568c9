"""Call a backend library directly through its table, without the extension: for the tests and the vectors."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
SLOT_LIST = ROOT / "backends" / "abi" / "coli_slots.inc"
DONE, DECLINED, FAILED = 0, 1, 2
F32, BF16, FP8, FP4 = 0, 1, 2, 3

Array = NDArray[Any]


class Error(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("code", ctypes.c_int32), ("text", ctypes.c_char * 248)]


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("place", ctypes.c_int32),
    ]


class WeightDesc(ctypes.Structure):
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
    _fields_ = [("items", ctypes.POINTER(ctypes.c_void_p)), ("count", ctypes.c_int64)]


class Config(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("workspace_bytes", ctypes.c_uint64),
    ]


class MemoryInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("total_bytes", ctypes.c_uint64),
        ("free_bytes", ctypes.c_uint64),
        ("context_bytes", ctypes.c_uint64),
    ]


class Slot(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("signature", ctypes.c_uint64), ("function", ctypes.c_void_p)]


class Table(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("platform", ctypes.c_uint32),
        ("abi_major", ctypes.c_uint16),
        ("abi_minor", ctypes.c_uint16),
        ("slot_count", ctypes.c_uint32),
        ("slots", ctypes.POINTER(Slot)),
        ("name", ctypes.c_char_p),
    ]


def slot_list() -> list[tuple[str, str, str, str]]:
    """Return (kind, requirement, name, arguments) of every slot of coli_slots.inc, in order."""
    text = re.sub(r"/\*.*?\*/", "", SLOT_LIST.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"COLI_(SERVICE|STAGE)\((\w+),\s*(\w+),\s*([^)]*)\)", text)
    return [(kind, need, name, " ".join(arguments.split())) for kind, need, name, arguments in found]


def exact_stages() -> set[str]:
    """Return the stages whose bits are promised: all but those of the fast mode, which a CPU backend lacks."""
    return {name for kind, _, name, _ in slot_list() if kind == "STAGE" and not name.startswith("fast_")}


def signature(text: str) -> int:
    """Return the 64-bit FNV-1a hash of ``text``."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def workspace_bytes(threads: int) -> int:
    """Return COLI_WORKSPACE_BYTES(threads)."""
    return (8 << 20) + (2 << 20) * threads


class Refused(Exception):
    """A call that was DECLINED or FAILED: ``status``, ``code``, ``text``."""

    def __init__(self, slot: str, status: int, code: int, text: str) -> None:
        super().__init__(f"{slot}: {'declined' if status == DECLINED else 'failed'} {code}: {text}")
        self.status, self.code, self.text = status, code, text


def matrix(array: Array) -> Matrix:
    """Describe a float32 or int32 array of one or two dimensions whose last axis is contiguous."""
    assert array.dtype in (np.float32, np.int32), array.dtype
    view = array if array.ndim == 2 else array.reshape(1, -1)
    rows, cols = view.shape
    assert view.size == 0 or cols <= 1 or view.strides[1] == 4
    stride = view.strides[0] // 4 if rows > 1 else cols
    return Matrix(view.ctypes.data, rows, cols, max(stride, cols), 1 if array.dtype == np.int32 else 0, 0)


class Weight:
    """A bound weight; keeps its arrays alive."""

    def __init__(
        self, context: Context, format: int, rows: int, cols: int, codes: Array, scales: Array | None = None
    ) -> None:
        self.context, self.codes, self.scales = context, codes, scales
        self.format, self.rows, self.cols = format, rows, cols
        self.handle = ctypes.c_void_p()
        context.service("weight_bind", ctypes.byref(self.desc()), ctypes.byref(self.handle))

    def desc(self) -> WeightDesc:
        """Return the descriptor of the arrays."""
        scales = self.scales
        return WeightDesc(
            ctypes.sizeof(WeightDesc),
            self.format,
            self.rows,
            self.cols,
            self.codes.ctypes.data,
            self.codes.nbytes,
            None if scales is None else scales.ctypes.data,
            0 if scales is None else scales.nbytes,
        )

    def release(self) -> None:
        """Release the handle."""
        self.context.service("weight_release", self.handle)


class Library:
    """A library opened by path."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        query = ctypes.CDLL(str(path)).coli_backend_query
        query.restype = ctypes.POINTER(Table)
        self.table: Table = query().contents
        self.slots = {self.table.slots[i].name.decode(): self.table.slots[i] for i in range(self.table.slot_count)}

    @property
    def name(self) -> str:
        """The name in the table."""
        return str(self.table.name.decode())


class Context:
    """A context; stages by name, numpy arrays as matrices, float and int as scalars of the slot's type."""

    def __init__(self, library: Library, threads: int = 1, workspace: int | None = None, device: int = 0) -> None:
        self.library = library
        self.arguments = {name: arguments.split(", ") for _, _, name, arguments in slot_list()}
        self.handle = ctypes.c_void_p()
        bytes_ = workspace_bytes(threads) if workspace is None else workspace
        config = Config(ctypes.sizeof(Config), threads, device, 0, bytes_)
        self._call("context_create", ctypes.byref(config), ctypes.byref(self.handle))
        self.weights: list[Weight] = []

    def _call(self, name: str, *arguments: Any) -> None:
        function = ctypes.CFUNCTYPE(ctypes.c_int32)(self.library.slots[name].function)
        error = Error(ctypes.sizeof(Error), 0, b"")
        status = function(*arguments, ctypes.byref(error))
        if status != DONE:
            raise Refused(name, status, error.code, error.text.decode())

    def service(self, name: str, *arguments: Any) -> None:
        """Call a service of this context."""
        self._call(name, self.handle, *(None,) * (name in ("weight_upload", "weight_refill")), *arguments)

    def weight(self, format: int, rows: int, cols: int, codes: Array, scales: Array | None = None) -> Weight:
        """Bind a weight and upload it (a CPU backend has no work with that); it is released with the context."""
        made = Weight(self, format, rows, cols, codes, scales)
        self.weights.append(made)
        self.service("weight_upload", made.handle)
        return made

    def stage(self, name: str, *values: Any) -> None:
        """Call a stage. Values: arrays, weights, lists of weights, numbers, None."""
        passed: list[Any] = []
        keep: list[Any] = []
        for declared, value in zip(self.arguments[name], values, strict=True):
            if "coli_matrix" in declared:
                keep.append(value if value is None or isinstance(value, Matrix) else matrix(value))
                passed.append(None if value is None else ctypes.byref(keep[-1]))
            elif "coli_weight_list" in declared:
                items = (ctypes.c_void_p * len(value))(*(weight.handle for weight in value))
                keep.append(WeightList(ctypes.cast(items, ctypes.POINTER(ctypes.c_void_p)), len(value)))
                keep.append(items)
                passed.append(ctypes.byref(keep[-2]))
            elif "coli_weight" in declared:
                passed.append(None if value is None else value.handle)
            elif declared.startswith("float"):
                passed.append(ctypes.c_float(value))
            else:
                passed.append(ctypes.c_int64(value))
        # ctypes passes a bare c_float through a variadic-like prototype as double: declare the types.
        numbers = (ctypes.c_float, ctypes.c_int64)
        kinds = [
            type(item) if isinstance(item, (ctypes.c_float, ctypes.c_int64)) else ctypes.c_void_p for item in passed
        ]
        prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *kinds, ctypes.c_void_p)
        error = Error(ctypes.sizeof(Error), 0, b"")
        cast = [item if isinstance(item, numbers) else ctypes.cast(item, ctypes.c_void_p) for item in passed]
        status = prototype(self.library.slots[name].function)(
            self.handle, None, *cast, ctypes.cast(ctypes.byref(error), ctypes.c_void_p)
        )
        if status != DONE:
            raise Refused(name, status, error.code, error.text.decode())

    def close(self) -> None:
        """Release the weights and destroy the context."""
        for weight in self.weights:
            weight.release()
        self.weights.clear()
        if self.handle:
            self._call("context_destroy", self.handle)
            self.handle = ctypes.c_void_p()

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
