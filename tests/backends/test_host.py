"""The host extension against a stub backend that writes down what it was given."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stubs import Stub, open_stub

from coli.backends import _host
from coli.backends.abi.structs import workspace_bytes


@pytest.fixture(scope="module")
def stub(build_stub: Callable[..., Path]) -> Stub:
    return open_stub(build_stub())


@pytest.fixture
def context(stub: Stub) -> Iterator[_host.Context]:
    context = _host.Context(_host.Library(stub.address), 3, workspace_bytes(3))
    yield context
    context.close()
    assert stub.counter("stub_contexts") == 0
    assert stub.counter("stub_weights") == 0
    assert stub.counter("stub_misorder") == 0


def seen(context: _host.Context, x: Any) -> list[float]:
    """Return rows, cols, stride as they arrive."""
    y = np.zeros(5, np.float32)
    context.rms_norm(x, None, 0.5, y)
    return [float(v) for v in y[:3]]


def test_matrices_arrive_without_copies(context: _host.Context) -> None:
    base = np.arange(4 * 6 * 10, dtype=np.float32).reshape(4, 6, 10)
    assert seen(context, base[0, 0]) == [1, 10, 10]
    assert seen(context, base[0]) == [6, 10, 10]
    assert seen(context, base[0, ::2]) == [3, 10, 20]
    assert seen(context, base[0, :, 2:7]) == [6, 5, 10]
    assert seen(context, base) == [24, 10, 10]
    assert seen(context, base[:, :, :4]) == [24, 4, 10]
    assert seen(context, base[:, :1]) == [4, 10, 60]
    assert seen(context, base[1:2, ::2]) == [3, 10, 20]
    assert seen(context, base[:0]) == [0, 10, 10]
    assert seen(context, np.zeros((3, 0), np.float32)) == [3, 0, 0]
    readonly = base[0].copy()
    readonly.flags.writeable = False
    assert seen(context, readonly) == [6, 10, 10]


def test_scalars_null_and_in_place(context: _host.Context) -> None:
    y = np.zeros((1, 5), np.float32)
    context.rms_norm(y, None, 0.125, y)
    assert y.tolist() == [[1, 5, 5, 0, 0.125]]
    context.rms_norm(y, y[0], np.float32(0.25), y)
    assert y[0, 3:].tolist() == [1, 0.25]
    x, z = np.array([1, 2], np.float32), np.array([[10, 20]], np.float32)
    context.add(x, z)
    assert z.tolist() == [[11, 22]]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: np.zeros((2, 3), np.float64), TypeError, "add: x: expected float32 or int32, got float64"),
        (lambda: np.zeros((2, 3), np.int64), TypeError, "add: x: expected float32 or int32, got int64"),
        (lambda: np.zeros((2, 3), np.uint32), TypeError, "add: x: expected float32 or int32, got uint32"),
        (lambda: np.zeros((2, 3), ">f4"), TypeError, "add: x: expected native byte order"),
        (lambda: np.zeros((2, 6), np.float32)[:, ::2], TypeError, "add: x: the last axis must be contiguous"),
        (lambda: np.zeros((3, 2), np.float32).T, TypeError, "add: x: the last axis must be contiguous"),
        (lambda: np.zeros((2, 3), np.float32)[::-1], TypeError, "add: x: rows overlap or run backwards"),
        (lambda: np.broadcast_to(np.zeros(3, np.float32), (2, 3)), TypeError, "add: x: rows overlap"),
        (lambda: np.zeros((2, 4, 3), np.float32)[:, :3], TypeError, "add: x: leading dimensions do not collapse"),
        (lambda: np.frombuffer(bytes(25), np.uint8)[1:].view(np.float32), TypeError, "add: x: rows must be aligned"),
        (lambda: np.float32(1), TypeError, "add: x: expected a numpy array, got numpy.float32"),
        (lambda: np.zeros((), np.float32), TypeError, "add: x: expected at least one dimension"),
        (lambda: [1.0, 2.0], TypeError, "add: x: expected a numpy array, got list"),
    ],
)
def test_wrong_arrays_are_named(
    context: _host.Context, make: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        context.add(make(), np.zeros((2, 3), np.float32))
    assert str(caught.value).startswith(text)


def test_read_only_outputs_and_wrong_arguments(context: _host.Context) -> None:
    x = np.zeros((2, 3), np.float32)
    y = x.copy()
    y.flags.writeable = False
    with pytest.raises(ValueError, match="add: y: the stage writes it, and the array is read-only"):
        context.add(x, y)
    with pytest.raises(TypeError, match="add: takes 2 arguments, got 3"):
        context.add(x, x, x)
    with pytest.raises(TypeError, match="rms_norm: epsilon: expected a number, got str"):
        context.rms_norm(x, None, "a", x)
    with pytest.raises(TypeError, match="matmul_f32: groups: expected an integer, got float"):
        context.matmul_f32(None, x, 1.5, x)
    with pytest.raises(ValueError, match="matmul_f32: groups: does not fit"):
        context.matmul_f32(None, x, 1 << 70, x)
    with pytest.raises(TypeError, match="matmul_f32: weight: expected a Weight, got int"):
        context.matmul_f32(3, x, 1, x)
    with pytest.raises(TypeError, match="moe: w1: expected a sequence of Weights, got int"):
        context.moe(x, x, x, x, 3, [], [], 1.0, x)
    with pytest.raises(TypeError, match="moe: w3: expected Weights, got NoneType"):
        context.moe(x, x, x, x, [], [None], [], 1.0, x)


def test_declined_and_failed_carry_code_and_text(context: _host.Context) -> None:
    x = np.zeros((1, 5), np.float32)
    with pytest.raises(_host.Declined) as declined:
        context.swiglu(x, x, 0.0, x)
    assert (declined.value.code, declined.value.text) == (2, "stub: swiglu is not served")
    with pytest.raises(_host.Declined) as absent:
        context.hadamard(x, x)
    assert (absent.value.code, absent.value.text) == (0, "slot hadamard is absent")
    with pytest.raises(_host.Failed) as failed:
        context.top_k(x, np.zeros((1, 1), np.int32))
    assert (failed.value.code, failed.value.text) == (102, "stub: top_k: NaN in row 3 \N{REPLACEMENT CHARACTER}")
    assert not issubclass(_host.Declined, _host.Failed)


def test_weights_are_read_in_place(context: _host.Context) -> None:
    codes = np.arange(6, dtype=np.float32).reshape(2, 3)
    weight = _host.Weight(context, _host.FORMAT_F32, 2, 3, codes)
    assert (weight.format, weight.rows, weight.cols) == (0, 2, 3)
    y = np.zeros((3, 2), np.float32)
    context.matmul_f32(weight, np.zeros((3, 3), np.float32), 2, y)
    assert y.tolist() == [[0, 6], [2, 8], [4, 10]]
    codes[1, 2] = 50
    context.matmul_f32(weight, np.zeros((3, 3), np.float32), 1, y)
    assert y[2].tolist() == [2, 50]


def test_lists_of_weights_and_refill(context: _host.Context) -> None:
    slabs = [bytearray([k] * 32) for k in (3, 7, 9)]
    weights = [_host.Weight(context, _host.FORMAT_FP4_GROUP, 2, 32, slab, bytes(2)) for slab in slabs]
    f, i, y = np.zeros((1, 4), np.float32), np.zeros((1, 4), np.int32), np.zeros((1, 8), np.float32)
    context.moe(f, i, f, i, weights, tuple(weights), weights, 1.0, y)
    assert y[0, :4].tolist() == [3, 3, 7, 9]
    with pytest.raises(BufferError):
        slabs[0].extend(b"more")  # pinned while it is bound
    weights[0].refill(bytes([5] * 32), bytes(2))
    slabs[0].extend(b"more")
    context.moe(f, i, f, i, weights, weights, weights, 1.0, y)
    assert y[0, 1] == 5
    with pytest.raises(_host.Failed, match="refill of another size"):
        weights[1].refill(bytes(31), bytes(2))
    context.moe(f, i, f, i, weights, weights, weights, 1.0, y)
    assert y[0, 2] == 7


def test_weight_keeps_its_memory_alive(context: _host.Context) -> None:
    codes = np.ones(4, np.float32)
    before = sys.getrefcount(codes)
    weight = _host.Weight(context, 0, 2, 2, codes)
    assert sys.getrefcount(codes) > before
    weight.close()
    weight.close()
    assert weight.closed
    assert sys.getrefcount(codes) == before
    x = np.zeros((1, 2), np.float32)
    with pytest.raises(ValueError, match="matmul_f32: the context or a weight is closed"):
        context.matmul_f32(weight, x, 1, x)
    with pytest.raises(ValueError, match="it is released"):
        weight.refill(codes)


def test_failed_bind_leaves_nothing(context: _host.Context, stub: Stub) -> None:
    with pytest.raises(_host.Failed, match="no codes"):
        _host.Weight(context, 0, 2, 2, None)
    with pytest.raises(ValueError, match="contiguous"):
        _host.Weight(context, 0, 2, 2, np.zeros((4, 4), np.float32)[:, ::2])
    with pytest.raises(TypeError):
        _host.Weight(context, 0, 2, 2, 17)
    assert stub.counter("stub_weights") == 0


def test_weights_belong_to_one_context(context: _host.Context, stub: Stub) -> None:
    other = _host.Context(_host.Library(stub.address), 1, workspace_bytes(1))
    weight = _host.Weight(other, 0, 2, 2, np.ones(4, np.float32))
    x = np.zeros((1, 2), np.float32)
    with pytest.raises(ValueError, match="matmul_f32: weight: the weight belongs to another context"):
        context.matmul_f32(weight, x, 1, x)
    other.close()
    assert weight.closed


@pytest.mark.parametrize("order", ["context", "weights", "close"])
def test_every_order_of_collection(stub: Stub, order: str) -> None:
    context: _host.Context | None = _host.Context(_host.Library(stub.address), 1, workspace_bytes(1))
    weights: list[_host.Weight] | None = [_host.Weight(context, 0, 1, 4, np.ones(4, np.float32)) for _ in range(5)]
    assert stub.counter("stub_weights") == 5
    if order == "context":
        context = None
        gc.collect()
        assert stub.counter("stub_contexts") == 1  # the weights keep it
        weights = None
    elif order == "weights":
        weights = None
        gc.collect()
        assert stub.counter("stub_weights") == 0
        context = None
    else:
        assert context is not None and weights is not None
        context.close()
        context.close()
        assert context.closed and all(weight.closed for weight in weights)
    gc.collect()
    assert [stub.counter(f"stub_{what}") for what in ("contexts", "weights", "misorder")] == [0, 0, 0]


def test_closed_context_refuses(stub: Stub) -> None:
    context = _host.Context(_host.Library(stub.address), 1, workspace_bytes(1))
    context.close()
    x = np.zeros((1, 2), np.float32)
    with pytest.raises(ValueError, match="closed"):
        context.add(x, x)
    with pytest.raises(ValueError, match="closed"):
        context.memory_info()
    with pytest.raises(ValueError, match="closed"):
        _host.Weight(context, 0, 1, 1, np.ones(1, np.float32))


def test_context_refuses_and_describes(context: _host.Context, stub: Stub) -> None:
    with pytest.raises(_host.Failed, match="threads < 1"):
        _host.Context(_host.Library(stub.address), 0, 0)
    assert context.device_info() == {"compute_major": 0, "compute_minor": 0, "integrated": False, "name": "stub device"}
    assert context.memory_info() == {"total_bytes": 0, "free_bytes": 0, "context_bytes": 3}


def test_library_wants_a_table() -> None:
    junk = np.zeros(256, np.uint8)
    with pytest.raises(ValueError, match="not that of a verified"):
        _host.Library(junk.ctypes.data)
    with pytest.raises(ValueError, match="null"):
        _host.Library(0)


def test_threads_may_share_a_context(context: _host.Context) -> None:
    x = np.ones((1, 64), np.float32)
    sums = [np.zeros((1, 64), np.float32) for _ in range(4)]

    def work(y: np.ndarray[Any, Any]) -> None:
        for _ in range(500):
            context.add(x, y)
            _host.Weight(context, 0, 1, 4, np.ones(4, np.float32))

    threads = [threading.Thread(target=work, args=(y,)) for y in sums]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((y == 500).all() for y in sums)
