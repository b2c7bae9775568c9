"""The canary: small recorded stage calls, replayed against an opened library and compared bit for bit.

Pure ctypes, because it runs in the child process of the loader, where a wrong library may do anything.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coli.backends.abi import SLOTS, Slot
from coli.backends.abi.structs import (
    DECLINED,
    DONE,
    PLACE_HOST,
    Backend,
    ContextConfig,
    Error,
    Matrix,
    WeightDesc,
    WeightList,
    workspace_bytes,
)
from coli.backends.vectors import Case, Floating, Integer, Weight, Weights
from coli.backends.vectors import Matrix as MatrixData

__all__ = ["CanaryResult", "check_cases", "run_canary"]

_THREADS = 2  # the smallest number that shows a result that depends on the split of the work


@dataclass(frozen=True)
class CanaryResult:
    """What went wrong, and the stages that a device backend does not serve; each once, in order of the calls."""

    problems: tuple[str, ...]
    declined: tuple[str, ...]
    declined_calls: int


class _Refusal(Exception):
    """The library did not do what the recording says."""


class _Declined(_Refusal):
    """The library says that it does not serve this."""


class _Runner:
    """One context of the library under test and what lives in it."""

    def __init__(self, backend: Backend, upload: bool = False) -> None:
        self.backend = backend
        self.upload = upload
        self.context = ctypes.c_void_p()
        config = ContextConfig(ctypes.sizeof(ContextConfig), _THREADS, 0, 0, workspace_bytes(_THREADS))
        self.call("context_create", [ctypes.byref(config), ctypes.byref(self.context)])

    def call(self, name: str, arguments: Sequence[Any]) -> None:
        slot = _BY_NAME[name]
        if slot.index >= self.backend.slot_count or not self.backend.slots[slot.index].function:
            # The gate of slots lets only the library of a device leave a stage out.
            raise _Declined(f"{name} is absent")
        function = ctypes.CFUNCTYPE(ctypes.c_int32)(self.backend.slots[slot.index].function)
        error = Error(ctypes.sizeof(Error), 0, b"")
        status = function(*arguments, ctypes.byref(error))
        if status != DONE:
            text = error.text.decode("utf-8", "replace")
            if status == DECLINED:
                raise _Declined(f"{name} declined: {text} (code {error.code})")
            raise _Refusal(f"{name} failed: {text} (code {error.code})")

    def bind(self, weight: Weight, kept: list[Any], bound: list[ctypes.c_void_p]) -> ctypes.c_void_p:
        codes, scales = ctypes.create_string_buffer(weight.codes, max(1, len(weight.codes))), None
        if weight.scales:
            scales = ctypes.create_string_buffer(weight.scales, len(weight.scales))
        desc = WeightDesc(
            ctypes.sizeof(WeightDesc),
            weight.format,
            weight.rows,
            weight.cols,
            ctypes.addressof(codes),
            len(weight.codes),
            ctypes.addressof(scales) if scales is not None else None,
            len(weight.scales),
        )
        kept += [codes, scales, desc]
        handle = ctypes.c_void_p()
        self.call("weight_bind", [self.context, ctypes.byref(desc), ctypes.byref(handle)])
        bound.append(handle)
        if self.upload:
            self.call("weight_upload", [self.context, None, handle])
        return handle

    def run(self, case: Case) -> None:
        """Make one call. Raises _Declined with nothing left bound, _Refusal."""
        bound: list[ctypes.c_void_p] = []
        try:
            self._run(case, bound)
        except _Declined:
            self._release(bound)
            raise
        self._release(bound)

    def _release(self, bound: Sequence[ctypes.c_void_p]) -> None:
        for handle in bound:
            self.call("weight_release", [self.context, handle])

    def _run(self, case: Case, bound: list[ctypes.c_void_p]) -> None:
        slot = _BY_NAME[case.stage]
        kept: list[Any] = []  # what must live until the call is over
        outputs: list[tuple[str, MatrixData, Any]] = []
        arguments: list[Any] = [self.context, None]
        for argument, value in zip(slot.arguments, case.arguments, strict=True):
            if value is None:
                arguments.append(None)
            elif isinstance(value, Integer):
                arguments.append(ctypes.c_int64(value.value))
            elif isinstance(value, Floating):
                arguments.append(ctypes.c_float.from_buffer_copy(struct.pack("=I", value.bits)))
            elif isinstance(value, MatrixData):
                buffer = ctypes.create_string_buffer(value.data, max(1, len(value.data)))
                matrix = Matrix(ctypes.addressof(buffer), value.rows, value.cols, value.cols, value.type, PLACE_HOST)
                kept += [buffer, matrix]
                arguments.append(ctypes.byref(matrix))
                outputs.append((argument.name, value, buffer))
            elif isinstance(value, Weight):
                arguments.append(self.bind(value, kept, bound))
            else:
                handles = [self.bind(weight, kept, bound) for weight in value.items]
                items = (ctypes.c_void_p * len(handles))(*[handle.value for handle in handles])
                weights = WeightList(ctypes.cast(items, ctypes.POINTER(ctypes.c_void_p)), len(handles))
                kept += [items, weights]
                arguments.append(ctypes.byref(weights))
        try:
            self.call(case.stage, arguments)
        except _Declined:
            for name, value, buffer in outputs:
                _compare(case.stage, name, value, buffer.raw[: len(value.data)], value.data)
            raise
        for name, value, buffer in outputs:
            want = value.data if value.expected is None else value.expected
            _compare(case.stage, name, value, buffer.raw[: len(value.data)], want)


def _compare(stage: str, name: str, value: MatrixData, got: bytes, want: bytes) -> None:
    if got == want:
        return
    at = next(i for i in range(0, len(want), 4) if got[i : i + 4] != want[i : i + 4])
    row, col = divmod(at // 4, value.cols)
    if value.expected is None:
        raise _Refusal(f"{stage} wrote into its input {name}[{row}, {col}]")
    raise _Refusal(f"{stage}: {name}[{row}, {col}] is {got[at : at + 4].hex()}, expected {want[at : at + 4].hex()}")


_BY_NAME: dict[str, Slot] = {slot.name: slot for slot in SLOTS}


def _fits(type_: str, value: object) -> bool:
    """Say whether a recorded value can stand for an argument of this C type."""
    if type_ == "int64_t":
        return isinstance(value, Integer)
    if type_ == "float":
        return isinstance(value, Floating) and 0 <= value.bits < 1 << 32
    kinds = {"coli_matrix *": MatrixData, "coli_weight *": Weight, "coli_weight_list *": Weights}
    return value is None or isinstance(value, kinds[type_.removeprefix("const ")])


def check_cases(cases: Sequence[Case]) -> None:
    """Raise ValueError for a call that does not fit the slot list: its arguments would be read as something else."""
    for case in cases:
        slot = _BY_NAME.get(case.stage)
        if slot is None or slot.kind != "stage":
            raise ValueError(f"{case.stage!r} is not a stage")
        if len(case.arguments) != len(slot.arguments):
            raise ValueError(f"{case.stage}: {len(case.arguments)} arguments, the slot has {len(slot.arguments)}")
        for argument, value in zip(slot.arguments, case.arguments, strict=True):
            if not _fits(argument.type, value):
                raise ValueError(
                    f"{case.stage}: {argument.name} is {type(value).__name__}, the slot has {argument.type}"
                )


def run_canary(backend: Backend, cases: Sequence[Case], may_decline: bool = False) -> CanaryResult:
    """Replay checked cases in one context of a library that passed the handshake.

    ``may_decline``: the library of a device, to which weights are uploaded first; it may leave stages to the CPU behind
    it, as long as it serves one call.
    """
    problems: list[str] = []
    declined: list[str] = []
    try:
        runner = _Runner(backend, upload=may_decline)
    except _Refusal as refusal:
        return CanaryResult((str(refusal),), (), 0)
    for case in cases:
        try:
            runner.run(case)
        except _Declined as refusal:
            if may_decline:
                declined.append(case.stage)
            else:
                problems.append(str(refusal))
        except _Refusal as refusal:
            problems.append(str(refusal))
    if not problems:  # a refused call leaves weights bound, and the process ends anyway
        try:
            runner.call("context_destroy", [runner.context])
        except _Refusal as refusal:
            problems.append(str(refusal))
    return CanaryResult(tuple(problems), tuple(dict.fromkeys(declined)), len(declined))
