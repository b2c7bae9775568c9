from __future__ import annotations

import json
import random

import pytest

from coli.errors import ColiError
from coli.families.deepseek_v4.dsml import Answer, Call, parse, render_calls

EOS = "<｜end▁of▁sentence｜>"


def block(body: str) -> str:
    return f"\n\n<｜DSML｜tool_calls>\n{body}\n</｜DSML｜tool_calls>"


def parameter(name: str, value: str, is_text: str = "true") -> str:
    return f'<｜DSML｜parameter name="{name}" string="{is_text}">{value}</｜DSML｜parameter>'


def invoke(name: str, *parameters: str) -> str:
    return f'<｜DSML｜invoke name="{name}">\n' + "\n".join(parameters) + "\n</｜DSML｜invoke>"


CUT = '<｜DSML｜invoke name="rm">\n<｜DSML｜parameter name="path" string="true">/ho'
F = Call("f", {})


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        (f"Hi.{EOS}", False, Answer("", "Hi.", (), True, ())),
        (f"Because.</think>Hi.{EOS}", True, Answer("Because.", "Hi.", (), True, ())),
        (f"</think>{EOS}", True, Answer("", "", (), True, ())),
        ("Look:" + block(invoke("now")) + EOS, False, Answer("", "Look:", (Call("now", {}),), True, ())),
        (block(invoke("now")), False, Answer("", "", (Call("now", {}),), True, ())),
        (
            "R</think>"
            + block(
                invoke("f", parameter("q", "a\n<b>\n</x>"), parameter("n", "[1, 2.5]", "false"))
                + "\n"
                + invoke("g", parameter("ö", "null", "false"))
            )
            + EOS,
            True,
            Answer("R", "", (Call("f", {"q": "a\n<b>\n</x>", "n": [1, 2.5]}), Call("g", {"ö": None})), True, ()),
        ),
        (block(invoke("f", parameter("s", "7"))) + EOS, False, Answer("", "", (Call("f", {"s": "7"}),), True, ())),
    ],
)
def test_well_formed_answers(strict: bool, text: str, thinking: bool, answer: Answer) -> None:
    assert parse(text, thinking=thinking, strict=strict) == answer


