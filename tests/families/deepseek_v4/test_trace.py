"""The inside of the forward pass against what Transformers' modules gave for the same prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stage_recorder import StageCall, recorded_stages

import coli

Calls = list[StageCall]

LAYERS = range(7)
CSA, HCA = (2, 4, 6), (3, 5)
# Values are of order one; two float32 runs of Transformers itself differ by as much as this in the last layer.
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def calls(oracle: dict[str, Any], oracle_path: Path) -> dict[str, Calls]:
    """The stage calls of the traced prompt in one chunk, by layer: "layer 3", "head"."""
    ids = next(p["ids"] for p in oracle["prompts"] if p["name"] == oracle["trace_prompt"])
    model = coli.open(oracle_path, threads=2, context=256, prefill_chunk=256)
    with model, recorded_stages(model._dispatcher) as made:
        model.logits(ids)
    found: dict[str, Calls] = {}
    for call in made:
        found.setdefault(call.where.partition(",")[0], []).append(call)
    return found


def of(calls: Calls, stage: str) -> Calls:
    return [call for call in calls if call.stage == stage]


def after_hyper(calls: Calls, site: int) -> Any:
    """Return the normed input of a site: the call that follows its hc_pre."""
    starts = [at for at, call in enumerate(calls) if call.stage == "hc_pre"]
    norm = calls[starts[site] + 1]
    assert norm.stage == "rms_norm"
    return norm.after["y"]


def assert_close(found: Any, oracle: dict[str, Any], key: str) -> None:
    want = oracle["arrays"][f"trace.{key}"]
    found = found[oracle["arrays"]["trace.positions"]].reshape(want.shape)
    assert np.abs(found - want).max() < TOLERANCE, key


@pytest.mark.parametrize("layer", LAYERS)
def test_layer(layer: int, calls: dict[str, Calls], oracle: dict[str, Any]) -> None:
    made, key = calls[f"layer {layer}"], f"layers.{layer}."
    attention, experts = of(made, "hc_post")
    assert_close(after_hyper(made, 0), oracle, key + "attn_in")
    assert_close(attention.before["post"], oracle, key + "attn_post")
    assert_close(attention.before["comb"], oracle, key + "attn_comb")
    assert_close(attention.before["y"], oracle, key + "attn_out")
    assert_close(after_hyper(made, 1), oracle, key + "ffn_in")
    assert_close(experts.before["y"], oracle, key + "ffn_out")
    assert_close(experts.after["streams"], oracle, key + "streams")


@pytest.mark.parametrize("layer", LAYERS)
def test_router(layer: int, calls: dict[str, Calls], oracle: dict[str, Any]) -> None:
    (router,) = of(calls[f"layer {layer}"], "router")
    key, positions = f"layers.{layer}.", oracle["arrays"]["trace.positions"]
    assert_close(router.before["logits"], oracle, key + "router_logits")
    assert (router.after["picks"][positions] == oracle["arrays"][f"trace.{key}router_pick"]).all()
    assert_close(router.after["weights"], oracle, key + "router_weights")


@pytest.mark.parametrize("layer", CSA + HCA)
def test_compressed_entries(layer: int, calls: dict[str, Calls], oracle: dict[str, Any]) -> None:
    want = oracle["arrays"][f"trace.layers.{layer}.compressed_kv"]
    compress = of(calls[f"layer {layer}"], "compress")[0]
    assert np.abs(compress.after["entries"][: len(want)] - want).max() < TOLERANCE


@pytest.mark.parametrize("layer", CSA)
def test_indexer(layer: int, calls: dict[str, Calls], oracle: dict[str, Any]) -> None:
    arrays = oracle["arrays"]
    positions = arrays["trace.positions"]
    made = calls[f"layer {layer}"]
    (scores,), (top_k,) = of(made, "index_scores"), of(made, "top_k")
    want = arrays[f"trace.layers.{layer}.index_scores_unmasked"]
    visible = np.arange(want.shape[1]) < (positions[:, None] + 1) // 4
    found = scores.after["scores"][positions]
    assert np.abs((found - want)[visible]).max() < TOLERANCE
    assert np.isneginf(found[~visible]).all()
    selected = np.sort(top_k.after["selected"][positions], 1)
    assert (selected == arrays[f"trace.layers.{layer}.index_pick"]).all()


def test_head(calls: dict[str, Calls], oracle: dict[str, Any]) -> None:
    (collapse,), (norm,) = of(calls["head"], "hc_head"), of(calls["head"], "rms_norm")
    assert_close(collapse.after["x"], oracle, "head_in")
    assert_close(norm.after["y"], oracle, "head_normed")


def test_every_array_of_the_trace_is_compared(oracle: dict[str, Any]) -> None:
    compared = {f"layers.{i}.{part}" for i in LAYERS for part in ("attn_in", "attn_post", "attn_comb", "attn_out")}
    compared |= {f"layers.{i}.{part}" for i in LAYERS for part in ("ffn_in", "ffn_out", "streams")}
    compared |= {f"layers.{i}.router_{part}" for i in LAYERS for part in ("logits", "pick", "weights")}
    compared |= {f"layers.{i}.compressed_kv" for i in CSA + HCA}
    compared |= {f"layers.{i}.index_{part}" for i in CSA for part in ("pick", "scores_unmasked")}
    compared |= {"head_in", "head_normed", "positions"}
    assert compared == {k.removeprefix("trace.") for k in oracle["arrays"] if k.startswith("trace.")}
