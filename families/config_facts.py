"""Facts of a config under one name each, whatever the writer called them. Unknown is None, never a default."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coli.errors import CheckpointError

__all__ = ["QUANT_METHODS", "ConfigFacts", "Quantization", "Rope", "config_facts", "examine_config"]

QUANT_METHODS = (
    "aqlm",
    "auto-round",
    "awq",
    "bitnet",
    "bitsandbytes",
    "compressed-tensors",
    "eetq",
    "exl3",
    "fbgemm_fp8",
    "fp8",
    "gptq",
    "higgs",
    "hqq",
    "modelopt",
    "mxfp4",
    "nvfp4",
    "quanto",
    "quark",
    "spqr",
    "torchao",
    "vptq",
)
"""Methods whose name is understood. What an engine can read is another question, decided by tensor types."""

# Keys that hold the config of the language model inside a multimodal one, and one whose inside holds such a key.
TEXT_KEYS = ("text_config", "llm_config", "language_config", "lm_config", "language_model", "thinker_config")
_CONTAINERS = ("thinker_config",)
_OTHER_PARTS = (
    "vision_config",
    "audio_config",
    "video_config",
    "speech_config",
    "visual",
    "vit_config",
    "vision_tower",
    "talker_config",
    "code2wav_config",
    "token2wav_config",
)
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_routed_experts")
_PER_TOKEN = ("num_experts_per_tok", "moe_topk", "moe_top_k", "num_experts_per_token", "moe_k", "experts_per_token")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_THETA = ("rope_theta", "rotary_emb_base")
# Numbers that sizes or results depend on: there Infinity is as wrong as NaN.
_FINITE = (
    *_LAYERS,
    *_EXPERTS,
    *_PER_TOKEN,
    *_HIDDEN,
    "vocab_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "rms_norm_eps",
    "layer_norm_eps",
    "routed_scaling_factor",
    "partial_rotary_factor",
    "sliding_window",
)
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}


class Rope(NamedTuple):
    """Rotary positions: `kind` is yarn, linear ... or None for plain rope."""

    kind: str | None
    theta: float | None
    factor: float | None
    original_positions: int | None


class Quantization(NamedTuple):
    """How weights are quantized: `scale` is `ue8m0`, `float32` or `e4m3`; `mixed` means several methods.

    `ignored` are the modules that are left as they are.
    """

    method: str
    format: str | None
    block: tuple[int, ...] | None
    scale: str | None
    experts: str | None
    mixed: bool
    ignored: tuple[str, ...] = ()


class ConfigFacts(NamedTuple):
    """One config. `text_source` is the key the language model is nested under, None at the top.

    `other_parts` are the keys of what is not text: vision, audio.
    """

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
    other_parts: tuple[str, ...]


def config_facts(config: Mapping[str, Any], subject: str = "config.json") -> ConfigFacts:
    """Read the facts of a parsed config. Raises CheckpointError: a non-finite field, an unknown quantization method."""
    facts, problems = examine_config(config, subject)
    if problems:
        raise problems[0]
    return facts


def examine_config(
    config: Mapping[str, Any], subject: str = "config.json"
) -> tuple[ConfigFacts, tuple[CheckpointError, ...]]:
    """Read the facts as `config_facts` does; return every problem instead of raising the first."""
    problems = _Problems(subject, {})
    facts = _examine(config, problems)
    return facts, tuple(problems.found.values())


class _Problems(NamedTuple):
    """Collects problems by the field that they are about."""

    subject: str
    found: dict[str, CheckpointError]


def _examine(config: Mapping[str, Any], problems: _Problems) -> ConfigFacts:
    text, source = _language_model(config)
    notes = []
    remote = config.get("auto_map")
    code = tuple(sorted(str(v)[:128] for v in remote.values())) if isinstance(remote, Mapping) else ()
    if code:
        notes.append("auto_map names code of the checkpoint; it is never run")
    dtype, older = (_text(text, key) or _text(config, key) for key in ("dtype", "torch_dtype"))
    if dtype and older and _dtype(dtype) != _dtype(older):
        notes.append(f"dtype {dtype!r} and torch_dtype {older!r} differ; dtype counts")
    for key in _FINITE:
        _number(text, key, problems, source)
    for key in set(_LAYERS + _EXPERTS + _HIDDEN) - set(text) if source else ():
        _number(config, key, problems, None)
    model_type = config.get("model_type")
    classes = config.get("architectures")
    return ConfigFacts(
        model_type=model_type if isinstance(model_type, str) and model_type else None,
        architectures=(classes,)
        if isinstance(classes, str)
        else tuple(c for c in classes if isinstance(c, str))
        if isinstance(classes, list)
        else (),
        text_source=source,
        layers=_integer(text, *_LAYERS),
        experts=_integer(text, *_EXPERTS),
        experts_per_token=_integer(text, *_PER_TOKEN),
        hidden=_integer(text, *_HIDDEN),
        vocab=_integer(text, "vocab_size"),
        context=_integer(text, "max_position_embeddings"),
        dtype=_dtype(dtype or older),
        tied=_flag(text, "tie_word_embeddings", _flag(config, "tie_word_embeddings", None)),
        rope=_rope(text, problems, source),
        quantization=_quantization(config, text, problems),
        remote_code=code,
        notes=tuple(notes),
        other_parts=tuple(key for key in _OTHER_PARTS if isinstance(config.get(key), Mapping) and config[key]),
    )


def _language_model(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Return the part of a config that describes the language model, and the dotted key it is under."""
    text, keys = config, []
    for _ in range(3):
        inner = next((k for k in TEXT_KEYS if isinstance(text.get(k), Mapping)), None)
        if inner is None or (
            inner in _CONTAINERS and not any(isinstance(text[inner].get(k), Mapping) for k in TEXT_KEYS)
        ):
            break
        if (
            _integer(text[inner], *_LAYERS) is None
            and _integer(text, *_LAYERS) is not None
            and inner not in _CONTAINERS
        ):
            break  # an empty shell: the sizes are out here
        text = text[inner]
        keys.append(inner)
    return text, ".".join(keys) or None


