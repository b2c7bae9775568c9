"""Write a DeepSeek V4 checkpoint with Flash's layer geometry and random weights: `python bench/synthetic.py FOLDER`.

Every tensor has the name, type and shape of the released Flash; only the numbers of layers, experts and vocabulary
entries can be chosen. Scales keep activations of order one. One shard a layer, as released. With the defaults 5.6 GB.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HIDDEN, HEADS, HEAD_DIM, O_GROUPS, O_RANK, Q_RANK, WIDTH, TOP_K = 4096, 64, 512, 8, 1024, 1024, 2048, 6
STREAMS, INDEX_HEADS, INDEX_DIM, HASH_LAYERS, BLOCK, GROUP = 4, 64, 128, 3, 128, 32
FILE_ORDER = ("F32", "I64", "BF16", "F8_E4M3", "F8_E8M0", "I8")
ROWS_AT_ONCE = 4096  # a draw of the whole embedding in float32 would take 2 GB


@dataclass(frozen=True)
class Tensor:
    """A tensor as it lies in the file; the array holds its bits, not its values."""

    name: str
    dtype: str
    bits: NDArray[Any]


@dataclass(frozen=True)
class Slice:
    """How much of Flash: `layers`, `experts` a layer, `vocab` entries."""

    layers: int = 6
    experts: int = 32
    vocab: int = 129280

    @property
    def ratios(self) -> list[int]:
        """Compression by layer, as released: two sliding layers, then CSA and HCA in turn."""
        return [0 if layer < 2 else 4 if layer % 2 == 0 else 128 for layer in range(self.layers)]


class Maker:
    """Random tensors from one seed."""

    def __init__(self, size: Slice, seed: int) -> None:
        self.size = size
        self.rng = np.random.default_rng(seed)

    def bf16(self, name: str, *shape: int, std: float) -> Tensor:
        """Normal values, cut to bfloat16."""
        bits = np.empty(shape, np.uint16)
        for first in range(0, shape[0], ROWS_AT_ONCE):
            part = bits[first : first + ROWS_AT_ONCE]
            part[:] = ((self.rng.standard_normal(part.shape, np.float32) * std).view(np.uint32) >> 16).astype(np.uint16)
        return Tensor(name, "BF16", bits)

    def ones(self, name: str, count: int) -> Tensor:
        """The gain of a norm."""
        return Tensor(f"{name}.weight", "BF16", np.full(count, 0x3F80, np.uint16))

    def f32(self, name: str, *shape: int, std: float = 0.0, mean: float = 0.0) -> Tensor:
        """Normal float32 values."""
        return Tensor(name, "F32", (mean + std * self.rng.standard_normal(shape, np.float32)).astype(np.float32))

    def fp8(self, name: str, rows: int, cols: int) -> Iterator[Tensor]:
        """E4M3 codes with exponent fields 4 to 9 (a spread of about one, no NaN) and a scale a block."""
        codes = self.rng.integers(0, 256, (rows, cols), np.uint8)
        exponent = 4 + (codes >> 3 & 15) % 6
        yield Tensor(f"{name}.weight", "F8_E4M3", (codes & 0x87) | (exponent << 3).astype(np.uint8))
        grid = (-(-rows // BLOCK), -(-cols // BLOCK))
        yield Tensor(f"{name}.scale", "F8_E8M0", np.full(grid, 120 - (cols > 2048), np.uint8))

    def fp4(self, name: str, rows: int, cols: int) -> Iterator[Tensor]:
        """Two E2M1 codes a byte and a scale a group."""
        yield Tensor(f"{name}.weight", "I8", self.rng.integers(0, 256, (rows, cols // 2), np.uint8))
        yield Tensor(f"{name}.scale", "F8_E8M0", self.rng.integers(118, 120, (rows, cols // GROUP), np.uint8))

    def hyper(self, prefix: str, rows: int, scales: int) -> Iterator[Tensor]:
        """Hyper-connection parameters of one place."""
        yield self.f32(f"{prefix}_fn", rows, STREAMS * HIDDEN, std=0.01)
        yield self.f32(f"{prefix}_base", rows, std=0.5)
        yield self.f32(f"{prefix}_scale", scales, mean=1.0)

    def compressor(self, prefix: str, ratio: int, width: int) -> Iterator[Tensor]:
        """A compressor; windows of the ratio 4 overlap and are twice as wide."""
        wide = 2 * width if ratio == 4 else width
        yield self.f32(f"{prefix}.ape", ratio, wide, std=0.1)
        yield self.bf16(f"{prefix}.wkv.weight", wide, HIDDEN, std=0.02)
        yield self.bf16(f"{prefix}.wgate.weight", wide, HIDDEN, std=0.02)
        yield self.ones(f"{prefix}.norm", width)

    def attention(self, prefix: str, ratio: int) -> Iterator[Tensor]:
        """The attention of a layer."""
        yield self.f32(f"{prefix}.attn_sink", HEADS, std=1.0)
        yield self.ones(f"{prefix}.q_norm", Q_RANK)
        yield self.ones(f"{prefix}.kv_norm", HEAD_DIM)
        yield from self.fp8(f"{prefix}.wq_a", Q_RANK, HIDDEN)
        yield from self.fp8(f"{prefix}.wq_b", HEADS * HEAD_DIM, Q_RANK)
        yield from self.fp8(f"{prefix}.wkv", HEAD_DIM, HIDDEN)
        yield from self.fp8(f"{prefix}.wo_a", O_GROUPS * O_RANK, HEADS * HEAD_DIM // O_GROUPS)
        yield from self.fp8(f"{prefix}.wo_b", HIDDEN, O_GROUPS * O_RANK)
        if ratio:
            yield from self.compressor(f"{prefix}.compressor", ratio, HEAD_DIM)
        if ratio == 4:
            yield from self.fp8(f"{prefix}.indexer.wq_b", INDEX_HEADS * INDEX_DIM, Q_RANK)
            yield self.bf16(f"{prefix}.indexer.weights_proj.weight", INDEX_HEADS, HIDDEN, std=0.02)
            yield from self.compressor(f"{prefix}.indexer.compressor", ratio, INDEX_DIM)

    def experts(self, prefix: str, hashed: bool) -> Iterator[Tensor]:
        """Router, routed and shared experts of a layer."""
        vocab, experts = self.size.vocab, self.size.experts
        yield self.bf16(f"{prefix}.gate.weight", experts, HIDDEN, std=0.02)
        if hashed:
            picks = np.argsort(self.rng.random((vocab, experts), np.float32), 1)[:, :TOP_K]
            yield Tensor(f"{prefix}.gate.tid2eid", "I64", picks.astype(np.int64))
        else:
            yield self.f32(f"{prefix}.gate.bias", experts, std=0.05)
        shapes = (("w1", WIDTH, HIDDEN), ("w2", HIDDEN, WIDTH), ("w3", WIDTH, HIDDEN))
        for expert in range(experts):
            for part, rows, cols in shapes:
                yield from self.fp4(f"{prefix}.experts.{expert}.{part}", rows, cols)
        for part, rows, cols in shapes:
            yield from self.fp8(f"{prefix}.shared_experts.{part}", rows, cols)

    def layer(self, index: int) -> Iterator[Tensor]:
        """All tensors of a layer."""
        prefix = f"layers.{index}"
        for site in ("attn", "ffn"):
            yield self.ones(f"{prefix}.{site}_norm", HIDDEN)
            yield from self.hyper(f"{prefix}.hc_{site}", (2 + STREAMS) * STREAMS, 3)
        yield from self.attention(f"{prefix}.attn", self.size.ratios[index])
        yield from self.experts(f"{prefix}.ffn", index < HASH_LAYERS)

    def embedding(self) -> Iterator[Tensor]:
        """The embedding."""
        yield self.bf16("embed.weight", self.size.vocab, HIDDEN, std=1.0)

    def head(self) -> Iterator[Tensor]:
        """What follows the last layer."""
        yield self.ones("norm", HIDDEN)
        yield self.bf16("head.weight", self.size.vocab, HIDDEN, std=0.02)
        yield from self.hyper("hc_head", STREAMS, 1)


def config(size: Slice) -> dict[str, Any]:
    """Return config.json: Flash's values, with the numbers of this slice."""
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "expert_dtype": "fp4",
        "hc_eps": 1e-6,
        "hc_mult": STREAMS,
        "hc_sinkhorn_iters": 20,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "index_head_dim": INDEX_DIM,
        "index_n_heads": INDEX_HEADS,
        "index_topk": 512,
        "max_position_embeddings": 1048576,
        "moe_intermediate_size": WIDTH,
        "n_routed_experts": size.experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": HEADS,
        "num_experts_per_tok": TOP_K,
        "num_hidden_layers": size.layers,
        "num_hash_layers": min(HASH_LAYERS, size.layers),
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": 0,
        "o_groups": O_GROUPS,
        "o_lora_rank": O_RANK,
        "q_lora_rank": Q_RANK,
        "qk_rope_head_dim": 64,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [BLOCK, BLOCK],
        },
        "rms_norm_eps": 1e-6,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "sliding_window": 128,
        "swiglu_limit": 10.0,
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "vocab_size": size.vocab,
        "compress_rope_theta": 160000,
        "compress_ratios": [*size.ratios, 0],
    }


