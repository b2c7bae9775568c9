"""The forward pass of DeepSeek V4 over native stages.

The text follows the specification from top to bottom: embedding, then per layer two sites (attention, mixture of
experts), each wrapped in hyper-connections, then the head. Every line that computes is a stage of the ABI; Python
only says which.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coli.backends._host import rope_table
from coli.backends.dispatch import Dispatcher, Format, Weight
from coli.engine.budget import reserve_resident
from coli.engine.checkpoint import Checkpoint
from coli.engine.ledger import Item, Ledger
from coli.engine.store import ExpertStore, HeldExpert
from coli.errors import StageError, UsageError

from .budget import ledger_items, reserve_mirrors, score_rows, weight_bytes
from .config import Geometry
from .layout import expert_name, expert_names, expert_shapes
from .rope import compressed_frequencies, main_frequencies
from .state import LayerState, Scratch, new_states
from .weights import Compressor, Hyper, Indexer, Layer, Product, check_dense, check_experts, load_weights

__all__ = ["Engine"]

Floats = npt.NDArray[np.float32]


class Engine:
    """One sequence of one DeepSeek V4 model; `forward` continues at the next position and nowhere else."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: dict[str, Any],
        stages: Dispatcher,
        ledger: Ledger,
        *,
        context: int,
        prefill_chunk: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Check the checkpoint, reserve every byte in the ledger, then read the resident weights.

        `config`: the parsed text config. `progress` is told (bytes done, bytes in all). With a `vram` tier in the
        ledger products are copied to the device as far as it goes. Raises CheckpointError for tensors that contradict
        the config, BudgetError when the RAM limit cannot hold one layer and one token's experts.
        """
        self.geometry = g = Geometry.from_config(config, str(checkpoint.path / "config.json"))
        # All of it before the first byte is read: a refusal must not come minutes later.
        check_dense(checkpoint, g)
        expert_format = check_experts(checkpoint, g)
        tensor_bytes = {name: info.nbytes for name, info in checkpoint.tensors.items()}
        weights = weight_bytes(g, tensor_bytes)

        def items(chunk: int) -> list[Item]:
            return ledger_items(g, tensor_bytes, context=context, chunk=chunk, weights=weights)

        self.context = context
        self.prefill_chunk, experts = reserve_resident(ledger, items, min(prefill_chunk, context))
        self.position = 0
        self._stages = stages
        self._experts = _Experts(ExpertStore(checkpoint, expert_names(g), ledger, experts), stages, g, expert_format)
        mirrors = reserve_mirrors(g, tensor_bytes, ledger)
        self._weights = load_weights(checkpoint, g, stages, progress)
        for weight in self._weights.handles:
            if weight.name in mirrors and not stages.upload(weight):
                ledger.release(mirrors[weight.name])
        self._states = new_states(g, context, self.prefill_chunk)
        self._scratch = Scratch(g, context, self.prefill_chunk)
        self._score_rows = score_rows(g, context, self.prefill_chunk)
        self._rope = _Rope(g)
        self._attention_scale = 1.0 / math.sqrt(g.head_dim)
        self._index_scale = 1.0 / math.sqrt(g.index_dim * g.index_heads)

    @property
    def vocab(self) -> int:
        """Number of token ids, and width of the logits."""
        return self.geometry.vocab

    @property
    def store(self) -> ExpertStore:
        """The expert store, for its statistics."""
        return self._experts.store

    def reset(self) -> None:
        """Forget the sequence, and what an interrupted pass over it left behind."""
        self.position = 0
        self.store.unpin_all()

    def close(self) -> None:
        """Release native handles; idempotent."""
        self._experts.close()
        for handle in self._weights.handles:
            handle.close()

    def forward(self, ids: npt.NDArray[np.int32], position: int, want: int) -> Floats:
        """Feed tokens at `position` and return the logits of the last `want` of them, [want, vocab].

        Raises UsageError for ids outside the vocabulary, a position that is not the next one, or a full context.
        """
        ids = np.ascontiguousarray(ids, np.int32).reshape(-1)
        self._check(ids, position)
        want = min(want, len(ids))
        logits = np.empty((want, self.geometry.vocab), np.float32)
        first_wanted = len(ids) - want
        for start in range(0, len(ids), self.prefill_chunk):
            chunk = ids[start : start + self.prefill_chunk]
            streams = self._backbone(chunk, position + start)
            self.position = position + start + len(chunk)
            skip = max(0, first_wanted - start)
            if skip < len(chunk):
                at = start + skip - first_wanted
                self._head(streams[skip:], logits[at : at + len(chunk) - skip], position + start + skip)
        return logits

    def _check(self, ids: npt.NDArray[np.int32], position: int) -> None:
        if position != self.position:
            raise UsageError(
                "position",
                "a sequence continues where it stopped; there is no rewinding",
                observed=str(position),
                expected=str(self.position),
                fix="call reset() and feed the whole sequence",
            )
        if position + len(ids) > self.context:
            raise UsageError(
                "context",
                "prompt and answer must fit the context",
                observed=f"{position + len(ids)} tokens",
                expected=f"at most {self.context}",
                fix=f"raise --ctx (this model allows up to {self.geometry.max_positions}), or shorten the text",
                code="usage.context-full",
            )
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < self.geometry.vocab):
            bad = next(int(i) for i in ids if not 0 <= i < self.geometry.vocab)
            raise UsageError(
                f"token id {bad}",
                "ids must lie in the vocabulary",
                expected=f"0 to {self.geometry.vocab - 1}",
                code="usage.token-id",
            )

    # -- layers

    def _backbone(self, ids: npt.NDArray[np.int32], position: int) -> Floats:
        g, stages = self.geometry, self._stages
        buf = self._scratch.rows(len(ids))
        rope = self._rope.at(position, len(ids))
        streams: Floats = buf.streams
        stages.where = f"embedding, position {position}"
        stages.embed(self._weights.embed, ids.reshape(1, -1), g.streams, streams)
        for index, layer in enumerate(self._weights.layers):
            stages.where = f"layer {index}, positions {position} to {position + len(ids) - 1}"
            self._site(layer.hc_attn, layer.attn_norm, buf)
            self._attention(index, layer, self._states[index], buf, position, rope)
            stages.hc_post(buf.y, buf.post, buf.comb, streams)
            self._site(layer.hc_ffn, layer.ffn_norm, buf)
            self._moe(index, layer, ids, buf)
            stages.hc_post(buf.y, buf.post, buf.comb, streams)
        return streams

    def _site(self, hyper: Hyper, norm: Floats, buf: Any) -> None:
        """Collapse the streams to the input of a site: buf.x, with buf.post and buf.comb for the way back."""
        g = self.geometry
        self._stages.hc_pre(
            buf.streams,
            hyper.fn,
            hyper.scale,
            hyper.base,
            g.sinkhorn_iterations,
            g.norm_epsilon,
            g.hc_epsilon,
            buf.x,
            buf.post,
            buf.comb,
        )
        self._stages.rms_norm(buf.x, norm, g.norm_epsilon, buf.x)

    def _product(self, product: Product, x: Floats, y: Floats, groups: int = 1) -> None:
        getattr(self._stages, product.stage)(product.weight, x, groups, y)

    # -- attention

    def _attention(self, index: int, layer: Layer, state: LayerState, buf: Any, position: int, rope: _Angles) -> None:
        """buf.x -> buf.y; appends to the caches of the layer."""
        g, stages = self.geometry, self._stages
        ratio = g.ratios[index]
        cosine, sine = rope.compressed if ratio else rope.main
        tokens = len(buf.x)

        self._product(layer.wq_a, buf.x, buf.q_low)
        stages.rms_norm(buf.q_low, layer.q_norm, g.norm_epsilon, buf.q_low)
        self._product(layer.wq_b, buf.q_low, buf.q)
        per_head = buf.q.reshape(tokens * g.heads, g.head_dim)
        stages.rms_norm(per_head, None, g.norm_epsilon, per_head)
        stages.rope(cosine, sine, g.heads, 0, buf.q)

        self._product(layer.wkv, buf.x, buf.kv)
        stages.rms_norm(buf.kv, layer.kv_norm, g.norm_epsilon, buf.kv)
        stages.rope(cosine, sine, 1, 0, buf.kv)
        stages.kv_append(buf.kv, position, state.ring)

        entries = selected = None
        visible = (position + tokens) // ratio if ratio else 0
        if layer.compressor is not None:
            self._compress(
                layer.compressor,
                buf.x,
                buf.window_kv,
                buf.window_gate,
                ratio,
                position,
                rope,
                state.kv_state,
                state.gate_state,
                state.entries,
            )
            if visible:
                entries = state.entries[:visible]
        if layer.indexer is not None:
            indexer = layer.indexer
            self._compress(
                indexer.compressor,
                buf.x,
                buf.index_kv,
                buf.index_gate,
                ratio,
                position,
                rope,
                state.index_kv_state,
                state.index_gate_state,
                state.index_entries,
            )
            if visible > g.index_top_k:  # else every visible entry is selected, and no choice is the same choice
                selected = self._select(indexer, state, buf, position, ratio, rope, visible)

        stages.attention(
            buf.q,
            g.heads,
            state.ring,
            position,
            g.window,
            entries,
            ratio,
            selected,
            layer.sinks,
            self._attention_scale,
            buf.attended,
        )
        stages.rope(cosine, sine, g.heads, 1, buf.attended)  # V carries the rope of its key: take it back
        self._product(layer.wo_a, buf.attended, buf.o_low, g.o_groups)
        self._product(layer.wo_b, buf.o_low, buf.y)

    def _compress(
        self,
        compressor: Compressor,
        x: Floats,
        kv: Floats,
        gate: Floats,
        ratio: int,
        position: int,
        rope: _Angles,
        kv_state: Floats,
        gate_state: Floats,
        entries: Floats,
    ) -> None:
        g = self.geometry
        wide = compressor.ape.shape[1]
        kv, gate = kv[:, :wide], gate[:, :wide]
        self._product(compressor.wkv, x, kv)
        self._product(compressor.wgate, x, gate)
        cosine, sine = rope.windows(ratio)
        self._stages.compress(
            kv,
            gate,
            compressor.ape,
            position,
            int(ratio == 4),
            compressor.norm,
            g.norm_epsilon,
            cosine,
            sine,
            kv_state,
            gate_state,
            entries,
        )

    def _select(
        self, indexer: Indexer, state: LayerState, buf: Any, position: int, ratio: int, rope: _Angles, visible: int
    ) -> npt.NDArray[np.int32]:
        """Return [tokens, index_top_k] entries for each token; buf.q_low is the indexer's input too."""
        g, stages = self.geometry, self._stages
        cosine, sine = rope.compressed
        self._product(indexer.wq_b, buf.q_low, buf.index_q)
        stages.rope(cosine, sine, g.index_heads, 0, buf.index_q)
        self._product(indexer.weights_proj, buf.x, buf.index_weights)
        keys = state.index_entries[:visible]
        for start in range(0, len(buf.x), self._score_rows):
            rows = slice(start, start + self._score_rows)
            scores = buf.scores[: len(buf.x[rows]), :visible]
            stages.index_scores(
                buf.index_q[rows], buf.index_weights[rows], self._index_scale, keys, position + start, ratio, scores
            )
            stages.top_k(scores, buf.selected[rows])
        return buf.selected  # type: ignore[no-any-return]

    # -- mixture of experts

    def _moe(self, index: int, layer: Layer, ids: npt.NDArray[np.int32], buf: Any) -> None:
        """buf.x -> buf.y."""
        g, stages = self.geometry, self._stages
        self._product(layer.gate, buf.x, buf.router_logits)
        fixed = None if layer.tid2eid is None else layer.tid2eid[ids].astype(np.int32)
        stages.router(buf.router_logits, layer.bias, fixed, g.routed_scale, buf.picks, buf.pick_weights)
        buf.y.fill(0.0)
        self._experts.add_routed(index, buf.x, buf.picks, buf.pick_weights, buf.y)
        self._product(layer.shared_w1, buf.x, buf.gate)
        self._product(layer.shared_w3, buf.x, buf.up)
        stages.swiglu(buf.gate, buf.up, g.swiglu_limit, buf.gate)
        self._product(layer.shared_w2, buf.gate, buf.shared)
        stages.add(buf.shared, buf.y)

    # -- output

    def _head(self, streams: Floats, logits: Floats, position: int) -> None:
        g, stages, weights = self.geometry, self._stages, self._weights
        stages.where = f"head, positions {position} to {position + len(streams) - 1}"
        x = self._scratch.rows(len(streams)).x
        hyper = weights.hc_head
        stages.hc_head(streams, hyper.fn, hyper.scale, hyper.base, g.norm_epsilon, g.hc_epsilon, x)
        stages.rms_norm(x, weights.norm, g.norm_epsilon, x)
        self._product(weights.head, x, logits)
        if not np.isfinite(logits).all():
            row = int(np.argmin(np.isfinite(logits).all(axis=1)))
            raise StageError(
                "head",
                "logits must be finite",
                observed=f"NaN or infinity at position {position + row}",
                fix="the checkpoint may be damaged: compare its checksums with the publisher's",
                code="stage.nonfinite",
            )


