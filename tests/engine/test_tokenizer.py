from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from coli.engine.tokenizer import TextDecoder, Tokenizer
from coli.errors import CheckpointError, UsageError

BYTES = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
MERGES = [("l", "l"), ("h", "e"), ("ä", "½"), ("Ġ", "w"), ("ll", "o")]
ADDED = ["<｜end｜>", "<think>", "a b", "<café>"]


def build(folder: Path) -> tokenizers.Tokenizer:
    """Write a byte-level BPE of 256 letters, five merges and three added tokens; return the library's own."""
    vocabulary = dict(BYTES)
    for first, second in MERGES:
        vocabulary[first + second] = len(vocabulary)
    model = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens([AddedToken(ADDED[0], normalized=False)])
    model.add_tokens([AddedToken(text) for text in ADDED[1:]])
    model.save(str(folder / "tokenizer.json"))
    return model


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizer")
    model = build(folder)
    return Tokenizer.open(folder), model


Both = tuple[Tokenizer, tokenizers.Tokenizer]


def test_texts_come_back(both: Both) -> None:
    ours, _ = both
    for text in ("hello world", "你好 😀", "<｜end｜>hello<think>", "", "a b\n\t\0"):
        assert ours.decode(ours.encode(text)) == text


def test_added_tokens_are_one_id_and_keep_their_text(both: Both) -> None:
    ours, _ = both
    assert ours.vocabulary == 256 + len(MERGES) + len(ADDED)
    assert ours.encode("<｜end｜>") == [261]
    assert ours.encode("hello<think>")[-1] == 262 == ours.id_of("<think>")
    assert ours.token_bytes(261) == "<｜end｜>".encode()
    assert ours.token_bytes(263) == b"a b"
    assert ours.decode([264]) == "<café>"  # where the library reads é as the byte 0xE9
    assert ours.id_of("no such token") is None


def test_a_token_can_be_a_part_of_a_character(both: Both) -> None:
    ours, _ = both
    assert ours.token_bytes(256 + 2) == b"\xe4\xbd"  # the merge of ä and ½ are the first two bytes of 你
    assert ours.decode([256 + 2]) == "\ufffd"


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 263), max_size=20))
def test_decodes_as_the_library_does(both: Both, ids: list[int]) -> None:
    ours, model = both
    assert ours.decode(ids) == model.decode(ids, skip_special_tokens=False)
    assert ours.decode(ids).encode() == b"".join(map(ours.token_bytes, ids)).decode("utf-8", "replace").encode()


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=20))
def test_encodes_as_the_library_does(both: Both, text: str) -> None:
    ours, model = both
    assert ours.encode(text) == model.encode(text, add_special_tokens=False).ids
    assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("token", [-1, 265, 2**40])
def test_an_unknown_id_is_a_usage_error(both: Both, token: int) -> None:
    with pytest.raises(UsageError, match=f"token id {token}") as caught:
        both[0].token_bytes(token)
    assert caught.value.expected == "0 to 264"


def test_a_lone_surrogate_is_a_usage_error(both: Both) -> None:
    with pytest.raises(UsageError, match="UTF-8"):
        both[0].encode("a\ud800")


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for content, code in (
        (None, "no-tokenizer"),
        ("", "tokenizer"),
        ('{"model": {}}', "tokenizer"),
        ("{" * 500, "tokenizer"),
    ):
        if content is not None:
            path.write_text(content)
        with pytest.raises(CheckpointError) as caught:
            Tokenizer.open(tmp_path)
        assert caught.value.code == f"checkpoint.{code}"
        assert caught.value.subject == str(path)
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.open(tmp_path)
    assert caught.value.code == "checkpoint.dangling-link"


def test_another_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    model = build(tmp_path)
    model.decoder = decoders.WordPiece()
    model.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="WordPiece"):
        Tokenizer.open(tmp_path)


def test_a_truncation_in_the_file_does_not_cut_prompts(tmp_path: Path) -> None:
    model = build(tmp_path)
    model.enable_truncation(2)
    model.enable_padding(length=9)
    model.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"


@settings(max_examples=200, deadline=None)
@given(data=st.one_of(st.binary(max_size=30), st.text(max_size=10).map(str.encode)), cuts=st.lists(st.integers(0, 30)))
def test_pieces_add_up_wherever_they_are_cut(data: bytes, cuts: list[int]) -> None:
    decoder, text, start = TextDecoder(), "", 0
    for cut in [*sorted(cuts), len(data)]:
        text += decoder.add(data[start:cut])
        start = max(start, cut)
    assert text + decoder.finish() == data.decode("utf-8", "replace")


def test_a_cut_character_waits_for_its_rest() -> None:
    decoder = TextDecoder()
    assert [decoder.add(bytes([byte])) for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]
    assert decoder.finish() == ""
    assert (decoder.add(b"a\xf0\x9f"), decoder.finish()) == ("a", "\ufffd")
