"""Facts of a config under one name each, whatever the writer called them. Unknown is None, never a default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from coli.errors import CheckpointError

__all__ = ["QUANT_METHODS", "ConfigFacts", "Quantization", "Rope", "config_facts"]

QUANT_METHODS = (
    "awq",
    "bitsandbytes",
    "compressed-tensors",
    "exl3",
    "fp8",
    "gptq",
    "modelopt",
    "mxfp4",
    "nvfp4",
    "quark",
    "torchao",
)
"""Methods whose name is understood. What an engine can read is another question, decided by tensor types."""

# Keys that hold the config of the language model inside a multimodal one.
TEXT_KEYS = ("text_config", "llm_config", "language_config")


class Rope(NamedTuple):
    """Rotary positions: `kind` is yarn, linear ... or None for plain rope."""

    kind: str | None
    theta: float | None
    factor: float | None
    original_positions: int | None


class Quantization(NamedTuple):
    """How weights are quantized: `scale` is `ue8m0` or `float32`, `mixed` means several methods."""

    method: str
    format: str | None
    block: tuple[int, ...] | None
    scale: str | None
    experts: str | None
    mixed: bool


class ConfigFacts(NamedTuple):
    """One config. `text_source` is the key the language model is nested under, None at the top."""

    model_type: str | None
    architectures: tuple[str, ...]
    text_source: str | None
    layers: int | None
    experts: int | None
    experts_per_token: int | None
    hidden: int | None
    vocab: int | None
    context: int | None
    dtype: str | None
    tied: bool | None
    rope: Rope
    quantization: Quantization | None
    remote_code: tuple[str, ...]
    notes: tuple[str, ...]


def config_facts(config: Mapping[str, Any], subject: str = "config.json") -> ConfigFacts:
    """Read the facts of a parsed config. Raises CheckpointError: a non-finite field, an unknown quantization method."""
    source = next((k for k in TEXT_KEYS if isinstance(config.get(k), Mapping)), None)
    text: Mapping[str, Any] = config[source] if source else config
    notes = []
    remote = config.get("auto_map")
    code = tuple(sorted(str(v)[:128] for v in remote.values())) if isinstance(remote, Mapping) else ()
    if code:
        notes.append("auto_map names code of the checkpoint; it is never run")
    if "torch_dtype" in text and "dtype" in text and text["torch_dtype"] != text["dtype"]:
        notes.append(f"dtype {text['dtype']!r} and torch_dtype {text['torch_dtype']!r} differ; dtype counts")
    model_type = config.get("model_type")
    classes = config.get("architectures")
    return ConfigFacts(
        model_type=model_type if isinstance(model_type, str) and model_type else None,
        architectures=tuple(c for c in classes if isinstance(c, str)) if isinstance(classes, list) else (),
        text_source=source,
        layers=_integer(text, "num_hidden_layers", "n_layer", "num_layers"),
        experts=_integer(text, "n_routed_experts", "num_experts", "num_local_experts"),
        experts_per_token=_integer(text, "num_experts_per_tok", "moe_topk"),
        hidden=_integer(text, "hidden_size", "n_embd"),
        vocab=_integer(text, "vocab_size"),
        context=_integer(text, "max_position_embeddings"),
        dtype=_text(text, "dtype", "torch_dtype") or _text(config, "dtype", "torch_dtype"),
        tied=_flag(text, "tie_word_embeddings", _flag(config, "tie_word_embeddings", None)),
        rope=_rope(text, subject),
        quantization=_quantization(config, text, subject),
        remote_code=code,
        notes=tuple(notes),
    )


def _integer(table: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = table.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _text(table: Mapping[str, Any], *keys: str) -> str | None:
    return next((table[k] for k in keys if isinstance(table.get(k), str)), None)


def _flag(table: Mapping[str, Any], key: str, default: bool | None) -> bool | None:
    return table[key] if isinstance(table.get(key), bool) else default


def _number(table: Mapping[str, Any], key: str, subject: str) -> float | None:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise CheckpointError(
            subject,
            f"{key} must be finite",
            observed=str(value)[:40],
            fix="take the config.json of the original checkpoint",
            code="checkpoint.non-finite",
        )
    return number


def _rope(text: Mapping[str, Any], subject: str) -> Rope:
    # Two generations of names: rope_theta beside rope_scaling (or null), and rope_parameters with theta inside.
    old, new = text.get("rope_scaling"), text.get("rope_parameters")
    scaling: Mapping[str, Any] = new if isinstance(new, Mapping) else old if isinstance(old, Mapping) else {}
    kind = _text(scaling, "rope_type", "type")
    theta = _number(scaling, "rope_theta", subject)
    return Rope(
        kind=None if kind == "default" else kind,
        theta=_number(text, "rope_theta", subject) if theta is None else theta,
        factor=_number(scaling, "factor", subject),
        original_positions=_integer(scaling, "original_max_position_embeddings"),
    )


def _quantization(config: Mapping[str, Any], text: Mapping[str, Any], subject: str) -> Quantization | None:
    table = config.get("quantization_config", text.get("quantization_config"))
    if table is None:
        return None
    if not isinstance(table, Mapping) or not isinstance(table.get("quant_method"), str):
        raise _refused(subject, "quantization_config must name its quant_method", str(table)[:80], "quantization")
    method = table["quant_method"]
    if method not in QUANT_METHODS:
        raise _refused(subject, "the quantization method must be known", method[:80], "unknown-quant-method")
    block = table.get("weight_block_size")
    scale: str | None = None
    if method == "fp8":
        scale = _text(table, "scale_fmt") or "float32"
    elif method == "compressed-tensors":
        groups = table.get("config_groups")
        weights = [g["weights"] for g in groups.values() if _has_weights(g)] if isinstance(groups, Mapping) else []
        block = next((w["block_structure"] for w in weights if isinstance(w.get("block_structure"), list)), block)
        if table.get("format") in ("float-quantized", "naive-quantized"):
            scale = "float32"
    return Quantization(
        method=method,
        format=_text(table, "format", "fmt"),
        block=tuple(block) if isinstance(block, list) and all(isinstance(b, int) for b in block) else None,
        scale=scale,
        experts=_text(text, "expert_dtype") or _text(table, "expert_dtype"),
        mixed=table.get("quant_algo") == "MIXED_PRECISION",
    )


def _has_weights(group: Any) -> bool:
    return isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping)


def _refused(subject: str, rule: str, observed: str, code: str) -> CheckpointError:
    return CheckpointError(
        subject, rule, observed=observed, expected=f"one of {', '.join(QUANT_METHODS)}", code=f"checkpoint.{code}"
    )