def write_shard(path: Path, tensors: list[Tensor]) -> int:
    """Write one safetensors file; return the bytes of its tensors."""
    header: dict[str, Any] = {}
    end = 0
    ordered = sorted(tensors, key=lambda tensor: (FILE_ORDER.index(tensor.dtype), tensor.name))
    for tensor in ordered:
        span = [end, end + tensor.bits.nbytes]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.bits.shape, "data_offsets": span}
        end = span[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in ordered:
            tensor.bits.tofile(file)
    return end


def write_checkpoint(
    folder: Path, size: Slice, seed: int = 1, tell: Callable[[str, int], None] = lambda name, nbytes: None
) -> int:
    """Write the checkpoint into a folder; return the bytes of all tensors. `tell` hears of every file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(size), indent=1) + "\n", encoding="utf-8")
    maker = Maker(size, seed)
    shards: list[Callable[[], Iterator[Tensor]]] = [maker.embedding]
    shards += [lambda index=index: maker.layer(index) for index in range(size.layers)]  # type: ignore[misc]
    shards.append(maker.head)
    weight_map: dict[str, str] = {}
    total = 0
    for number, make in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = list(make())
        nbytes = write_shard(folder / name, tensors)
        weight_map |= {tensor.name: name for tensor in tensors}
        total += nbytes
        tell(name, nbytes)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index) + "\n", encoding="utf-8")
    return total


def main() -> None:
    """Write a checkpoint as the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=Slice.layers)
    parser.add_argument("--experts", type=int, default=Slice.experts)
    parser.add_argument("--vocab", type=int, default=Slice.vocab)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    size = Slice(given.layers, given.experts, given.vocab)

    def tell(name: str, nbytes: int) -> None:
        print(f"{name} {nbytes / 1e9:.2f} GB", flush=True)

    tell("all", write_checkpoint(given.folder, size, given.seed, tell))


if __name__ == "__main__":
    main()
