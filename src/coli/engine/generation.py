"""The loop from a prompt to new tokens, and from new tokens to text."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from coli.engine.tokenizer import TextDecoder
from coli.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Answer", "ForwardPass", "TextStream", "Timing", "TokenStream", "eos_ids_of"]


class ForwardPass(Protocol):
    """What the loop needs of an engine."""

    def forward(self, ids: Sequence[int], position: int, want: int) -> NDArray[np.float32]:
        """Run ``ids`` from ``position`` on; return the logits of the last ``want``: [want, vocabulary]."""


class _Spelling(Protocol):
    def token_bytes(self, token: int) -> bytes: ...


@dataclass(frozen=True)
class Timing:
    """Seconds. ``ttft_s``: from the start to the first token; ``decode_s``: all later ones, consumer not counted."""

    prefill_s: float
    decode_s: float
    ttft_s: float | None


@dataclass(frozen=True)
class Answer:
    """A finished answer. ``finish_reason``: `eos`, `length`, `stop` or `cancelled`; ``timing``: seconds by name."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    timing: dict[str, float]


def eos_ids_of(*configs: dict[str, Any] | None) -> frozenset[int]:
    """Return the end tokens of the first configuration that names any; `eos_token_id` is a number or a list."""
    for config in configs:
        value = (config or {}).get("eos_token_id")
        listed = value if isinstance(value, list) else [value]
        found = frozenset(token for token in listed if isinstance(token, int) and not isinstance(token, bool))
        if found:
            return found
    return frozenset()


class TokenStream:
    """An iterator of new token ids. An end token ends it and is not part of it.

    ``choose``: logits [vocabulary] to a token id. ``context``: most tokens of prompt and answer together. ``cancelled``
    is asked before each forward pass. After the end, ``finish_reason`` is `eos`, `length`, `stop` (ended by `stop()`)
    or `cancelled`. Raises UsageError for an empty prompt or one that leaves no room.
    """

    def __init__(
        self,
        engine: ForwardPass,
        prompt: Sequence[int],
        choose: Callable[[NDArray[np.float32]], int],
        *,
        max_tokens: int,
        context: int | None = None,
        eos_ids: Collection[int] = (),
        cancelled: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not prompt:
            raise UsageError("the prompt", "it must have at least one token", observed="none", code="usage.prompt")
        if max_tokens < 0:
            raise UsageError("--max-tokens", "it must be 0 or more", observed=str(max_tokens), code="usage.max-tokens")
        if context is not None and len(prompt) >= context:
            raise UsageError(
                "the prompt",
                "it must leave room for an answer in the context",
                observed=f"{len(prompt)} tokens",
                expected=f"at most {context - 1}",
                fix="shorten it, or give a larger --ctx",
                code="usage.context",
            )
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._prefill_s = self._decode_s = 0.0
        self._ttft_s: float | None = None
        self._stopped = False
        self._clock = clock
        room = max_tokens if context is None else min(max_tokens, context - len(prompt))
        self._tokens = self._run(engine, list(prompt), choose, room, frozenset(eos_ids), cancelled)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self._tokens)

    def stop(self) -> None:
        """End the stream before its next forward pass."""
        self._stopped = True

    def close(self) -> None:
        """End the stream now; a stream that was still running counts as cancelled."""
        self._tokens.close()
        if self.finish_reason is None:
            self.finish_reason = "cancelled"

    @property
    def timing(self) -> Timing:
        """Return the times so far."""
        return Timing(self._prefill_s, self._decode_s, self._ttft_s)

    def _run(
        self,
        engine: ForwardPass,
        pending: list[int],
        choose: Callable[[NDArray[np.float32]], int],
        room: int,
        eos_ids: frozenset[int],
        cancelled: Callable[[], bool] | None,
    ) -> Generator[int, None, None]:
        position = 0
        try:
            while True:
                if self._stopped:
                    self.finish_reason = "stop"
                elif len(self.token_ids) >= room:
                    self.finish_reason = "length"
                elif cancelled is not None and cancelled():
                    self.finish_reason = "cancelled"
                if self.finish_reason is not None:
                    return
                begin = self._clock()
                logits = engine.forward(pending, position, 1)
                forwarded = self._clock()
                token = choose(logits[-1])
                end = self._clock()
                if position == 0:
                    self._prefill_s, self._ttft_s = forwarded - begin, end - begin
                else:
                    self._decode_s += end - begin
                position += len(pending)
                if token in eos_ids:
                    self.finish_reason = "eos"
                    return
                pending = [token]
                self.token_ids.append(token)
                yield token
        finally:
            if self.finish_reason is None:  # an error, Ctrl-C, or a consumer that went away
                self.finish_reason = "cancelled"


class TextStream:
    """An iterator of text pieces, none empty, that together are the answer up to the first stop string.

    A stop string ends the stream where it is complete first, wherever the borders of tokens lie; neither it nor any
    part of it is emitted. Only text that may still become one is held back. ``text`` is what was emitted;
    ``finish_reason`` as in TokenStream. Raises UsageError for an empty stop string.
    """

    def __init__(self, tokens: TokenStream, spelling: _Spelling, stops: Iterable[str] = ()) -> None:
        self._stops = tuple(stops)
        if not all(self._stops):
            raise UsageError("--stop", "a stop string must not be empty", observed="''", code="usage.stop")
        self._tokens = tokens
        self._pieces = self._run(spelling)
        self._emitted: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        piece = next(self._pieces)
        self._emitted.append(piece)
        return piece

    def close(self) -> None:
        """End both streams."""
        self._pieces.close()
        self._tokens.close()

    @property
    def text(self) -> str:
        """Return all text so far."""
        return "".join(self._emitted)

    @property
    def finish_reason(self) -> str | None:
        """Return why the stream ended, None while it runs."""
        return self._tokens.finish_reason

    @property
    def result(self) -> Answer:
        """Return what there is so far; the whole answer once the stream has ended."""
        timing = {name: seconds for name, seconds in asdict(self._tokens.timing).items() if seconds is not None}
        return Answer(tuple(self._tokens.token_ids), self.text, self.finish_reason, timing)

    def _run(self, spelling: _Spelling) -> Generator[str, None, None]:
        decoder = TextDecoder()
        held = ""
        for token in self._tokens:
            held += decoder.add(spelling.token_bytes(token))
            cut = self._first_stop(held)
            if cut is not None:
                break
            keep = self._may_become_stop(held)
            ready, held = held[: len(held) - keep], held[len(held) - keep :]
            if ready:
                yield ready
        else:
            held += decoder.finish()
            cut = self._first_stop(held)
        if cut is not None:
            held = held[:cut]
            self._tokens.stop()
            next(self._tokens, None)  # lets the token stream note its reason; runs no forward pass
        if held:
            yield held

    def _first_stop(self, text: str) -> int | None:
        """Return where the stop string begins that ends first: that one is the same however the text was cut."""
        ends = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(ends)[1] if ends else None

    def _may_become_stop(self, text: str) -> int:
        """Return how many characters at the end of ``text`` begin a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
