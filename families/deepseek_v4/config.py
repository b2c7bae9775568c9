"""The geometry of a DeepSeek V4 checkpoint: what `config.json` says, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coli.errors import CheckpointError

__all__ = ["Geometry", "Yarn"]


# Below it the factors of YaRN make angles that no float holds; real ones are 1 and more.
_LEAST_RATIO = 1e-6


@dataclass(frozen=True)
class Yarn:
    """Frequency interpolation of the compressed layers (SPEC: no magnitude factor)."""

    factor: float
    original_positions: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True)
class Geometry:
    """Sizes and constants of the forward pass. `ratios` has one entry a backbone layer: 0 sliding, 4 CSA, other HCA."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    o_groups: int
    o_rank: int
    window: int
    ratios: tuple[int, ...]
    rope_theta: float
    compress_rope_theta: float
    yarn: Yarn | None
    max_positions: int
    index_heads: int
    index_dim: int
    index_top_k: int
    experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int
    hash_layers: int
    routed_scale: float
    swiglu_limit: float
    streams: int
    sinkhorn_iterations: int
    hc_epsilon: float
    norm_epsilon: float
    draft_layers: int
    bos: int | None
    eos: tuple[int, ...]

    def is_hashed(self, layer: int) -> bool:
        """Tell whether a layer routes by token id."""
        return layer < self.hash_layers

    def overlaps(self, layer: int) -> bool:
        """Tell whether a layer's compressor uses overlapping windows (CSA)."""
        return self.ratios[layer] == 4

    @classmethod
    def from_config(cls, config: dict[str, Any], origin: str = "config.json") -> Geometry:
        """Read and check a parsed `config.json`; raise one CheckpointError with every problem."""
        reader = _Reader(config)
        integer, number = reader.integer, reader.number
        heads, head_dim = integer("num_attention_heads"), integer("head_dim")
        experts, width = integer("n_routed_experts"), integer("moe_intermediate_size")
        geometry = cls(
            vocab=integer("vocab_size"),
            hidden=integer("hidden_size"),
            layers=integer("num_hidden_layers"),
            heads=heads,
            head_dim=head_dim,
            rope_dim=integer("qk_rope_head_dim"),
            q_rank=integer("q_lora_rank"),
            o_groups=integer("o_groups"),
            o_rank=integer("o_lora_rank"),
            window=integer("sliding_window"),
            ratios=reader.ratios(),
            rope_theta=number("rope_theta", 10000.0, above=1.0),
            compress_rope_theta=number("compress_rope_theta", 160000.0, above=1.0),
            yarn=reader.yarn(),
            max_positions=integer("max_position_embeddings"),
            index_heads=integer("index_n_heads"),
            index_dim=integer("index_head_dim"),
            index_top_k=integer("index_topk"),
            experts=experts,
            experts_per_token=integer("num_experts_per_tok"),
            expert_width=width,
            shared_width=width * integer("n_shared_experts", 1),
            hash_layers=integer("num_hash_layers", 0, least=0),
            routed_scale=number("routed_scaling_factor", 1.0),
            swiglu_limit=number("swiglu_limit", 0.0, positive=False),
            streams=integer("hc_mult"),
            sinkhorn_iterations=integer("hc_sinkhorn_iters"),
            hc_epsilon=number("hc_eps", 1e-6),
            norm_epsilon=number("rms_norm_eps", 1e-6),
            draft_layers=integer("num_nextn_predict_layers", 0, least=0),
            bos=integer("bos_token_id", 0, least=0) if config.get("bos_token_id") is not None else None,
            eos=reader.tokens("eos_token_id"),
        )
        reader.must("num_key_value_heads", config.get("num_key_value_heads", 1) == 1, "1")
        reader.must("n_shared_experts", config.get("n_shared_experts", 1) == 1, "1")
        reader.must("scoring_func", config.get("scoring_func", "sqrtsoftplus") == "sqrtsoftplus", "sqrtsoftplus")
        reader.must("hidden_act", config.get("hidden_act", "silu") == "silu", "silu")
        reader.must("attention_bias", not config.get("attention_bias", False), "false")
        reader.must("tie_word_embeddings", not config.get("tie_word_embeddings", False), "false")
        reader.must(
            "qk_rope_head_dim",
            geometry.rope_dim <= head_dim and geometry.rope_dim % 2 == 0,
            f"even, at most head_dim {head_dim}",
        )
        reader.must(
            "index_head_dim",
            geometry.index_dim >= geometry.rope_dim or 4 not in geometry.ratios,
            f"at least qk_rope_head_dim {geometry.rope_dim}",
        )
        reader.must("o_groups", heads % geometry.o_groups == 0, f"a divisor of num_attention_heads {heads}")
        reader.must("num_experts_per_tok", geometry.experts_per_token <= experts, f"at most n_routed_experts {experts}")
        reader.must(
            "num_hash_layers", geometry.hash_layers <= geometry.layers, f"at most num_hidden_layers {geometry.layers}"
        )
        reader.must("hc_mult", geometry.streams <= 16, "at most 16")
        reader.finish(origin)
        return geometry


