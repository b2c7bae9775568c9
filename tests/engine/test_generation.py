from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coli.engine.generation import TextStream, TokenStream, eos_ids_of
from coli.errors import StageError, UsageError

CASES = Path(__file__).parent / "cases"
EOS = 99


class Scripted:
    """An engine that wants to say a list of tokens, and a tokenizer that spells token n as piece n."""

    def __init__(self, pieces: Sequence[bytes], end: int = EOS) -> None:
        self.pieces = pieces
        self.script = [*range(len(pieces)), end]
        self.calls: list[tuple[list[int], int, int]] = []

    def forward(self, ids: Sequence[int], position: int, want: int) -> NDArray[np.float32]:
        logits = np.zeros((want, 100), np.float32)
        logits[-1, self.script[len(self.calls)]] = 1
        self.calls.append((list(ids), position, want))
        return logits

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]


def greedy(logits: NDArray[np.float32]) -> int:
    return int(np.argmax(logits))


def tokens_of(engine: Scripted, prompt: Sequence[int] = (5, 6, 7), **options: Any) -> TokenStream:
    return TokenStream(engine, prompt, greedy, **{"max_tokens": 100, "eos_ids": {EOS}, **options})


def text_of(
    pieces: Sequence[bytes], stops: Sequence[str] = (), **options: Any
) -> tuple[list[str], TextStream, Scripted]:
    engine = Scripted(pieces)
    stream = TextStream(tokens_of(engine, **options), engine, stops)
    return list(stream), stream, engine


def test_the_prompt_goes_in_once_and_then_each_token() -> None:
    engine = Scripted([b"a", b"b"])
    stream = tokens_of(engine)
    assert list(stream) == [0, 1] == stream.token_ids
    assert engine.calls == [([5, 6, 7], 0, 1), ([0], 3, 1), ([1], 4, 1)]
    assert stream.finish_reason == "eos"
    assert list(stream) == []


def test_no_pass_is_run_that_nobody_asked_for() -> None:
    engine = Scripted([b"a"] * 10)
    stream = tokens_of(engine, max_tokens=3)
    assert engine.calls == []
    assert next(stream) == 0
    assert len(engine.calls) == 1
    assert list(stream) == [1, 2]
    assert len(engine.calls) == 3
    assert stream.finish_reason == "length"


def test_zero_tokens_run_nothing() -> None:
    engine = Scripted([])
    stream = tokens_of(engine, max_tokens=0)
    assert list(stream) == []
    assert (stream.finish_reason, engine.calls, stream.timing.ttft_s) == ("length", [], None)


def test_without_end_tokens_the_answer_runs_on() -> None:
    engine = Scripted([b"a"] * 10)
    engine.script[2] = EOS
    stream = tokens_of(engine, eos_ids=(), max_tokens=5)
    assert list(stream) == [0, 1, EOS, 3, 4]


def test_the_context_limits_prompt_and_answer_together() -> None:
    stream = tokens_of(Scripted([b"a"] * 10), context=8)
    assert len(list(stream)) == 5
    assert stream.finish_reason == "length"
    with pytest.raises(UsageError, match="3 tokens") as caught:
        tokens_of(Scripted([]), context=3)
    assert caught.value.code == "usage.context"
    assert caught.value.expected == "at most 2"


