"""Chunk size, threads, cache size and library change speed only: the bytes stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coli
from coli.errors import BudgetError


@pytest.fixture(scope="module")
def ids(oracle: dict[str, Any]) -> list[int]:
    found: list[int] = next(p["ids"] for p in oracle["prompts"] if p["name"] == "deep")
    return found


@pytest.fixture(scope="module")
def expected(oracle_model: Any, ids: list[int]) -> bytes:
    data: bytes = oracle_model.logits(ids).tobytes()
    return data


@pytest.mark.parametrize("chunk", [1, 3, 64, 512])
def test_prefill_chunks(chunk: int, oracle_path: Path, ids: list[int], expected: bytes) -> None:
    with coli.open(oracle_path, threads=2, context=512, prefill_chunk=chunk) as model:
        assert model.logits(ids).tobytes() == expected


def test_decode_token_by_token_equals_prefill(oracle_model: Any, ids: list[int], expected: bytes) -> None:
    engine = oracle_model.engine
    engine.reset()
    rows = [engine.forward(np.array([token], np.int32), at, 1) for at, token in enumerate(ids)]
    assert np.concatenate(rows).tobytes() == expected


def test_decode_after_a_prefill_of_awkward_length(oracle_model: Any, ids: list[int], expected: bytes) -> None:
    engine = oracle_model.engine
    for cuts in ([3, 4, 5], [127, 129, 255, 257], [15, 16, 17, 128]):
        engine.reset()
        rows, start = [], 0
        for stop in [*cuts, len(ids)]:
            rows.append(engine.forward(np.array(ids[start:stop], np.int32), start, stop - start))
            start = stop
        assert np.concatenate(rows).tobytes() == expected


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads(threads: int, oracle_path: Path, ids: list[int], expected: bytes) -> None:
    with coli.open(oracle_path, threads=threads, context=512) as model:
        assert model.logits(ids).tobytes() == expected


def test_every_ram_budget_from_the_minimum_to_plenty(
    oracle_path: Path, ids: list[int], expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Python itself holds differs from one opening to the next; the budgets here are exact to a slab.
    monkeypatch.setattr("coli.engine.model.resident_bytes", lambda: 64 << 20)
    with coli.open(oracle_path, threads=2, context=512, ram="4GiB") as model:
        memory = model.facts()["memory"]
    cache = next(item for item in memory["items"] if item["name"] == "expert cache")
    slab, base = cache["bytes"] // cache["count"], memory["ram_reserved_bytes"] - cache["bytes"]
    assert cache["count"] == 7 * 16
    for slabs in (3, 4, 8, 16, 50, cache["count"]):
        with coli.open(oracle_path, threads=2, context=512, ram=base + slabs * slab) as model:
            assert model.logits(ids).tobytes() == expected
            memory = model.facts()["memory"]
            assert memory["expert_slabs"] == slabs
            assert memory["ram_reserved_bytes"] <= base + slabs * slab
            assert memory["expert_misses"] >= (7 * 16 if slabs < 16 else 0)


def test_one_slab_less_than_the_minimum_is_refused_with_numbers(
    oracle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coli.engine.model.resident_bytes", lambda: 64 << 20)
    with coli.open(oracle_path, threads=2, context=512, prefill_chunk=1, ram="4GiB") as model:
        memory = model.facts()["memory"]
    cache = next(item for item in memory["items"] if item["name"] == "expert cache")
    slab, base = cache["bytes"] // cache["count"], memory["ram_reserved_bytes"] - cache["bytes"]
    with coli.open(oracle_path, threads=2, context=512, prefill_chunk=1, ram=base + 3 * slab) as model:
        assert model.facts()["memory"]["expert_slabs"] == 3
    with pytest.raises(BudgetError) as refusal:
        coli.open(oracle_path, threads=2, context=512, prefill_chunk=1, ram=base + 3 * slab - 1)
    assert refusal.value.exit_code == 4
    assert str(base + 3 * slab - 1) in str(refusal.value)


def test_a_small_budget_takes_smaller_chunks_before_it_refuses(
    oracle_path: Path, ids: list[int], expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coli.engine.model.resident_bytes", lambda: 64 << 20)
    with coli.open(oracle_path, threads=2, context=512, prefill_chunk=1, ram="4GiB") as model:
        memory = model.facts()["memory"]
    cache = next(item for item in memory["items"] if item["name"] == "expert cache")
    slab, base = cache["bytes"] // cache["count"], memory["ram_reserved_bytes"] - cache["bytes"]
    with coli.open(oracle_path, threads=2, context=512, prefill_chunk=128, ram=base + 4 * slab) as model:
        assert model.facts()["prefill_chunk"] < 128
        assert model.logits(ids).tobytes() == expected
