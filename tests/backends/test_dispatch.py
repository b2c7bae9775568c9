"""The dispatcher over stubs that serve, decline and fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from building import Build
from stubs import Stub, open_stub

from coli.backends.abi import SLOTS
from coli.backends.abi.structs import workspace_bytes
from coli.backends.dispatch import Dispatcher, Fallback, Format
from coli.errors import StageError

BuildStub = Callable[..., Path]


@pytest.fixture(scope="module")
def serving(build_stub: BuildStub) -> Stub:
    return open_stub(build_stub(), "serving")


@pytest.fixture(scope="module")
def declining(build_stub: BuildStub) -> Stub:
    return open_stub(build_stub("libcoli_cpu_portable.so", "STUB_NO_STAGE"), "declining")


@pytest.fixture(scope="module")
def bindless(build_stub: BuildStub) -> Stub:
    return open_stub(build_stub("libcoli_cpu_portable.so", "STUB_DECLINE_BIND"), "bindless")


@pytest.fixture
def chain(serving: Stub, declining: Stub) -> Iterator[tuple[Dispatcher, list[Fallback]]]:
    told: list[Fallback] = []
    with Dispatcher([declining, serving], 2, workspace_bytes(2), told.append) as dispatcher:
        yield dispatcher, told
    assert serving.counter("stub_contexts") == declining.counter("stub_contexts") == 0
    assert serving.counter("stub_weights") == declining.counter("stub_weights") == 0


def test_the_second_serves_what_the_first_declines(chain: tuple[Dispatcher, list[Fallback]]) -> None:
    dispatcher, told = chain
    x, y = np.ones((1, 3), np.float32), np.zeros((1, 3), np.float32)
    for _ in range(3):
        dispatcher.add(x, y)
    assert y.tolist() == [[3, 3, 3]]
    assert told == [Fallback("add", "declining", "stub: add is not served")]  # said once
    (row,) = dispatcher.rows()
    assert row.pop("seconds") > 0
    assert row == {
        "stage": "add",
        "backend": "serving",
        "calls": 3,
        "absent_in": [],
        "fallbacks": [{"backend": "declining", "reason": "stub: add is not served", "count": 3}],
    }


def test_the_first_serves_without_fallbacks(serving: Stub, declining: Stub) -> None:
    with Dispatcher([serving, declining], 1, workspace_bytes(1)) as dispatcher:
        x = np.ones((1, 5), np.float32)
        dispatcher.rms_norm(x, None, 0.5, x.copy())
        assert [(r["stage"], r["backend"], r["calls"], r["fallbacks"]) for r in dispatcher.rows()] == [
            ("rms_norm", "serving", 1, [])
        ]
        assert dispatcher.context_bytes() == {"serving": 1, "declining": 1}


def test_weights_follow_the_chain(chain: tuple[Dispatcher, list[Fallback]], serving: Stub, declining: Stub) -> None:
    dispatcher, _ = chain
    weight = dispatcher.bind("embed.weight", Format.F32, 2, 3, np.arange(6, dtype=np.float32))
    assert (declining.counter("stub_weights"), serving.counter("stub_weights")) == (1, 0)
    x, y = np.zeros((3, 3), np.float32), np.zeros((3, 2), np.float32)
    dispatcher.matmul_f32(weight, x, 1, y)
    assert y.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (declining.counter("stub_weights"), serving.counter("stub_weights")) == (1, 1)
    weight.refill(np.arange(6, 12, dtype=np.float32))
    dispatcher.matmul_f32(weight, x, 1, y)
    assert y.tolist() == [[6, 9], [7, 10], [8, 11]]
    weight.close()
    weight.close()
    assert (declining.counter("stub_weights"), serving.counter("stub_weights")) == (0, 0)


def test_lists_of_weights_follow_the_chain(chain: tuple[Dispatcher, list[Fallback]]) -> None:
    dispatcher, told = chain
    experts = [dispatcher.bind(f"experts.{k}.w2", Format.FP4_GROUP, 2, 32, bytes([k] * 32), bytes(2)) for k in (4, 6)]
    f, i, y = np.zeros((1, 2), np.float32), np.zeros((1, 2), np.int32), np.zeros((1, 4), np.float32)
    dispatcher.moe(f, i, f, i, experts, experts, experts, 0.0, y)
    assert y.tolist() == [[2, 4, 6, 0]]
    assert [fallback.stage for fallback in told] == ["moe"]


def test_format_that_the_first_cannot_bind(bindless: Stub, serving: Stub) -> None:
    told: list[Fallback] = []
    with Dispatcher([bindless, serving], 1, workspace_bytes(1), told.append) as dispatcher:
        weight = dispatcher.bind("w", Format.F32, 1, 1, np.full(1, 7, np.float32))
        y = np.zeros((1, 1), np.float32)
        dispatcher.matmul_f32(weight, y, 1, y)
        assert y.tolist() == [[7]]
        assert told == [Fallback("matmul_f32", "bindless", "stub: no weights")]
    with Dispatcher([bindless], 1, workspace_bytes(1)) as dispatcher, pytest.raises(StageError) as caught:
        dispatcher.bind("layers.0.w", Format.F32, 1, 1, np.zeros(1, np.float32))
    assert (caught.value.subject, caught.value.code) == ("layers.0.w", "stage.bind-declined")


def test_failure_of_the_call_names_stage_and_place(chain: tuple[Dispatcher, list[Fallback]]) -> None:
    dispatcher, _ = chain
    dispatcher.where = "layer 3"
    with pytest.raises(StageError) as caught:
        dispatcher.top_k(np.zeros((1, 1), np.float32), np.zeros((1, 1), np.int32))
    error = caught.value
    assert (error.subject, error.code) == ("stage top_k (layer 3)", "stage.nonfinite")
    assert error.rule == "failed in backend serving"
    assert error.observed == "stub: top_k: NaN in row 3 \N{REPLACEMENT CHARACTER} (site 102)"
    assert dispatcher.rows() == []


def test_stage_that_nobody_serves(chain: tuple[Dispatcher, list[Fallback]]) -> None:
    dispatcher, told = chain
    x = np.zeros((1, 4), np.float32)
    with pytest.raises(StageError) as caught:
        dispatcher.hadamard(x, x)
    assert caught.value.code == "stage.unserved"
    assert caught.value.observed == (
        "declining: its library leaves the stage out; serving: its library leaves the stage out"
    )
    assert told == []  # nobody took over, so nothing fell back


def test_a_fast_product_is_never_replaced_by_the_exact_one(native_build: Build) -> None:
    portable = open_stub(native_build.libraries["portable"], "cpu-portable")
    with Dispatcher([portable], 1, workspace_bytes(1)) as dispatcher:
        codes, scales = np.zeros((2, 32), np.uint8), np.full((1, 1), 127, np.uint8)
        weight = dispatcher.bind("w", Format.FP8_BLOCK, 2, 32, codes, scales)
        y = np.full((1, 2), 7, np.float32)
        for stage in ("fast_matmul_fp8", "fast_matmul_fp4"):
            with pytest.raises(StageError) as caught:
                getattr(dispatcher, stage)(weight, np.ones((1, 32), np.float32), 1, y)
            assert caught.value.code == "stage.unserved"
            assert caught.value.observed == "cpu-portable: its library leaves the stage out"
    assert y.tolist() == [[7, 7]]


def test_wrong_arguments_are_not_a_fallback(chain: tuple[Dispatcher, list[Fallback]]) -> None:
    dispatcher, _ = chain
    with pytest.raises(TypeError, match="add: x: expected float32 or int32"):
        dispatcher.add(np.zeros((1, 1)), np.zeros((1, 1), np.float32))
    with pytest.raises(AttributeError, match="invented: no such stage"):
        dispatcher.invented()


def test_every_stage_is_a_method(chain: tuple[Dispatcher, list[Fallback]]) -> None:
    dispatcher, _ = chain
    assert all(callable(getattr(dispatcher, slot.name)) for slot in SLOTS if slot.kind == "stage")


def test_context_that_cannot_be_made(serving: Stub) -> None:
    with pytest.raises(StageError) as caught:
        Dispatcher([serving, serving], 0, 0)
    assert caught.value.code == "stage.context"
    assert serving.counter("stub_contexts") == 0
    with pytest.raises(ValueError, match="at least one"):
        Dispatcher([], 1, 0)


def test_a_device_that_filled_up_since_is_left_out(build_stub: BuildStub, serving: Stub) -> None:
    full = open_stub(build_stub("libcoli_cpu_portable.so", "STUB_NO_CONTEXT"), "full")
    told: list[Fallback] = []
    with Dispatcher([full, serving], 1, workspace_bytes(1), told.append) as dispatcher:
        assert dispatcher.backends == ("serving",)
        x = np.ones((1, 2), np.float32)
        dispatcher.add(x, x.copy())
        assert [row["backend"] for row in dispatcher.rows()] == ["serving"]
    assert told == [Fallback("every stage", "full", "stub: no memory for a context")]
    for chain, insist in (([full, serving], True), ([full], False)):
        with pytest.raises(StageError) as caught:
            Dispatcher(chain, 1, workspace_bytes(1), told.append, insist=insist)
        assert (caught.value.code, caught.value.subject) == ("stage.context", "backend full")
    assert serving.counter("stub_contexts") == 0


def test_failure_of_the_backend_falls_through(build_stub: BuildStub, serving: Stub) -> None:
    broken = open_stub(build_stub("libcoli_cpu_portable.so", "STUB_DEVICE_LOST"), "broken")
    told: list[Fallback] = []
    with Dispatcher([broken, serving], 1, workspace_bytes(1), told.append) as dispatcher:
        y = np.zeros((1, 1), np.float32)
        dispatcher.add(np.ones((1, 1), np.float32), y)
        assert y.tolist() == [[1]]
    assert told == [Fallback("add", "broken", "stub: device lost")]
