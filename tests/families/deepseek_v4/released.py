"""Names, types and shapes of the released DeepSeek V4 checkpoints, written from the published table of tensors.

Nothing here looks at the family's own patterns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "I64": 8}

# Shapes of Flash add up to the published total, which checks this file.
FLASH_TENSORS = 69187
FLASH_BYTES = 159_609_485_896
FLASH_DRAFT_TENSORS = 1575
# Flash-0731: published counts of the index.
FLASH_0731_TENSORS = 72317
FLASH_0731_DRAFT = (1568, 1565, 1572)


class Shape(NamedTuple):
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        size = BYTES[self.dtype]
        for n in self.shape:
            size *= n
        return size


class Release(NamedTuple):
    hidden: int
    heads: int
    q_rank: int
    groups: int
    experts: int
    width: int
    index_heads: int
    ratios: tuple[int, ...]
    vocab: int = 129280
    top_k: int = 6
    head_dim: int = 512
    o_rank: int = 1024
    hash_layers: int = 3
    fp4: bool = True


FLASH = Release(4096, 64, 1024, 8, 256, 2048, 64, (0, 0, *(4, 128) * 20, 4))
PRO = Release(7168, 128, 1536, 16, 384, 3072, 64, (128, 128, *(4, 128) * 29, 4))
FLASH_BASE = FLASH._replace(fp4=False)
PRO_BASE = PRO._replace(fp4=False)


def backbone(r: Release) -> Iterator[tuple[str, Shape]]:
    yield "embed.weight", Shape("BF16", (r.vocab, r.hidden))
    yield "head.weight", Shape("BF16", (r.vocab, r.hidden))
    yield "norm.weight", Shape("BF16", (r.hidden,))
    yield from _hc("hc_head", 4, 1, r)
    for layer, ratio in enumerate(r.ratios):
        yield from block(f"layers.{layer}", ratio, layer < r.hash_layers, r)


def first_draft(r: Release) -> Iterator[tuple[str, Shape]]:
    """mtp.0 of the first release: a layer without compressor, with projections, norms and a head of streams."""
    yield from block("mtp.0", 0, False, r)
    for name in ("e_proj", "h_proj"):
        yield from _fp8(f"mtp.0.{name}", r.hidden, r.hidden)
    for name in ("enorm", "hnorm", "norm"):
        yield f"mtp.0.{name}.weight", Shape("BF16", (r.hidden,))
    yield from _hc("mtp.0.hc_head", 4, 1, r)


def drafter_names(r: Release) -> Iterator[str]:
    """mtp.0..2 of the 0731 revision: names only, sizes of the extra tensors are not published."""
    for stage in range(3):
        yield from (name for name, _ in block(f"mtp.{stage}", 0, False, r))
    yield from (f"mtp.0.{leaf}" for leaf in ("main_proj.weight", "main_proj.scale", "main_norm.weight"))
    yield from (f"mtp.2.{leaf}" for leaf in ("norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale"))
    yield from (f"mtp.2.{leaf}.weight" for leaf in ("markov_head.markov_w1", "markov_head.markov_w2"))
    yield "mtp.2.confidence_head.proj.weight"


def block(p: str, ratio: int, hashed: bool, r: Release) -> Iterator[tuple[str, Shape]]:
    for name in ("attn_norm", "ffn_norm"):
        yield f"{p}.{name}.weight", Shape("BF16", (r.hidden,))
    yield from _hc(f"{p}.hc_attn", 24, 3, r)
    yield from _hc(f"{p}.hc_ffn", 24, 3, r)
    yield f"{p}.attn.attn_sink", Shape("F32", (r.heads,))
    yield f"{p}.attn.q_norm.weight", Shape("BF16", (r.q_rank,))
    yield f"{p}.attn.kv_norm.weight", Shape("BF16", (r.head_dim,))
    yield from _fp8(f"{p}.attn.wq_a", r.q_rank, r.hidden)
    yield from _fp8(f"{p}.attn.wq_b", r.heads * r.head_dim, r.q_rank)
    yield from _fp8(f"{p}.attn.wkv", r.head_dim, r.hidden)
    yield from _fp8(f"{p}.attn.wo_a", r.groups * r.o_rank, r.heads * r.head_dim // r.groups)
    yield from _fp8(f"{p}.attn.wo_b", r.hidden, r.groups * r.o_rank)
    if ratio:
        yield from _compressor(f"{p}.attn.compressor", ratio, r.head_dim, r.hidden)
    if ratio == 4:
        yield from _fp8(f"{p}.attn.indexer.wq_b", r.index_heads * 128, r.q_rank)
        yield f"{p}.attn.indexer.weights_proj.weight", Shape("BF16", (r.index_heads, r.hidden))
        yield from _compressor(f"{p}.attn.indexer.compressor", 4, 128, r.hidden)
    yield f"{p}.ffn.gate.weight", Shape("BF16", (r.experts, r.hidden))
    if hashed:
        yield f"{p}.ffn.gate.tid2eid", Shape("I64", (r.vocab, r.top_k))
    else:
        yield f"{p}.ffn.gate.bias", Shape("F32", (r.experts,))
    linear = _fp4 if r.fp4 else _fp8
    for expert in range(r.experts):
        yield from linear(f"{p}.ffn.experts.{expert}.w1", r.width, r.hidden)
        yield from linear(f"{p}.ffn.experts.{expert}.w2", r.hidden, r.width)
        yield from linear(f"{p}.ffn.experts.{expert}.w3", r.width, r.hidden)
    yield from _fp8(f"{p}.ffn.shared_experts.w1", r.width, r.hidden)
    yield from _fp8(f"{p}.ffn.shared_experts.w2", r.hidden, r.width)
    yield from _fp8(f"{p}.ffn.shared_experts.w3", r.width, r.hidden)


def _compressor(p: str, ratio: int, dim: int, hidden: int) -> Iterator[tuple[str, Shape]]:
    wide = dim * 2 if ratio == 4 else dim
    yield f"{p}.ape", Shape("F32", (ratio, wide))
    yield f"{p}.wkv.weight", Shape("BF16", (wide, hidden))
    yield f"{p}.wgate.weight", Shape("BF16", (wide, hidden))
    yield f"{p}.norm.weight", Shape("BF16", (dim,))


def _hc(p: str, rows: int, scales: int, r: Release) -> Iterator[tuple[str, Shape]]:
    yield f"{p}_fn", Shape("F32", (rows, 4 * r.hidden))
    yield f"{p}_base", Shape("F32", (rows,))
    yield f"{p}_scale", Shape("F32", (scales,))


def _fp8(p: str, rows: int, cols: int) -> Iterator[tuple[str, Shape]]:
    yield f"{p}.weight", Shape("F8_E4M3", (rows, cols))
    yield f"{p}.scale", Shape("F8_E8M0", (-(-rows // 128), -(-cols // 128)))


def _fp4(p: str, rows: int, cols: int) -> Iterator[tuple[str, Shape]]:
    yield f"{p}.weight", Shape("I8", (rows, cols // 2))
    yield f"{p}.scale", Shape("F8_E8M0", (rows, cols // 32))
