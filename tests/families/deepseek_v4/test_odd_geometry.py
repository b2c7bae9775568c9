"""A geometry that fills no block of 128, with fp8 experts, against Transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coli
from coli.backends.candidates import default_search
from coli.backends.loader import survey

PROMPTS = ["short", "dsml", "deep"]


@pytest.fixture(scope="module")
def model(odd_oracle_path: Path) -> Iterator[Any]:
    with coli.open(odd_oracle_path, threads=2, context=512) as opened:
        yield opened


@pytest.mark.parametrize("name", PROMPTS)
def test_tokens_and_logits(name: str, model: Any, odd_oracle: dict[str, Any]) -> None:
    prompt = next(p for p in odd_oracle["prompts"] if p["name"] == name)
    logits = model.logits(prompt["ids"])
    assert logits.argmax(1).tolist() == prompt["top1"]
    want = odd_oracle["arrays"][f"{name}.logits"]
    assert np.abs(logits[-len(want) :] - want).max() < 5e-4
    assert list(model.generate(prompt["ids"], max_tokens=32, ignore_eos=True)) == prompt["greedy"]
    want = odd_oracle["arrays"][f"{name}.greedy_logits"]
    assert np.abs(model.logits(prompt["ids"] + prompt["greedy"][:-1], last=32) - want).max() < 5e-4


@pytest.mark.parametrize(("chunk", "threads"), [(1, 1), (3, 7), (512, 2)])
def test_same_bytes_from_every_library(
    chunk: int, threads: int, model: Any, odd_oracle_path: Path, odd_oracle: dict[str, Any]
) -> None:
    ids = next(p["ids"] for p in odd_oracle["prompts"] if p["name"] == "dsml")
    expected = model.logits(ids).tobytes()
    usable = [c.candidate.path for c in survey(default_search()).candidates if c.accepted]
    assert usable
    for library in usable:
        with coli.open(
            odd_oracle_path, threads=threads, context=256, prefill_chunk=chunk, backend=str(library)
        ) as other:
            assert other.logits(ids).tobytes() == expected, library
