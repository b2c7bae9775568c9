"""What a DeepSeek V4 engine keeps in memory: shapes, from which the engine allocates, and ledger items for a plan.

Pure Python: no numpy, no extension. Everything here is exact; the engine allocates these shapes and no others.
"""

from __future__ import annotations

from collections.abc import Mapping

from coli.engine.budget import Product, fill
from coli.engine.device_memory import device_bytes
from coli.engine.ledger import Grant, Item, Ledger
from coli.engine.slab import slab_layout

from .config import Geometry
from .layout import DenseTensor, dense_tensors, expert_names, scale_name

__all__ = [
    "activation_shapes",
    "dense_bytes",
    "ledger_items",
    "product_stage",
    "products",
    "reserve_mirrors",
    "score_rows",
    "slab_bytes",
    "state_shapes",
    "weight_bytes",
]

# Index scores are made in tiles of rows, so that a million tokens of context do not cost a gigabyte of scratch.
_SCORE_TILE_BYTES = 16 << 20
_FLOAT_BYTES = 4
# Bits of an element -> the stage of its format: what the files hold is one of these (`weights.weight_format`).
_STAGES = {32: "matmul_f32", 16: "matmul_bf16", 8: "matmul_fp8", 4: "matmul_fp4"}

Shapes = dict[str, tuple[int, int]]


def state_shapes(geometry: Geometry, layer: int, context: int, chunk: int) -> Shapes:
    """Return the float32 matrices that a layer keeps for `context` tokens fed in chunks of at most `chunk`."""
    g, ratio = geometry, geometry.ratios[layer]
    shapes: Shapes = {"ring": (min(g.window - 1 + chunk, context), g.head_dim)}
    if ratio:
        entries = context // ratio
        overlap = g.overlaps(layer)
        wide = 2 if overlap else 1
        shapes["entries"] = (entries, g.head_dim)
        shapes["kv_state"] = shapes["gate_state"] = (wide * ratio, wide * g.head_dim)
        if overlap:
            shapes["index_entries"] = (entries, g.index_dim)
            shapes["index_kv_state"] = shapes["index_gate_state"] = (2 * ratio, 2 * g.index_dim)
    return shapes