class _Angles:
    """Rope tables of one chunk."""

    def __init__(self, tables: _Rope, position: int, tokens: int) -> None:
        self._tables, self._position, self._tokens = tables, position, tokens
        self.main = rope_table(tables.main, position, 1, tokens)
        self.compressed = rope_table(tables.compressed, position, 1, tokens)
        self._windows: dict[int, tuple[Floats, Floats]] = {}

    def windows(self, ratio: int) -> tuple[Floats, Floats]:
        """Return the tables of the windows that close in this chunk; a window stands at its first token."""
        found = self._windows.get(ratio)
        if found is None:
            first = self._position // ratio
            closed = (self._position + self._tokens) // ratio - first
            found = rope_table(self._tables.compressed, first * ratio, ratio, closed)
            self._windows[ratio] = found
        return found


class _Rope:
    def __init__(self, geometry: Geometry) -> None:
        self.main = np.array(main_frequencies(geometry))
        self.compressed = np.array(compressed_frequencies(geometry))

    def at(self, position: int, tokens: int) -> _Angles:
        return _Angles(self, position, tokens)


class _Bound(NamedTuple):
    """Native handles of one slab, and the generation of the bytes that they were bound to."""

    generation: int
    w1: Weight
    w3: Weight
    w2: Weight


class _Experts:
    """Native handles of the experts in the store's slabs."""

    def __init__(self, store: ExpertStore, stages: Dispatcher, geometry: Geometry, format_: Format) -> None:
        self.store = store
        self._stages = stages
        self._format = format_
        self._shapes = expert_shapes(geometry)
        self._limit = geometry.swiglu_limit
        self._bound: dict[int, _Bound] = {}

    def add_routed(self, layer: int, x: Floats, picks: npt.NDArray[np.int32], weights: Floats, y: Floats) -> None:
        """y += the routed experts' part, as many experts at a time as the store holds, in ascending order of id."""
        for held in self.store.groups(layer, np.unique(picks).tolist()):
            ids = np.array([[expert.expert for expert in held]], np.int32)
            bound = [self._bind(layer, expert) for expert in held]
            w1, w3, w2 = [b.w1 for b in bound], [b.w3 for b in bound], [b.w2 for b in bound]
            self._stages.moe(x, picks, weights, ids, w1, w3, w2, self._limit, y)

    def _bind(self, layer: int, held: HeldExpert) -> _Bound:
        bound = self._bound.get(held.slot)
        if bound is not None and bound.generation == held.generation:
            return bound
        if bound is None:
            bound = _Bound(held.generation, *(self._new(layer, held, part) for part in ("w1", "w3", "w2")))
        else:
            for part, weight in (("w1", bound.w1), ("w3", bound.w3), ("w2", bound.w2)):
                weight.name = expert_name(layer, held.expert, part)
                weight.refill(*held.parts[part])
            bound = bound._replace(generation=held.generation)
        self._bound[held.slot] = bound
        return bound

    def _new(self, layer: int, held: HeldExpert, part: str) -> Weight:
        return self._stages.bind(
            expert_name(layer, held.expert, part), self._format, *self._shapes[part], *held.parts[part]
        )

    def close(self) -> None:
        """Release the handles, then the slabs."""
        for bound in self._bound.values():
            for weight in (bound.w1, bound.w3, bound.w2):
                weight.close()
        self._bound.clear()
        self.store.close()