def _dtype(name: str | None) -> str | None:
    if name is None:
        return None
    plain = name.removeprefix("torch.")
    return _DTYPES.get(plain, plain)


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


def _number(table: Mapping[str, Any], key: str, problems: _Problems, source: str | None) -> float | None:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        where = f"{source}.{key}" if source else key
        problems.found[where] = CheckpointError(
            problems.subject,
            f"{where} must be finite",
            observed=str(value)[:40],
            fix="take the config.json of the original checkpoint",
            code="checkpoint.non-finite",
            data={"field": where},
        )
        return None
    return number


def _first_number(
    table: Mapping[str, Any], keys: tuple[str, ...], problems: _Problems, source: str | None
) -> float | None:
    return next((n for key in keys if (n := _number(table, key, problems, source)) is not None), None)


def _rope(text: Mapping[str, Any], problems: _Problems, source: str | None) -> Rope:
    # Two generations of names: rope_theta beside rope_scaling (or null), and rope_parameters with theta inside, which
    # may have one table for each kind of layer: that of full attention then.
    tables = [(key, text[key]) for key in ("rope_parameters", "rope_scaling") if isinstance(text.get(key), Mapping)]
    empty: tuple[str, Mapping[str, Any]] = ("rope_scaling", {})
    inside, scaling = next((table for table in tables if table[1]), empty)
    for part in ("full_attention", "main"):
        if isinstance(scaling.get(part), Mapping):
            inside, scaling = f"{inside}.{part}", scaling[part]
    inside = f"{source}.{inside}" if source else inside
    kind = _text(scaling, "rope_type", "type")
    theta = _first_number(scaling, _THETA, problems, inside)
    return Rope(
        kind={"default": None, "su": "longrope"}.get(kind, kind) if kind else None,
        theta=_first_number(text, _THETA, problems, source) if theta is None else theta,
        factor=_number(scaling, "factor", problems, inside),
        original_positions=_integer(scaling, "original_max_position_embeddings"),
    )