def score_rows(geometry: Geometry, context: int, chunk: int) -> int:
    """Return how many tokens' index scores are held at once."""
    return max(1, min(chunk, _SCORE_TILE_BYTES // (_FLOAT_BYTES * max(1, context // 4))))


def activation_shapes(geometry: Geometry, context: int, chunk: int) -> Shapes:
    """Return the scratch matrices (4 bytes an element) of one forward pass over at most `chunk` tokens."""
    g, t = geometry, chunk
    shapes: Shapes = {
        "streams": (t, g.streams * g.hidden),
        "x": (t, g.hidden),
        "y": (t, g.hidden),
        "post": (t, g.streams),
        "comb": (t, g.streams * g.streams),
        "q_low": (t, g.q_rank),
        "q": (t, g.heads * g.head_dim),
        "kv": (t, g.head_dim),
        "attended": (t, g.heads * g.head_dim),
        "o_low": (t, g.o_groups * g.o_rank),
        "router_logits": (t, g.experts),
        "picks": (t, g.experts_per_token),
        "pick_weights": (t, g.experts_per_token),
        "gate": (t, g.shared_width),
        "up": (t, g.shared_width),
        "shared": (t, g.hidden),
    }
    if any(g.ratios):
        wide = 2 if 4 in g.ratios else 1
        shapes["window_kv"] = shapes["window_gate"] = (t, wide * g.head_dim)
    if 4 in g.ratios:
        shapes["index_q"] = (t, g.index_heads * g.index_dim)
        shapes["index_weights"] = (t, g.index_heads)
        shapes["index_kv"] = shapes["index_gate"] = (t, 2 * g.index_dim)
        shapes["selected"] = (t, g.index_top_k)
        shapes["scores"] = (score_rows(g, context, chunk), max(1, context // 4))
    return shapes


def _bytes_of(shapes: Shapes) -> int:
    return sum(rows * cols for rows, cols in shapes.values()) * _FLOAT_BYTES


def dense_bytes(geometry: Geometry, tensor_bytes: Mapping[str, int]) -> int:
    """Return the bytes of the resident tensors, vectors as float32. `tensor_bytes`: name -> bytes in the files."""
    total = 0
    for tensor in dense_tensors(geometry):
        if tensor.kind == "product":
            total += tensor_bytes[tensor.name] + tensor_bytes.get(scale_name(tensor.name), 0)
        elif tensor.kind == "ids":
            total += tensor_bytes[tensor.name]
        else:
            count = 1
            for size in tensor.shape:
                count *= size
            total += count * _FLOAT_BYTES
    return total


def slab_bytes(geometry: Geometry, tensor_bytes: Mapping[str, int]) -> int:
    """Return the bytes of a slab that holds any routed expert: three products and their scales, padded."""
    slabs = set()
    for parts in expert_names(geometry).values():
        codes = [tensor_bytes[name] for name, _ in parts.values()]
        scales = [tensor_bytes[name] for _, name in parts.values()]
        slabs.add(slab_layout(codes + scales)[1])
    return max(slabs)


def weight_bytes(geometry: Geometry, tensor_bytes: Mapping[str, int]) -> tuple[int, int]:
    """Return `dense_bytes` and `slab_bytes`: they depend on the files only, and take a while for 33 thousand names."""
    return dense_bytes(geometry, tensor_bytes), slab_bytes(geometry, tensor_bytes)


def ledger_items(
    geometry: Geometry,
    tensor_bytes: Mapping[str, int],
    *,
    context: int,
    chunk: int,
    weights: tuple[int, int] | None = None,
) -> list[Item]:
    """Return what the engine reserves in RAM, in this order; `tensor_bytes`: name -> bytes in the files.

    The last item is the expert cache: `count` slabs hold every expert, `minimum` those of one token. `weights`: what
    `weight_bytes` returns, for whoever asks more than once.
    """
    g = geometry
    dense, slab = weights or weight_bytes(g, tensor_bytes)
    state = [state_shapes(g, layer, context, chunk) for layer in range(g.layers)]
    return [
        Item("dense weights", "ram", dense),
        Item("KV and compressed entries", "ram", sum(_bytes_of(s) for s in state)),
        Item("activations", "ram", _bytes_of(activation_shapes(g, context, chunk))),
        Item("expert cache", "ram", slab, count=g.layers * g.experts, minimum=g.experts_per_token),
    ]


def product_stage(tensor: DenseTensor, nbytes: int) -> str | None:
    """Return the stage that multiplies by a resident product whose codes take ``nbytes``; None when none does.

    The embedding is looked up, and the mixing matrices of hyper-connections are read by their own stages.
    """
    if tensor.kind != "product" or tensor.name == "embed.weight" or tensor.name.endswith("_fn"):
        return None
    rows, cols = tensor.shape
    return _STAGES.get(nbytes * 8 // (rows * cols))


def products(geometry: Geometry, tensor_bytes: Mapping[str, int]) -> tuple[Product, ...]:
    """Return the resident products, each with its stage and the item of its copy on a device, in order of granting.

    A device serves bf16, fp8 and fp4 products, not f32 ones. Layers come first, the head last: every one of them is
    read once a token, so what counts is how many bytes fit.
    """
    found = []
    for tensor in sorted(dense_tensors(geometry), key=lambda tensor: tensor.name == "head.weight"):
        stage = product_stage(tensor, tensor_bytes[tensor.name])
        if stage is None:
            continue
        rows = tensor.shape[0]
        row_bytes = tensor_bytes[tensor.name] // rows
        nbytes = device_bytes(rows, row_bytes, tensor_bytes.get(scale_name(tensor.name), 0))
        copy = None if stage == "matmul_f32" else Item(f"copy of {tensor.name}", "vram", nbytes)
        found.append(Product(tensor.name, stage, copy))
    return tuple(found)


def reserve_mirrors(geometry: Geometry, tensor_bytes: Mapping[str, int], ledger: Ledger) -> dict[str, Grant]:
    """Reserve the copies that fit into the tier `vram`, by tensor; none where the ledger has no such tier."""
    if ledger.free("vram") is None:
        return {}
    copies = {p.copy.name: p for p in products(geometry, tensor_bytes) if p.copy is not None}
    grants = fill(ledger, (p.copy for p in copies.values() if p.copy is not None))
    return {copies[grant.item.name].name: grant for grant in grants}
