"""Services and refusals of the CUDA backend, with the CPU as its device."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import cases
import native
import numpy as np
import pytest
from numpy.typing import NDArray

from coli.backends.abi.structs import DeviceInfo

ARGUMENT, SCALE, MEMORY, DEVICE = 101, 103, 104, 105
REASON_PLACE, REASON_MEMORY, REASON_DEVICE = 3, 4, 5
BREAKS, OLD, NO_CODE = 3, 4, 5  # devices of the shim
SERVED = {"matmul_bf16", "matmul_fp8", "matmul_fp4"}


@pytest.fixture
def context(shim: native.Library) -> Iterator[native.Context]:
    with native.Context(shim) as made:
        yield made


def memory(context: native.Context) -> native.MemoryInfo:
    info = native.MemoryInfo(ctypes.sizeof(native.MemoryInfo))
    context.service("memory_info", ctypes.byref(info))
    return info


def on_stream(context: native.Context, name: str, *arguments: object) -> None:
    """Call a service that takes a stream, with a null one."""
    context._call(name, context.handle, None, *arguments)


def test_every_service_is_there(shim: native.Library) -> None:
    for kind, _, name, arguments in native.slot_list():
        assert shim.slots[name].function or kind == "STAGE"
        assert shim.slots[name].signature == native.signature(f"{name}({arguments})")


def test_other_stages_are_absent(shim: native.Library) -> None:
    stages = [name for kind, _, name, _ in native.slot_list() if kind == "STAGE"]
    assert {name for name in stages if shim.slots[name].function} == SERVED


def test_device_info(context: native.Context) -> None:
    info = DeviceInfo(ctypes.sizeof(DeviceInfo))
    context.service("device_info", ctypes.byref(info))
    assert (info.compute_major, info.compute_minor, info.integrated) == (8, 6, 0)
    assert info.name == b"the CPU as a CUDA device"


def test_memory_is_counted_and_returned(shim: native.Library) -> None:
    with native.Context(shim) as context:
        start = memory(context)
        assert start.total_bytes == 64 << 20
        assert start.context_bytes == native.workspace_bytes(1)
        assert start.free_bytes == start.total_bytes - start.context_bytes
        spec = cases.Maker(1).weight(native.FP8, 130, 100)
        weight = native.Weight(context, native.FP8, 130, 100, spec.codes, spec.scales)
        assert memory(context).context_bytes == start.context_bytes  # bound, not copied
        context.service("weight_upload", weight.handle)
        # Rows of 100 bytes begin at multiples of 16; two scales.
        assert memory(context).context_bytes - start.context_bytes == 130 * 112 + 2
        data = ctypes.c_void_p()
        context.service("buffer_create", ctypes.c_uint64(1000), ctypes.byref(data))
        assert memory(context).context_bytes - start.context_bytes == 130 * 112 + 2 + 1000
        context.service("buffer_release", data)
        weight.release()
        assert memory(context).free_bytes == start.free_bytes
        context.service("buffer_create", ctypes.c_uint64(77), ctypes.byref(data))  # left to the context
    with native.Context(shim) as context:
        assert memory(context).free_bytes == start.free_bytes


def test_no_room_on_the_device(context: native.Context) -> None:
    with pytest.raises(native.Refused, match=r"CUDA error 2 \(cudaErrorMemoryAllocation\)") as refused:
        context.weight(native.BF16, 4096, 8192, np.zeros((4096, 8192), np.uint16))
    assert (refused.value.status, refused.value.code) == (native.FAILED, MEMORY)
    data = ctypes.c_void_p()
    with pytest.raises(native.Refused, match="99000000 bytes on the device"):
        context.service("buffer_create", ctypes.c_uint64(99_000_000), ctypes.byref(data))
    assert data.value is None
    assert memory(context).context_bytes == native.workspace_bytes(1)


def test_device_matrices_and_streams(context: native.Context) -> None:
    make = cases.Maker(4)
    spec, x = make.weight(native.FP4, 21, 96), make.floats(3, 96)
    weight, want = context.weight(native.FP4, 21, 96, spec.codes, spec.scales), np.zeros((3, 21), np.float32)
    context.stage("matmul_fp4", weight, x, 1, want)

    data, stream = ctypes.c_void_p(), ctypes.c_void_p()
    context.service("buffer_create", ctypes.c_uint64(4 * 3 * (100 + 21)), ctypes.byref(data))
    context.service("stream_create", ctypes.byref(stream))
    assert data.value
    x_there = native.Matrix(data.value, 3, 96, 100, 0, 1)
    y_there = native.Matrix(data.value + 4 * 3 * 100, 3, 21, 21, 0, 1)
    y = np.zeros((3, 21), np.float32)
    context._call("buffer_copy", context.handle, stream, ctypes.byref(native.matrix(x)), ctypes.byref(x_there))
    context._call(
        "matmul_fp4",
        *(context.handle, stream, weight.handle, ctypes.byref(x_there), ctypes.c_int64(1), ctypes.byref(y_there)),
    )
    context.service("stream_wait", stream)
    context._call("buffer_copy", context.handle, stream, ctypes.byref(y_there), ctypes.byref(native.matrix(y)))
    assert y.tobytes() == want.tobytes()

    mixed = np.zeros((3, 21), np.float32)  # x there, y here
    context.stage("matmul_fp4", weight, x_there, 1, mixed)
    assert mixed.tobytes() == want.tobytes()
    again = native.Matrix(data.value, 3, 21, 21, 0, 1)  # device to device, then back; rows of another stride
    on_stream(context, "buffer_copy", ctypes.byref(y_there), ctypes.byref(again))
    wide = np.full((3, 30), 7, np.float32)
    target = native.Matrix(wide.ctypes.data, 3, 21, 30, 0, 0)
    on_stream(context, "buffer_copy", ctypes.byref(again), ctypes.byref(target))
    assert wide[:, :21].tobytes() == want.tobytes() and (wide[:, 21:] == 7).all()
    context.service("stream_release", stream)


def test_destroyed_last(context: native.Context) -> None:
    stream = ctypes.c_void_p()
    context.service("stream_create", ctypes.byref(stream))
    with pytest.raises(native.Refused, match="0 weights are still bound and 1 streams open"):
        context._call("context_destroy", context.handle)
    context.service("stream_release", stream)
    spec, _, _ = product_values()
    context.weight(native.FP4, 8, 64, spec.codes, spec.scales)
    with pytest.raises(native.Refused, match="1 weights are still bound and 0 streams open"):
        context._call("context_destroy", context.handle)


def test_refill(context: native.Context) -> None:
    make = cases.Maker(5)
    first, second, x = make.weight(native.FP8, 20, 200), make.weight(native.FP8, 20, 200), make.floats(1, 200)
    results: list[bytes] = []

    def product(weight: native.Weight) -> None:
        y = np.zeros((1, 20), np.float32)
        context.stage("matmul_fp8", weight, x, 1, y)
        results.append(y.tobytes())

    product(context.weight(native.FP8, 20, 200, second.codes, second.scales))
    weight = context.weight(native.FP8, 20, 200, first.codes, first.scales)
    product(weight)
    weight.codes, weight.scales = second.codes, second.scales
    on_stream(context, "weight_refill", weight.handle, ctypes.byref(weight.desc()))
    product(weight)
    assert results[0] == results[2] != results[1]
    other = make.weight(native.FP8, 20, 201)
    weight.codes, weight.cols = other.codes, 201
    with pytest.raises(native.Refused, match="refill has format 2, 20 x 201; the weight has format 2, 20 x 200"):
        on_stream(context, "weight_refill", weight.handle, ctypes.byref(weight.desc()))
    product(weight)
    assert results[3] == results[0]

    late = native.Weight(context, native.FP8, 20, 200, first.codes, first.scales)  # refilled before it is uploaded
    context.weights.append(late)
    late.codes, late.scales = second.codes, second.scales
    on_stream(context, "weight_refill", late.handle, ctypes.byref(late.desc()))
    context.service("weight_upload", late.handle)
    product(late)
    assert results[4] == results[0]


def product_values(tokens: int = 1, rows: int = 8) -> tuple[cases.WeightSpec, NDArray[np.float32], NDArray[np.float32]]:
    make = cases.Maker(6)
    return make.weight(native.FP4, rows, 64), make.floats(tokens, 64), np.full((tokens, rows), 3, np.float32)


def test_not_uploaded(context: native.Context) -> None:
    spec, x, y = product_values()
    weight = native.Weight(context, native.FP4, 8, 64, spec.codes, spec.scales)
    context.weights.append(weight)
    with pytest.raises(native.Refused, match="was not uploaded") as refused:
        context.stage("matmul_fp4", weight, x, 1, y)
    assert (refused.value.status, refused.value.code) == (native.DECLINED, REASON_PLACE)
    assert (y == 3).all()


def test_more_than_the_workspace(context: native.Context) -> None:
    spec, x, y = product_values(tokens=700, rows=4096)
    weight = context.weight(native.FP4, 4096, 64, spec.codes, spec.scales)
    with pytest.raises(native.Refused, match="700 tokens need 11469056 bytes of workspace, it has 10485760") as refused:
        context.stage("matmul_fp4", weight, x, 1, y)
    assert (refused.value.status, refused.value.code) == (native.DECLINED, REASON_MEMORY)
    assert (y == 3).all()


def test_wrong_arguments(context: native.Context) -> None:
    spec, x, y = product_values()
    weight = context.weight(native.FP4, 8, 64, spec.codes, spec.scales)
    for stage, values, text in [
        ("matmul_fp8", [weight, x, 1, y], "weight has format 3, expected 2"),
        ("matmul_fp4", [weight, x, 3, y], "groups is 3, expected a divisor of 8 rows"),
        ("matmul_fp4", [weight, x, 0, y], "groups is 0"),
        ("matmul_fp4", [weight, x[:, :63], 1, y], "x has 63 cols, expected 64"),
        ("matmul_fp4", [weight, x, 1, y[:, :7]], "y has 7 cols, expected 8"),
        ("matmul_fp4", [weight, None, 1, y], "x is null"),
    ]:
        with pytest.raises(native.Refused, match=text) as refused:
            context.stage(stage, *values)
        assert (refused.value.status, refused.value.code) == (native.FAILED, ARGUMENT)
    codes, scales = np.zeros((2, 64), np.uint8), np.full((2, 4), 254, np.uint8)
    with pytest.raises(native.Refused, match="scale code 254 at row 0, col 0") as refused:
        context.weight(native.FP4, 2, 128, codes, scales)
    assert refused.value.code == SCALE


def test_broken_device(shim: native.Library) -> None:
    spec, x, y = product_values()
    with native.Context(shim, device=BREAKS) as context:
        weight = context.weight(native.FP4, 8, 64, spec.codes, spec.scales)
        with pytest.raises(native.Refused, match=r"CUDA error 719 \(cudaErrorLaunchFailure\): the shim") as refused:
            context.stage("matmul_fp4", weight, x, 1, y)
    assert (refused.value.status, refused.value.code) == (native.FAILED, DEVICE)
    assert (y == 3).all()


@pytest.mark.parametrize(
    ("device", "status", "code", "text"),
    [
        (OLD, native.DECLINED, REASON_DEVICE, "device 4 has compute capability 7.5, expected 8.0 or later"),
        (
            NO_CODE,
            native.FAILED,
            DEVICE,
            r"no code of this library runs on device 5 \(compute capability 8.6\): CUDA error 209",
        ),
        (8, native.FAILED, ARGUMENT, "device is 8, expected 0 to 7"),
    ],
)
def test_devices_that_cannot(shim: native.Library, device: int, status: int, code: int, text: str) -> None:
    with pytest.raises(native.Refused, match=text) as refused:
        native.Context(shim, device=device)
    assert (refused.value.status, refused.value.code) == (status, code)


def test_two_devices_at_once(shim: native.Library) -> None:
    spec, x, y = product_values()
    with native.Context(shim, device=1) as one, native.Context(shim, device=2) as two:
        weights = [context.weight(native.FP4, 8, 64, spec.codes, spec.scales) for context in (one, two)]
        results = []
        for context, weight in [(one, weights[0]), (two, weights[1]), (one, weights[0])]:
            context.stage("matmul_fp4", weight, x, 1, y)
            results.append(y.tobytes())
    assert results[0] == results[1] == results[2]
