"""What a DeepSeek V4 checkpoint asks for, from its config and its headers: for the plan. Pure Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coli.engine.budget import Demand, DeviceGroup, Product, Traffic

from .budget import ledger_items, products, weight_bytes
from .config import Geometry

__all__ = ["demand"]

_EMBEDDING, _HEAD = "embed.weight", "head.weight"
# Stages that depend on the geometry; every model calls the others.
_SOMETIMES = frozenset(("matmul_f32", "matmul_bf16", "matmul_fp8", "matmul_fp4", "compress", "index_scores", "top_k"))
_CALLS_OF_A_LAYER = 30  # counted over 200 tokens of two small models: 31 and 33


def demand(config: Mapping[str, Any], tensor_bytes: Mapping[str, int], source: str) -> Demand:
    """Return the demand of a model. ``config``: the text config; ``tensor_bytes``: name -> bytes in the files.

    ``source`` names the config in errors. Raises CheckpointError for a geometry that the engine would refuse, KeyError
    for a tensor that is not in the headers.
    """
    g = Geometry.from_config(dict(config), source)
    weights = weight_bytes(g, tensor_bytes)
    traffic = Traffic(
        # One row of the embedding is read, and its other rows are not.
        dense_bytes=weights[0] - tensor_bytes[_EMBEDDING],
        experts=g.layers * g.experts_per_token,
        expert_bytes=weights[1],
        calls=_CALLS_OF_A_LAYER * g.layers,
    )
    resident = products(g, tensor_bytes)
    return Demand(
        lambda context, chunk: ledger_items(g, tensor_bytes, context=context, chunk=chunk, weights=weights),
        traffic,
        _dense_groups(resident),
        resident,
        _idle_stages(g, resident),
    )


def _dense_groups(resident: Sequence[Product]) -> tuple[DeviceGroup, ...]:
    """Return the products that a device may hold copies of: those of the layers, then the head."""
    layers = tuple(one.copy for one in resident if one.copy is not None and one.name != _HEAD)
    head = tuple(one.copy for one in resident if one.copy is not None and one.name == _HEAD)
    groups = (DeviceGroup("dense weights", "dense", layers), DeviceGroup("head", "dense", head))
    return tuple(group for group in groups if group.items)


def _idle_stages(geometry: Geometry, resident: Sequence[Product]) -> frozenset[str]:
    """Return the stages that nothing calls: products of formats that no weight has, compression that no layer does."""
    called = {one.stage for one in resident}
    if any(geometry.ratios):
        called.add("compress")
    if any(geometry.overlaps(layer) for layer in range(geometry.layers)):
        called |= {"index_scores", "top_k"}
    return _SOMETIMES - called