@pytest.mark.parametrize(
    ("text", "thinking", "rule"),
    [
        ("Hi.", False, "the turn must be ended"),
        (f"Because. Hi.{EOS}", True, "reasoning must be closed"),
        ("R" + block(invoke("f")) + EOS, True, "reasoning must be closed"),
        (f"Hi.{EOS} and", False, "nothing may follow the end"),
        (f"a<think>b{EOS}", False, "no token of the format"),
        (f"R</think>a</think>b{EOS}", True, "no token of the format"),
        (f"<｜DSML｜tool_calls>{EOS}", False, "no token of the format"),
        (block(invoke("f")) + "more" + EOS, False, "nothing may follow the block"),
        ("\n\n<｜DSML｜tool_calls> \n" + invoke("f"), False, "lines of their own"),
        ("\n\n<｜DSML｜tool_calls>\n" + invoke("f"), False, "the block of tool calls must be closed"),
        (block(invoke("f") + invoke("g")), False, "lines of their own"),
        ("\n\n<｜DSML｜tool_calls>\n", False, "the block of tool calls must be closed"),
        (block("<｜DSML｜invoke name=f>\n</｜DSML｜invoke>"), False, "a call must name its tool"),
        (
            block('<｜DSML｜invoke name="f">\n\n' + parameter("a", "1") + "\n</｜DSML｜invoke>"),
            False,
            "must name its tool",
        ),
        (block('<｜DSML｜invoke name="f">\n' + parameter("a", "1")), False, "a call must be closed"),
        (block(invoke("f", parameter("a", "1", "maybe"))), False, "a parameter must have name"),
        (block(invoke("f", parameter("a", "1"), parameter("a", "2"))), False, "given once"),
        (block(invoke("f", parameter("a", "one", "false"))), False, "must be JSON"),
        (block(invoke("f", parameter("a", "NaN", "false"))), False, "must be JSON"),
        (block(invoke("f", parameter("a", "1") + " " + parameter("b", "2"))), False, "lines of their own"),
    ],
)
def test_strict_names_the_first_deviation(text: str, thinking: bool, rule: str) -> None:
    with pytest.raises(ColiError) as caught:
        parse(text, thinking=thinking, strict=True)
    assert caught.value.code == "chat.format"
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("text", "thinking", "answer", "problem"),
    [
        ("Hi.", False, ("", "Hi.", (), False), None),
        ("I think", True, ("I think", "", (), False), "the reasoning is not closed"),
        (f"<think>R</think>A{EOS}", True, ("R", "A", (), True), None),
        (f"<think>R</think>A{EOS}", False, ("R", "A", (), True), None),
        ("R" + block(invoke("f")) + EOS, True, ("R", "", (F,), True), "before the end of the reasoning"),
        ("A" + block(invoke("f", parameter("a", "1"))).strip(), False, ("", "A", (Call("f", {"a": "1"}),), True), None),
        (block(invoke("f")) + "\nDone.", False, ("", "", (F,), True), "text after the block"),
        (
            block(invoke("f", parameter("a", "one", "false"))),
            False,
            ("", "", (Call("f", {"a": "one"}),), True),
            "no JSON",
        ),
        (
            block(invoke("f", parameter("a", "1"), parameter("a", "2"))),
            False,
            ("", "", (Call("f", {"a": "2"}),), True),
            "twice",
        ),
        (
            block(invoke("f", '<｜DSML｜parameter name="a">3</｜DSML｜parameter>')),
            False,
            ("", "", (Call("f", {"a": 3}),), True),
            None,
        ),
        (
            block(invoke("f", '<｜DSML｜parameter  name="a"  string="true" >3</｜DSML｜parameter>')),
            False,
            ("", "", (Call("f", {"a": "3"}),), True),
            None,
        ),
        # A call that was cut is never returned: half an argument must not be executed.
        (
            block(invoke("f") + "\n" + '<｜DSML｜invoke name="rm">\n' + parameter("path", "/")),
            False,
            ("", "", (F,), True),
            "left out",
        ),
        ("\n\n<｜DSML｜tool_calls>\n" + CUT, False, ("", "", (), False), "not closed"),
        (f"Hi.{EOS}<｜User｜>And", False, ("", "Hi.", (), True), "text after the end"),
        ("", False, ("", "", (), False), None),
        ("", True, ("", "", (), False), "not closed"),
    ],
)
def test_tolerant_mends_and_says_so(text: str, thinking: bool, answer: tuple[object, ...], problem: str | None) -> None:
    found = parse(text, thinking=thinking)
    assert (found.reasoning, found.content, found.calls, found.complete) == answer
    assert (problem is None) == (not found.problems)
    assert problem is None or any(problem in p for p in found.problems)


def test_calls_come_back_as_they_were_rendered() -> None:
    random_ = random.Random(11)
    alphabet = 'ab"<>/=\n {}[]ö｜0'

    def text() -> str:
        return "".join(random_.choice(alphabet) for _ in range(random_.randrange(12)))

    values = [
        lambda: text(),
        lambda: random_.randrange(-9, 9),
        lambda: [text(), None],
        lambda: {"k": text()},
        lambda: 0.1,
    ]
    for _ in range(300):
        calls = [
            (f"tool_{i}", {f"p{j}": random_.choice(values)() for j in range(random_.randrange(4))})
            for i in range(random_.randrange(1, 4))
        ]
        given = [(name, json.dumps(a, ensure_ascii=False) if random_.random() < 0.5 else a) for name, a in calls]
        written = "Text." + "\n\n" + render_calls(given) + EOS
        for strict in (True, False):
            assert [tuple(c) for c in parse(written, thinking=False, strict=strict).calls] == calls


def test_tolerant_never_raises_on_cut_and_shuffled_text() -> None:
    whole = "R</think>C" + block(invoke("f", parameter("a", "1"), parameter("b", "{", "false"))) + EOS
    for end in range(len(whole)):
        for thinking in (True, False):
            parse(whole[:end], thinking=thinking)
    pieces = [
        "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>",
        '<｜DSML｜invoke name="x">',
        "</｜DSML｜invoke>",
        EOS,
        '<｜DSML｜parameter name="y" string="false">',
        "</｜DSML｜parameter>",
        "</think>",
        "<think>",
        "\n",
        "1",
    ]
    random_ = random.Random(2)
    for _ in range(2000):
        parse("".join(random_.choices(pieces, k=12)), thinking=random_.random() < 0.5)


def test_arguments_as_json_text() -> None:
    assert Call("f", {"ö": [1, "x"]}).arguments_json == '{"ö": [1, "x"]}'
