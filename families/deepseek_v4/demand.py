"""What a DeepSeek V4 checkpoint asks for, from its config and its headers: for the plan. Pure Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coli.engine.budget import Demand, DeviceGroup, Traffic
from coli.engine.ledger import Item

from .budget import ledger_items, weight_bytes
from .config import Geometry
from .layout import dense_tensors, scale_name

__all__ = ["demand", "dense_groups"]

_EMBEDDING, _HEAD = "embed.weight", "head.weight"
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
    return Demand(
        lambda context, chunk: ledger_items(g, tensor_bytes, context=context, chunk=chunk, weights=weights), traffic
    )


def dense_groups(geometry: Geometry, tensor_bytes: Mapping[str, int]) -> tuple[DeviceGroup, ...]:
    """Return the products that every token reads, as copies on a device: those of the layers, then the head."""
    items = {
        tensor.name: Item(tensor.name, "vram", tensor_bytes[tensor.name] + tensor_bytes.get(scale_name(tensor.name), 0))
        for tensor in dense_tensors(geometry)
        if tensor.kind == "product" and tensor.name != _EMBEDDING
    }
    head = items.pop(_HEAD)
    return DeviceGroup("dense weights", "dense", tuple(items.values())), DeviceGroup("head", "dense", (head,))
