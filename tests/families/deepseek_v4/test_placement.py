"""Chunk size, threads, cache size and library change speed only: the bytes stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coli


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


def test_every_ram_budget_from_the_minimum_to_plenty(oracle_path: Path, ids: list[int], expected: bytes) -> None:
    with coli.open(oracle_path, threads=2, context=512) as model:
        memory = model.facts()["memory"]
    plenty, minimum, slab = memory["ram_reserved_bytes"], memory["ram_minimum_bytes"], memory["expert_slab_bytes"]
    seen = set()
    for ram in (minimum, minimum + slab, minimum + 5 * slab, (minimum + plenty) // 2, plenty):
        with coli.open(oracle_path, threads=2, context=512, ram=ram + (8 << 20)) as model:
            assert model.logits(ids).tobytes() == expected
            seen.add(model.facts()["memory"]["expert_slots"])
    assert len(seen) >= 3, "the budgets must have made caches of different sizes"
