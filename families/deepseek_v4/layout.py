"""The tensors that the engine binds, with the shapes that the geometry asks for (SPEC 5.2, without `model.` prefix)."""

from __future__ import annotations

from dataclasses import dataclass

from .config import Geometry

__all__ = ["DenseTensor", "dense_tensors", "expert_name", "expert_names", "expert_shapes", "scale_name"]


@dataclass(frozen=True)
class DenseTensor:
    """One resident tensor. kind: product (bound in its own format), vector or matrix (float32 values), ids (int64)."""

    name: str
    kind: str
    shape: tuple[int, ...]


def dense_tensors(geometry: Geometry) -> list[DenseTensor]:
    """List every resident tensor of the backbone in file order; products without the `.weight` suffix's scale."""
    g = geometry
    flat = g.streams * g.hidden
    found = [
        DenseTensor("embed.weight", "product", (g.vocab, g.hidden)),
        DenseTensor("head.weight", "product", (g.vocab, g.hidden)),
        DenseTensor("norm.weight", "vector", (g.hidden,)),
        DenseTensor("hc_head_fn", "product", (g.streams, flat)),
        DenseTensor("hc_head_base", "vector", (g.streams,)),
        DenseTensor("hc_head_scale", "vector", (1,)),
    ]
    for layer in range(g.layers):
        found += _layer_tensors(g, layer, f"layers.{layer}.", flat)
    return found


def _layer_tensors(g: Geometry, layer: int, prefix: str, flat: int) -> list[DenseTensor]:
    mixes = (2 + g.streams) * g.streams
    ratio = g.ratios[layer]
    found = []
    for site in ("attn", "ffn"):
        found += [
            DenseTensor(f"{prefix}{site}_norm.weight", "vector", (g.hidden,)),
            DenseTensor(f"{prefix}hc_{site}_fn", "product", (mixes, flat)),
            DenseTensor(f"{prefix}hc_{site}_base", "vector", (mixes,)),
            DenseTensor(f"{prefix}hc_{site}_scale", "vector", (3,)),
        ]
    attn = prefix + "attn."
    found += [
        DenseTensor(attn + "attn_sink", "vector", (g.heads,)),
        DenseTensor(attn + "q_norm.weight", "vector", (g.q_rank,)),
        DenseTensor(attn + "kv_norm.weight", "vector", (g.head_dim,)),
        DenseTensor(attn + "wq_a.weight", "product", (g.q_rank, g.hidden)),
        DenseTensor(attn + "wq_b.weight", "product", (g.heads * g.head_dim, g.q_rank)),
        DenseTensor(attn + "wkv.weight", "product", (g.head_dim, g.hidden)),
        DenseTensor(attn + "wo_a.weight", "product", (g.o_groups * g.o_rank, g.heads * g.head_dim // g.o_groups)),
        DenseTensor(attn + "wo_b.weight", "product", (g.hidden, g.o_groups * g.o_rank)),
    ]
    if ratio:
        found += _compressor_tensors(g, attn + "compressor.", ratio, g.head_dim)
    if ratio and g.overlaps(layer):
        found += [
            DenseTensor(attn + "indexer.wq_b.weight", "product", (g.index_heads * g.index_dim, g.q_rank)),
            DenseTensor(attn + "indexer.weights_proj.weight", "product", (g.index_heads, g.hidden)),
        ]
        found += _compressor_tensors(g, attn + "indexer.compressor.", ratio, g.index_dim)
    ffn = prefix + "ffn."
    found.append(DenseTensor(ffn + "gate.weight", "product", (g.experts, g.hidden)))
    if g.is_hashed(layer):
        found.append(DenseTensor(ffn + "gate.tid2eid", "ids", (g.vocab, g.experts_per_token)))
    else:
        found.append(DenseTensor(ffn + "gate.bias", "vector", (g.experts,)))
    found += [
        DenseTensor(ffn + "shared_experts.w1.weight", "product", (g.shared_width, g.hidden)),
        DenseTensor(ffn + "shared_experts.w3.weight", "product", (g.shared_width, g.hidden)),
        DenseTensor(ffn + "shared_experts.w2.weight", "product", (g.hidden, g.shared_width)),
    ]
    return found


def _compressor_tensors(g: Geometry, prefix: str, ratio: int, width: int) -> list[DenseTensor]:
    wide = 2 * width if ratio == 4 else width
    return [
        DenseTensor(prefix + "ape", "matrix", (ratio, wide)),
        DenseTensor(prefix + "wkv.weight", "product", (wide, g.hidden)),
        DenseTensor(prefix + "wgate.weight", "product", (wide, g.hidden)),
        DenseTensor(prefix + "norm.weight", "vector", (width,)),
    ]


def expert_shapes(geometry: Geometry) -> dict[str, tuple[int, int]]:
    """Return [rows, cols] of the three products of a routed expert."""
    g = geometry
    return {
        "w1": (g.expert_width, g.hidden),
        "w3": (g.expert_width, g.hidden),
        "w2": (g.hidden, g.expert_width),
    }


def scale_name(name: str) -> str:
    """Return the name of the scale that belongs to a quantized weight."""
    return name.removesuffix(".weight") + ".scale"


def expert_name(layer: int, expert: int, part: str) -> str:
    """Return the name of one product of a routed expert; part is w1, w2 or w3."""
    return f"layers.{layer}.ffn.experts.{expert}.{part}.weight"


def expert_names(geometry: Geometry) -> dict[tuple[int, int], dict[str, tuple[str, str]]]:
    """Return, by (layer, expert), each part's names of codes and scales."""
    found = {}
    for layer in range(geometry.layers):
        for expert in range(geometry.experts):
            names = {part: expert_name(layer, expert, part) for part in expert_shapes(geometry)}
            found[layer, expert] = {part: (name, scale_name(name)) for part, name in names.items()}
    return found