@pytest.mark.parametrize(("prompt", "options"), [((), {}), ((1,), {"max_tokens": -1})])
def test_bad_requests_are_usage_errors(prompt: tuple[int, ...], options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        tokens_of(Scripted([]), prompt, **options)


def test_a_cancelled_stream_runs_no_further_pass() -> None:
    engine = Scripted([b"a"] * 10)
    stream = tokens_of(engine, cancelled=lambda: len(engine.calls) == 2)
    assert list(stream) == [0, 1]
    assert (stream.finish_reason, len(engine.calls)) == ("cancelled", 2)


def test_a_consumer_that_goes_away_cancels() -> None:
    for started in (False, True):
        engine = Scripted([b"a"] * 10)
        stream = TextStream(tokens_of(engine), engine)
        if started:
            next(stream)
        stream.close()
        assert stream.finish_reason == "cancelled"
        assert len(engine.calls) == started


def test_an_error_of_the_engine_passes_through() -> None:
    class Broken(Scripted):
        def forward(self, ids: Sequence[int], position: int, want: int) -> NDArray[np.float32]:
            if position:
                raise StageError("layer 3", "logits must be finite")
            return super().forward(ids, position, want)

    engine = Broken([b"a", b"b"])
    stream = TextStream(tokens_of(engine), engine)
    assert next(stream) == "a"
    with pytest.raises(StageError):
        next(stream)
    assert stream.finish_reason == "cancelled"


def test_times_are_those_of_the_passes_only() -> None:
    ticks = count()
    engine = Scripted([b"a", b"b"])
    stream = tokens_of(engine, clock=lambda: float(next(ticks)))
    for _ in stream:
        next(ticks)  # the consumer takes its time
    assert stream.timing.prefill_s == 1
    assert stream.timing.ttft_s == 2
    assert stream.timing.decode_s == 4  # two passes of two ticks each, one of them for the end token


def case(name: str) -> tuple[list[bytes], dict[str, Any], list[str]]:
    folder = CASES / name
    pieces = [bytes.fromhex(piece) for piece in json.loads((folder / "engine.json").read_text())["pieces_hex"]]
    request = json.loads((folder / "request.json").read_text())
    return pieces, json.loads((folder / "expected.json").read_text())["expect"], request.get("stop", [])


def test_characters_cut_by_tokens_come_out_whole() -> None:
    pieces, expect, _ = case("H01")
    emitted, stream, _ = text_of(pieces)
    assert emitted == ["He", "你", "好", "😀", " ok"]
    assert stream.text == expect["content"]
    assert stream.finish_reason == "eos"


def test_a_stop_string_over_several_tokens_is_never_shown() -> None:
    pieces, expect, stops = case("H02")
    emitted, stream, engine = text_of(pieces, stops)
    assert emitted == [expect["content"]]
    assert stream.finish_reason == expect["finish_reason"] == "stop"
    assert len(engine.calls) == 3  # `over` was never computed


def test_only_what_may_become_a_stop_is_held_back() -> None:
    emitted, stream, _ = text_of([b"a", b"ab", b"abx", b"ab"], ["abc"])
    assert emitted == ["a", "ababx", "ab"]
    assert stream.text == "aababxab"
    assert stream.finish_reason == "eos"


def test_the_longest_beginning_of_a_stop_is_held_back() -> None:
    emitted, stream, _ = text_of([b"xaa", b"b"], ["aab"])
    assert (emitted, stream.finish_reason) == (["x"], "stop")


def test_held_text_is_shown_when_the_answer_ends() -> None:
    emitted, stream, _ = text_of([b"x", b"<", b"/"], ["</s>"])
    assert emitted == ["x", "</"]
    assert stream.finish_reason == "eos"


def test_the_stop_that_is_complete_first_counts() -> None:
    for pieces in ([b"1xbcd!"], [b"1x", b"bc", b"d!"], [b"1", b"x", b"b", b"c", b"d", b"!"]):
        _, stream, _ = text_of(pieces, ["xbcd!", "bc"])
        assert (stream.text, stream.finish_reason) == ("1x", "stop")


def test_a_character_that_never_got_its_rest_is_marked_at_the_end() -> None:
    emitted, _, _ = text_of([b"a\xf0", b"\x9f"])
    assert emitted == ["a", "\ufffd"]
    assert text_of([b"a\xf0", b"z"])[0] == ["a", "\ufffdz"]


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    _, stream, _ = text_of([b"a", b"stop", b"b"], ["stop"], max_tokens=2)
    assert (stream.text, stream.finish_reason) == ("a", "stop")


def test_an_empty_stop_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="must not be empty"):
        text_of([b"a"], ["x", ""])


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("abé", max_size=12),
    cuts=st.lists(st.integers(0, 20), max_size=8),
    stops=st.lists(st.text("abé", min_size=1, max_size=4), max_size=3),
)
def test_the_answer_does_not_depend_on_the_borders_of_tokens(text: str, cuts: list[int], stops: list[str]) -> None:
    data = text.encode()
    borders = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    emitted, stream, _ = text_of([data[a:b] for a, b in pairwise(borders)], stops)
    expected, reason = text, "eos"
    for end in range(1, len(text) + 1):  # the shortest beginning that a stop string ends
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            expected, reason = text[: end - max(map(len, found))], "stop"
            break
    assert "".join(emitted) == stream.text == expected
    assert stream.finish_reason == reason
    assert all(emitted)


def test_end_tokens_are_a_number_or_a_list_of_the_first_that_names_them() -> None:
    assert eos_ids_of({"eos_token_id": [1, 7]}, {"eos_token_id": 2}) == {1, 7}
    assert eos_ids_of(None, {"eos_token_id": None}, {"eos_token_id": 0}) == {0}
    assert eos_ids_of({"eos_token_id": True}, {"eos_token_id": "1"}, {}) == frozenset()