def _quantization(config: Mapping[str, Any], text: Mapping[str, Any], problems: _Problems) -> Quantization | None:
    places = [part.get(key) for part in (config, text) for key in ("quantization_config", "compression_config")]
    table = next((t for t in places if t is not None), None)
    if table is None:
        return None
    method = _method(table) if isinstance(table, Mapping) else None
    if not isinstance(table, Mapping) or method is None:
        _refuse(problems, "quantization_config must name its quant_method", str(table)[:80], "quantization")
        return None
    if method not in QUANT_METHODS:
        _refuse(problems, "the quantization method must be known", method[:80], "unknown-quant-method")
        return None
    block = table.get("weight_block_size")
    form = _text(table, "format", "fmt")
    scale: str | None = None
    mixed = table.get("quant_algo") == "MIXED_PRECISION" or form == "mixed-precision"
    if method == "fp8":
        said = _text(table, "scale_fmt") or "float32"
        scale = _SCALE_WORDS.get(said.lower())
        if scale is None:
            rule = "the format of the scales must be known"
            _refuse(problems, rule, said[:80], "unknown-scale-format", sorted(_SCALE_WORDS))
    elif method == "compressed-tensors":
        groups = table.get("config_groups")
        listed = [g for g in groups.values() if _has_weights(g)] if isinstance(groups, Mapping) else []
        mixed = mixed or len({_kind(group, form) for group in listed}) > 1
        block = next((b for g in listed if (b := _block(g["weights"].get("block_structure"))) is not None), block)
        scale = _SCALES.get(form or "")
    elif method in ("mxfp4", "nvfp4"):
        scale = _SCALES[f"{method}-pack-quantized"]
    layers = table.get("quantized_layers")
    if isinstance(layers, Mapping):
        mixed = mixed or len({str(v.get("quant_algo")) for v in layers.values() if isinstance(v, Mapping)}) > 1
    return Quantization(
        method=method,
        format=form,
        block=_block(block),
        scale=scale,
        experts=_text(text, "expert_dtype") or _text(config, "expert_dtype") or _text(table, "expert_dtype"),
        mixed=mixed,
        ignored=_names(table, "ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules", "exclude"),
    )


# By definition of the formats: OCP MX has one E8M0 scale for 32 values, NVFP4 one E4M3 scale for 16.
_SCALES = {
    "float-quantized": "float32",
    "naive-quantized": "float32",
    "mxfp4-pack-quantized": "ue8m0",
    "nvfp4-pack-quantized": "e4m3",
}
_SCALE_WORDS = {"ue8m0": "ue8m0", "e8m0": "ue8m0", "float32": "float32", "fp32": "float32", "float": "float32"}
_SPELLINGS = {"compressed_tensors": "compressed-tensors", "auto_round": "auto-round", "modelopt_fp4": "modelopt"}


def _method(table: Mapping[str, Any]) -> str | None:
    method = _text(table, "quant_method")
    if method is None:
        producer = table.get("producer")  # ModelOpt before it wrote quant_method
        return "modelopt" if isinstance(producer, Mapping) and producer.get("name") == "modelopt" else None
    plain = method.strip().lower()
    plain = _SPELLINGS.get(plain, plain)
    return plain if plain in QUANT_METHODS else method


def _kind(group: Mapping[str, Any], default: str | None) -> tuple[str, str]:
    weights = group["weights"]
    return (f"{weights.get('type')}{weights.get('num_bits')}", str(group.get("format") or default))


def _block(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, str):
        value = [int(v) if v.isdecimal() and len(v) < 10 else None for v in value.lower().split("x")]
    if isinstance(value, list | tuple) and value and all(isinstance(b, int) and not isinstance(b, bool) for b in value):
        return tuple(value)
    return None


def _names(table: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    listed: list[Any] = next((table[key] for key in keys if isinstance(table.get(key), list)), [])
    return tuple(str(name)[:256] for name in listed)


def _has_weights(group: Any) -> bool:
    return isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping)


def _refuse(problems: _Problems, rule: str, observed: str, code: str, expected: Sequence[str] = QUANT_METHODS) -> None:
    problems.found["quantization_config"] = CheckpointError(
        problems.subject,
        rule,
        observed=observed,
        expected=f"one of {', '.join(expected)}",
        fix="use the publisher's own release of the model: a weight read by a wrong rule is wrong without a sign",
        code=f"checkpoint.{code}",
        data={"name": observed},
    )
