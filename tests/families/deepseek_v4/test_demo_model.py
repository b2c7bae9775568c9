"""The trained demo model against Transformers: greedy texts and held-out perplexity."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coli

PROMPTS = ["open18", "open14", "open17", "open1", "chat4", "chat2", "held0_90", "held14_290", "held3_200"]


@pytest.fixture(scope="module")
def model(demo_path: Path) -> Iterator[Any]:
    with coli.open(demo_path, threads=2, context=512, prefill_chunk=256) as opened:
        yield opened


@pytest.mark.parametrize("name", PROMPTS)
def test_greedy(name: str, model: Any, demo_reference: dict[str, Any]) -> None:
    prompt = next(p for p in demo_reference["prompts"] if p["name"] == name)
    assert len(prompt["greedy"]) == 96
    assert list(model.generate(prompt["ids"], max_tokens=96, ignore_eos=True)) == prompt["greedy"]


@pytest.mark.parametrize("name", PROMPTS)
def test_logits(name: str, model: Any, demo_reference: dict[str, Any]) -> None:
    prompt = next(p for p in demo_reference["prompts"] if p["name"] == name)
    arrays = demo_reference["arrays"]
    assert np.abs(model.logits(prompt["ids"], last=1)[0] - arrays[f"{name}.last_logits"]).max() < 5e-4
    rows = model.logits(prompt["ids"] + prompt["greedy"][:-1], last=96)
    top = np.take_along_axis(rows, arrays[f"{name}.greedy_top5_ids"].astype(np.int64), 1)
    error = np.abs(top - arrays[f"{name}.greedy_top5_logits"]).max(1)
    if name != "open17":
        assert error.max() < 5e-5
        return
    # At one position the 16th and 17th best entry of the indexer differ by 2.4e-7, one unit in the last place: the
    # choice may fall either way. It moves that row by 3e-3, and the few that read it afterwards.
    assert error.max() < 5e-3
    assert np.count_nonzero(error > 5e-5) <= 12


def negative_log_likelihood(model: Any, row: np.ndarray) -> float:
    """Mean over the predictions of one row of ids, in float64."""
    logits = model.logits(row[:-1].tolist()).astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    return float((np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), row[1:]]).mean())


def test_held_out_rows(model: Any, demo_reference: dict[str, Any]) -> None:
    rows, want = demo_reference["arrays"]["held_out.rows"], demo_reference["arrays"]["held_out.nll_first16"]
    got = [negative_log_likelihood(model, row) for row in rows[:16]]
    error = np.abs(np.array(got) - want / 256)  # the reference holds sums over the row
    # Rows agree within 1e-6, but for those with a near tie in the indexer (see test_logits).
    assert np.median(error) < 1e-6
    assert error.max() < 5e-4


@pytest.mark.full
def test_held_out_perplexity(model: Any, demo_reference: dict[str, Any]) -> None:
    nll = np.mean([negative_log_likelihood(model, row) for row in demo_reference["arrays"]["held_out.rows"]])
    assert float(np.exp(nll)) == pytest.approx(demo_reference["held_out"]["perplexity"], abs=1e-3)


# Temperature 0.7, top-p 0.9 after "<BOS>Emma": the same on every machine. Recorded once, when portable, x86-64-v3 and
# x86-64-v4 agreed; test_sampling holds the sampler itself against exact fractions.
SAMPLED = {
    0: "398 870 70 308 394 71 987 374 588 14 380 398 317 289 293 275 362 269 921 284 359 559 273 277",
    1: "935 301 261 281 78 300 361 282 402 269 223 609 67 284 322 14 285 269 273 277 741 87 419 284",
    2**64 - 1: "398 317 380 721 661 569 16 521 564 317 464 79 669 308 275 289 259 603 315 279 29 380 301 788",
}


@pytest.mark.parametrize("seed", SAMPLED)
def test_the_same_seed_gives_the_same_text_everywhere(seed: int, model: Any) -> None:
    ids = model.encode("<｜begin▁of▁sentence｜>Emma")
    tokens = list(model.generate(ids, 24, 0.7, seed, top_p=0.9, ignore_eos=True))
    assert tokens == [int(word) for word in SAMPLED[seed].split()]
