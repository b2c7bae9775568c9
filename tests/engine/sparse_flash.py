"""Header-only checkpoints of the real Flash geometry: sparse files of real names, shapes and sizes that use no disk.

Names and shapes as published for DeepSeek-V4-Flash (69187 tensors, 46 files) and, for the draft part of Flash-0731,
names in the manner of that release (`mtp.0` to `mtp.2`, 48 files).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

__all__ = ["FLASH_BYTES", "FLASH_TENSORS", "flash_config", "flash_shards", "flash_sizes", "write_sparse_flash"]

FLASH_TENSORS = 69187
FLASH_BYTES = 159_609_485_896

Tensor = tuple[str, str, tuple[int, ...]]

_BITS = {"F32": 32, "I64": 64, "BF16": 16, "F8_E4M3": 8, "F8_E8M0": 8, "I8": 8}
_ORDER = ["I64", "F32", "BF16", "F8_E8M0", "F8_E4M3", "I8"]
_D, _H, _HEAD, _Q, _G, _R, _INTER, _EXPERTS, _VOCAB, _TOP = 4096, 64, 512, 1024, 8, 1024, 2048, 256, 129280, 6
_STREAMS, _INDEX_HEADS, _INDEX_HEAD = 4, 64, 128


def _fp8(name: str, rows: int, cols: int) -> Iterator[Tensor]:
    yield f"{name}.weight", "F8_E4M3", (rows, cols)
    yield f"{name}.scale", "F8_E8M0", (-(-rows // 128), -(-cols // 128))


def _fp4(name: str, rows: int, cols: int) -> Iterator[Tensor]:
    yield f"{name}.weight", "I8", (rows, cols // 2)
    yield f"{name}.scale", "F8_E8M0", (rows, cols // 32)


def _compressor(prefix: str, ratio: int, width: int) -> Iterator[Tensor]:
    both = 2 * width if ratio == 4 else width
    yield f"{prefix}.ape", "F32", (ratio, both)
    yield f"{prefix}.wkv.weight", "BF16", (both, _D)
    yield f"{prefix}.wgate.weight", "BF16", (both, _D)
    yield f"{prefix}.norm.weight", "BF16", (width,)


def _layer(prefix: str, ratio: int, hashed: bool) -> Iterator[Tensor]:
    for site in ("attn", "ffn"):
        yield f"{prefix}.{site}_norm.weight", "BF16", (_D,)
        mixing = (2 + _STREAMS) * _STREAMS
        yield f"{prefix}.hc_{site}_fn", "F32", (mixing, _STREAMS * _D)
        yield f"{prefix}.hc_{site}_base", "F32", (mixing,)
        yield f"{prefix}.hc_{site}_scale", "F32", (3,)
    attention = f"{prefix}.attn"
    yield f"{attention}.attn_sink", "F32", (_H,)
    yield f"{attention}.q_norm.weight", "BF16", (_Q,)
    yield f"{attention}.kv_norm.weight", "BF16", (_HEAD,)
    yield from _fp8(f"{attention}.wq_a", _Q, _D)
    yield from _fp8(f"{attention}.wq_b", _H * _HEAD, _Q)
    yield from _fp8(f"{attention}.wkv", _HEAD, _D)
    yield from _fp8(f"{attention}.wo_a", _G * _R, _H * _HEAD // _G)
    yield from _fp8(f"{attention}.wo_b", _D, _G * _R)
    if ratio:
        yield from _compressor(f"{attention}.compressor", ratio, _HEAD)
    if ratio == 4:
        yield from _fp8(f"{attention}.indexer.wq_b", _INDEX_HEADS * _INDEX_HEAD, _Q)
        yield f"{attention}.indexer.weights_proj.weight", "BF16", (_INDEX_HEADS, _D)
        yield from _compressor(f"{attention}.indexer.compressor", 4, _INDEX_HEAD)
    yield f"{prefix}.ffn.gate.weight", "BF16", (_EXPERTS, _D)
    if hashed:
        yield f"{prefix}.ffn.gate.tid2eid", "I64", (_VOCAB, _TOP)
    else:
        yield f"{prefix}.ffn.gate.bias", "F32", (_EXPERTS,)
    for expert in range(_EXPERTS):
        for part, rows, cols in (("w1", _INTER, _D), ("w2", _D, _INTER), ("w3", _INTER, _D)):
            yield from _fp4(f"{prefix}.ffn.experts.{expert}.{part}", rows, cols)
    for part, rows, cols in (("w1", _INTER, _D), ("w2", _D, _INTER), ("w3", _INTER, _D)):
        yield from _fp8(f"{prefix}.ffn.shared_experts.{part}", rows, cols)


def _head_mixing(prefix: str) -> Iterator[Tensor]:
    yield f"{prefix}hc_head_fn", "F32", (_STREAMS, _STREAMS * _D)
    yield f"{prefix}hc_head_base", "F32", (_STREAMS,)
    yield f"{prefix}hc_head_scale", "F32", (1,)


def _draft(block: int) -> Iterator[Tensor]:
    prefix = f"mtp.{block}"
    yield from _layer(prefix, 0, False)
    yield from _fp8(f"{prefix}.e_proj", _D, _D)
    yield from _fp8(f"{prefix}.h_proj", _D, _D)
    for name in ("enorm", "hnorm", "norm"):
        yield f"{prefix}.{name}.weight", "BF16", (_D,)
    yield from _head_mixing(f"{prefix}.")


def _drafter(block: int) -> Iterator[Tensor]:
    prefix = f"mtp.{block}"
    yield from _layer(prefix, 0, False)
    yield from _fp8(f"{prefix}.main_proj", _D, 3 * _D)
    yield f"{prefix}.main_norm.weight", "BF16", (_D,)
    yield f"{prefix}.norm.weight", "BF16", (_D,)
    yield from _head_mixing(f"{prefix}.")
    if block == 2:
        yield f"{prefix}.markov_head.markov_w1.weight", "BF16", (_VOCAB, 256)
        yield f"{prefix}.markov_head.markov_w2.weight", "BF16", (_VOCAB, 256)
        yield f"{prefix}.confidence_head.proj.weight", "BF16", (1, _D)


def flash_shards(release: str = "flash") -> list[list[Tensor]]:
    """Return the tensors of each file. ``release``: `flash` or `flash-0731`."""
    ratios = [0, 0] + [4 if layer % 2 == 0 else 128 for layer in range(2, 43)]
    shards: list[list[Tensor]] = [[("embed.weight", "BF16", (_VOCAB, _D))]]
    shards += [list(_layer(f"layers.{layer}", ratios[layer], layer < 3)) for layer in range(43)]
    last: list[Tensor] = [("norm.weight", "BF16", (_D,)), ("head.weight", "BF16", (_VOCAB, _D)), *_head_mixing("")]
    shards.append(last)
    shards += [list(_draft(0))] if release == "flash" else [list(_drafter(block)) for block in range(3)]
    return shards


def write_sparse_flash(folder: Path, release: str = "flash") -> int:
    """Write the files, their index and config.json into ``folder``; return the bytes of all tensors."""
    shards = flash_shards(release)
    total = 0
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header: dict[str, object] = {}
        end = 0
        for tensor, dtype, shape in sorted(tensors, key=lambda t: (_ORDER.index(t[1]), t[0])):
            nbytes = _BITS[dtype] // 8
            for size in shape:
                nbytes *= size
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
            weight_map[tensor] = name
            end += nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)
        total += end
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(flash_config(release)))
    return total


def flash_sizes(release: str = "flash") -> dict[str, int]:
    """Return the bytes of each tensor by name."""
    sizes = {}
    for tensors in flash_shards(release):
        for name, dtype, shape in tensors:
            sizes[name] = _BITS[dtype] // 8 * math.prod(shape)
    return sizes


def flash_config(release: str = "flash") -> dict[str, object]:
    """Return config.json."""
    ratios = [0, 0] + [4 if layer % 2 == 0 else 128 for layer in range(2, 43)] + [0] * (1 if release == "flash" else 3)
    later = {} if release == "flash" else {"dspark_block_size": 5}
    return later | {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "vocab_size": _VOCAB,
        "hidden_size": _D,
        "num_hidden_layers": 43,
        "num_attention_heads": _H,
        "num_key_value_heads": 1,
        "head_dim": _HEAD,
        "qk_rope_head_dim": 64,
        "q_lora_rank": _Q,
        "o_groups": _G,
        "o_lora_rank": _R,
        "sliding_window": 128,
        "compress_ratios": ratios,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "max_position_embeddings": 1048576,
        "index_n_heads": _INDEX_HEADS,
        "index_head_dim": _INDEX_HEAD,
        "index_topk": 512,
        "n_routed_experts": _EXPERTS,
        "num_experts_per_tok": _TOP,
        "n_shared_experts": 1,
        "moe_intermediate_size": _INTER,
        "num_hash_layers": 3,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "hc_mult": _STREAMS,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-6,
        "num_nextn_predict_layers": 1 if release == "flash" else 3,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "expert_dtype": "fp4",
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
            "activation_scheme": "dynamic",
        },
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