class _Reader:
    """Collects every problem, so that a broken config is told in one message."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._problems: list[str] = []

    def _value(self, key: str, default: Any) -> Any:
        value = self._config.get(key, default)
        if value is None:
            self._problems.append(f"{key}: missing")
        return value

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._value(key, default)
        if value is None:
            return least or 1
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            self._problems.append(f"{key}: {value!r}, expected an integer of at least {least}")
            return least or 1
        return value

    def number(self, key: str, default: float, *, positive: bool = True, above: float = 0.0) -> float:
        value = self._value(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not abs(value) < 1e30
            or (positive and value <= above)
        ):
            wanted = f"number above {above:g}" if above else "positive number" if positive else "number"
            self._problems.append(f"{key}: {value!r}, expected a {wanted}")
            return default or 1.0
        return float(value)

    def tokens(self, key: str) -> tuple[int, ...]:
        value = self._config.get(key)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in items):
            self._problems.append(f"{key}: {value!r}, expected a token id or a list of them")
            return ()
        return tuple(items)

    def ratios(self) -> tuple[int, ...]:
        layers = self._config.get("num_hidden_layers")
        value = self._config.get("compress_ratios")
        if not isinstance(layers, int) or isinstance(layers, bool):
            return ()
        if not isinstance(value, list) or any(isinstance(r, bool) or not isinstance(r, int) or r < 0 for r in value):
            self._problems.append("compress_ratios: expected a list of integers, one a layer")
            return (0,) * max(0, min(layers, 4096))
        if len(value) < layers:  # longer is legal: the draft layers follow
            self._problems.append(
                f"compress_ratios: {len(value)} entries, expected at least num_hidden_layers {layers}"
            )
            return (0,) * max(0, min(layers, 4096))
        if any(r == 1 for r in value[:layers]):
            self._problems.append("compress_ratios: 1, expected 0 (no compression) or at least 2")
        return tuple(value[:layers])

    def yarn(self) -> Yarn | None:
        value = self._config.get("rope_scaling")
        if value is None:
            return None
        kind = value.get("type", value.get("rope_type")) if isinstance(value, dict) else value
        if kind != "yarn":
            self._problems.append(f"rope_scaling: {kind!r}, expected type yarn")
            return None
        inner = _Reader(value)
        yarn = Yarn(
            factor=inner.number("factor", 1.0, above=_LEAST_RATIO),
            original_positions=inner.integer("original_max_position_embeddings"),
            beta_fast=inner.number("beta_fast", 32.0, above=_LEAST_RATIO),
            beta_slow=inner.number("beta_slow", 1.0, above=_LEAST_RATIO),
        )
        self._problems.extend(f"rope_scaling.{p}" for p in inner._problems)
        return yarn

    def must(self, key: str, holds: bool, expected: str) -> None:
        if not holds and not any(p.startswith(key + ":") for p in self._problems):
            self._problems.append(f"{key}: {self._config.get(key)!r}, expected {expected}")

    def finish(self, origin: str) -> None:
        if self._problems:
            raise CheckpointError(
                origin,
                "a DeepSeek V4 config must be complete and consistent",
                observed="; ".join(self._problems),
                fix="take config.json from the checkpoint's publisher",
                code="checkpoint.config",
            )
