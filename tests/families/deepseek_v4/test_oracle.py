"""The whole forward pass against Transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import coli

PROMPTS = ["short", "window", "over64", "dsml", "cross128", "over128", "deep"]
TOLERANCE = 5e-4  # the noise between Transformers' own float32 and float64 runs is 1.2e-4


def prompt_named(reference: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(p for p in reference["prompts"] if p["name"] == name)
    return found


def test_the_prompts_are_all_there(oracle: dict[str, Any]) -> None:
    assert [p["name"] for p in oracle["prompts"]] == PROMPTS


@pytest.mark.parametrize("name", PROMPTS)
def test_prompt_logits(name: str, oracle: dict[str, Any], oracle_model: Any) -> None:
    prompt = prompt_named(oracle, name)
    logits = oracle_model.logits(prompt["ids"])
    assert logits.dtype == np.float32
    assert logits.argmax(1).tolist() == prompt["top1"]
    want = oracle["arrays"][f"{name}.logits"]
    assert np.abs(logits[-len(want) :] - want).max() < TOLERANCE


@pytest.mark.parametrize("name", PROMPTS)
def test_greedy_tokens(name: str, oracle: dict[str, Any], oracle_model: Any) -> None:
    prompt = prompt_named(oracle, name)
    greedy = list(oracle_model.generate(prompt["ids"], max_tokens=len(prompt["greedy"]), ignore_eos=True))
    assert greedy == prompt["greedy"]


@pytest.mark.parametrize("name", PROMPTS)
def test_greedy_logits(name: str, oracle: dict[str, Any], oracle_model: Any) -> None:
    prompt = prompt_named(oracle, name)
    ids = prompt["ids"] + prompt["greedy"][:-1]
    want = oracle["arrays"][f"{name}.greedy_logits"]
    assert np.abs(oracle_model.logits(ids, last=len(want)) - want).max() < TOLERANCE


def test_last_rows_are_the_same_rows(oracle: dict[str, Any], oracle_model: Any) -> None:
    ids = prompt_named(oracle, "over64")["ids"]
    whole = oracle_model.logits(ids)
    assert oracle_model.logits(ids, last=5).tobytes() == whole[-5:].tobytes()
    assert oracle_model.logits(ids, last=1000).tobytes() == whole.tobytes()


def test_tokenizer_gives_the_reference_ids(oracle: dict[str, Any], oracle_model: Any) -> None:
    for prompt in oracle["prompts"]:
        assert oracle_model.encode(prompt["text"]) == prompt["ids"]


def test_two_models_open_at_once(oracle: dict[str, Any], oracle_model: Any, oracle_path: Any) -> None:
    ids = prompt_named(oracle, "cross128")["ids"]
    alone = oracle_model.logits(ids)
    with coli.open(oracle_path, threads=1, context=256) as other:
        mixed = [(oracle_model.logits(ids[:n]), other.logits(ids[:n])) for n in (5, 60, len(ids))]
    for left, right in mixed:
        assert left.tobytes() == right.tobytes()
    assert mixed[-1][0].tobytes() == alone.tobytes()
