"""What a DeepSeek V4 checkpoint asks for, from its config and its headers: for the plan. Pure Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coli.engine.budget import Demand, DeviceGroup, Traffic

from .budget import ledger_items, mirror_items, weight_bytes
from .config import Geometry

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
        lambda context, chunk: ledger_items(g, tensor_bytes, context=context, chunk=chunk, weights=weights),
        traffic,
        dense_groups(g, tensor_bytes),
    )


def dense_groups(geometry: Geometry, tensor_bytes: Mapping[str, int]) -> tuple[DeviceGroup, ...]:
    """Return the products that a device may hold copies of: those of the layers, then the head."""
    items = mirror_items(geometry, tensor_bytes)
    head = items.pop(_HEAD, None)
    groups = [DeviceGroup("dense weights", "dense", tuple(items.values()))]
    if head is not None:
        groups.append(DeviceGroup("head", "dense", (head,)))
    return tuple(groups)
