from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coli.errors import UsageError
from coli.families.deepseek_v4.chat import parse, render

CHAT = Path(__file__).parent / "chat"

USER = {"role": "user", "content": "Q"}
ABSOLUTE = "<｜begin▁of▁sentence｜>Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very"
BEYOND = (
    "<｜begin▁of▁sentence｜>Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\nYou MUST"
)


def call(name: str, arguments: Any, ident: str | None = None) -> dict[str, Any]:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def says(*messages: dict[str, Any], **options: Any) -> str:
    text = render(messages, **options)
    assert text.startswith("<｜begin▁of▁sentence｜>")
    return text.removeprefix("<｜begin▁of▁sentence｜>")


# ---- the published conversations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "thinking"), [(1, True), (2, True), (3, True), (4, False)])
def test_published_conversations_to_the_byte(number: int, thinking: bool) -> None:
    case = json.loads((CHAT / f"case_{number}.json").read_text("utf-8"))
    expected = (CHAT / f"case_{number}.txt").read_text("utf-8")
    assert render(case["messages"], thinking=thinking, tools=case.get("tools", ())) == expected


def test_published_answers_are_read_back() -> None:
    text = (CHAT / "case_1.txt").read_text("utf-8")
    marker = "<｜Assistant｜><think>"
    start = text.index(marker) + len(marker)
    answer = parse(text[start : text.index("<｜User｜>", start)], thinking=True, strict=True)
    assert answer.reasoning == "The user wants to know the weather in Beijing. I should use the get_weather tool."
    assert answer.content == ""
    assert answer.calls == (("get_weather", {"location": "Beijing", "unit": "celsius"}),)
    final = parse(text[text.rindex(marker) + len(marker) :], thinking=True, strict=True)
    assert "22°C" in final.content and final.calls == ()


# ---- turns ----------------------------------------------------------------------------------------------------------


def test_openings() -> None:
    assert says(USER) == "<｜User｜>Q<｜Assistant｜></think>"
    assert says(USER, thinking=True) == "<｜User｜>Q<｜Assistant｜><think>"
    assert says(USER, add_generation_prompt=False) == "<｜User｜>Q"
    assert render([USER], bos=False) == "<｜User｜>Q<｜Assistant｜></think>"
    assert render([]) == "<｜begin▁of▁sentence｜>"


def test_user_turns_in_a_row_are_one_turn() -> None:
    second = {"role": "user", "content": [{"type": "text", "text": "second"}, {"type": "text", "text": "third"}]}
    assert says(USER, second) == "<｜User｜>Q\n\nsecond\n\nthird<｜Assistant｜></think>"


def test_old_reasoning_is_dropped_and_the_last_is_kept() -> None:
    history = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "First answer.", "reasoning_content": "First reasoning."},
        {"role": "user", "content": "Two"},
    ]
    dropped = (
        "S<｜User｜>One<｜Assistant｜></think>First answer.<｜end▁of▁sentence｜><｜User｜>Two<｜Assistant｜><think>"
    )
    assert says(*history, thinking=True) == dropped
    kept = dropped.replace("</think>First", "<think>First reasoning.</think>First")
    assert says(*history, thinking=True, drop_thinking=False) == kept
    # In the other mode reasoning is never shown.
    assert "reasoning" not in says(*history)


def test_tools_keep_all_reasoning() -> None:
    echo = {"type": "function", "function": {"name": "echo", "parameters": {"type": "object"}}}
    text = says(
        {"role": "system", "content": "S"},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "A.", "reasoning_content": "R."},
        {"role": "user", "content": "Two"},
        tools=[echo],
        thinking=True,
    )
    assert text.startswith("S\n\n## Tools\n\nYou have access")
    assert '\n\n{"name": "echo", "parameters": {"type": "object"}}\n\nYou MUST strictly follow' in text
    assert text.endswith(
        "invoke tool calls.\n<｜User｜>One<｜Assistant｜><think>R.</think>A.<｜end▁of▁sentence｜>"
        "<｜User｜>Two<｜Assistant｜><think>"
    )


def test_tools_without_a_system_message_get_one() -> None:
    text = says(USER, tools=[{"name": "bare"}])
    assert text.startswith("\n\n## Tools") and '{"name": "bare"}' in text


def test_developer_turns_ask_and_are_dropped_with_old_thinking() -> None:
    developer = {"role": "developer", "content": "D"}
    assert says(developer) == "<｜User｜>D<｜Assistant｜></think>"
    answer = {"role": "assistant", "content": "A"}
    assert says(developer, answer, USER, thinking=True) == ("A<｜end▁of▁sentence｜><｜User｜>Q<｜Assistant｜><think>")
    assert says(developer, answer, USER) == (
        "<｜User｜>D<｜Assistant｜></think>A<｜end▁of▁sentence｜><｜User｜>Q<｜Assistant｜></think>"
    )


def test_latest_reminder_opens_the_turn_before_it() -> None:
    reminder = {"role": "latest_reminder", "content": "2026-08-04"}
    assert says(reminder, USER) == "<｜latest_reminder｜>2026-08-04<｜User｜>Q<｜Assistant｜></think>"
    assert says(USER, reminder) == "<｜User｜>Q<｜Assistant｜></think><｜latest_reminder｜>2026-08-04"


def test_response_format_follows_the_content() -> None:
    system = {"role": "system", "content": "S", "response_format": {"type": "json_object", "path": "a/b"}}
    assert says(system, USER) == (
        "S\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
        '{"type": "json_object", "path": "a/b"}<｜User｜>Q<｜Assistant｜></think>'
    )


def test_an_answer_to_be_continued_has_no_end() -> None:
    assert says(USER, {"role": "assistant", "content": "So", "wo_eos": True}).endswith("</think>So")


# ---- tools ----------------------------------------------------------------------------------------------------------


def test_arguments_by_type() -> None:
    arguments = '{"name": "a/b", "count": 7, "flag": false, "list": [1, "two"], "nested": {"k": -1}, "nothing": null}'
    expected = (
        '<｜User｜>Q<｜Assistant｜><think>R</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="mixed">\n'
        '<｜DSML｜parameter name="name" string="true">a/b</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="count" string="false">7</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="flag" string="false">false</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="list" string="false">[1, "two"]</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="nested" string="false">{"k": -1}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="nothing" string="false">null</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜>"
    )
    for given in (arguments, json.loads(arguments)):
        turn = {"role": "assistant", "content": "", "reasoning_content": "R", "tool_calls": [call("mixed", given)]}
        assert says(USER, turn, thinking=True) == expected


def test_arguments_that_are_no_object_are_wrapped() -> None:
    turn = {"role": "assistant", "content": None, "tool_calls": [call("broken", "not json"), call("now", "{}")]}
    assert says(USER, turn) == (
        '<｜User｜>Q<｜Assistant｜></think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="broken">\n'
        '<｜DSML｜parameter name="arguments" string="true">not json</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜>'
    )


def test_results_are_ordered_as_the_calls_were() -> None:
    calls = {"role": "assistant", "tool_calls": [call("alpha", '{"n": "1"}', "A"), call("beta", '{"n": "2"}', "B")]}
    text = says(
        {"role": "system", "content": "S"},
        USER,
        calls,
        {"role": "tool", "tool_call_id": "B", "content": "B result"},
        {"role": "tool", "tool_call_id": "A", "content": "A result"},
        {"role": "user", "content": "And now this."},
        thinking=True,
    )
    assert text == (
        'S<｜User｜>Q<｜Assistant｜></think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="alpha">\n'
        '<｜DSML｜parameter name="n" string="true">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="beta">\n<｜DSML｜parameter name="n" string="true">2</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result>A result</tool_result>\n\n"
        "<tool_result>B result</tool_result>\n\nAnd now this.<｜Assistant｜><think>"
    )


def test_result_with_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    text = says(USER, {"role": "assistant", "tool_calls": [call("f", {})]}, {"role": "tool", "content": parts})
    assert "<｜User｜><tool_result>a\n\n[Unsupported image_url]\n\nb</tool_result><｜Assistant｜>" in text


# ---- tasks and effort -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["query", "authority", "domain", "read_url"])
def test_task_token_follows_the_question(task: str) -> None:
    assert says({**USER, "task": task}) == f"<｜User｜>Q<｜{task}｜>"


def test_action_and_title() -> None:
    assert says({**USER, "task": "action"}) == "<｜User｜>Q<｜Assistant｜></think><｜action｜>"
    assert says({**USER, "task": "action"}, thinking=True) == "<｜User｜>Q<｜Assistant｜><think><｜action｜>"
    title = {"role": "assistant", "content": "A", "task": "title"}
    answer = {"role": "assistant", "content": "About A"}
    assert says(USER, title, answer, thinking=True) == (
        "<｜User｜>Q<｜Assistant｜><think></think>A<｜end▁of▁sentence｜><｜title｜>About A<｜end▁of▁sentence｜>"
    )


def test_a_question_does_not_join_one_that_has_a_task() -> None:
    assert says({**USER, "task": "query"}, USER) == "<｜User｜>Q<｜User｜>Q<｜Assistant｜></think>"
    assert says(USER, {**USER, "task": "query"}) == "<｜User｜>Q\n\nQ<｜query｜>"


@pytest.mark.parametrize(
    ("revision", "effort", "start"),
    [
        (None, None, None),
        (None, "none", None),
        (None, "high", None),
        (None, "max", ABSOLUTE),
        ("0731", None, None),
        ("0731", "low", None),
        ("0731", "high", ABSOLUTE),
        ("0731", "max", BEYOND),
    ],
)
def test_effort_follows_the_revision(revision: str | None, effort: str | None, start: str | None) -> None:
    system = {"role": "system", "content": "S"}
    text = render([system, USER], thinking=True, revision=revision, effort=effort)
    if start is None:
        assert text == "<｜begin▁of▁sentence｜>S<｜User｜>Q<｜Assistant｜><think>"
    else:
        assert text.startswith(start)
        assert text.endswith(".\n\nS<｜User｜>Q<｜Assistant｜><think>")
    # Effort is effort in thinking.
    assert (
        render([USER], revision=revision, effort=effort) == "<｜begin▁of▁sentence｜><｜User｜>Q<｜Assistant｜></think>"
    )


@pytest.mark.parametrize(
    ("messages", "options", "says_what"),
    [
        ([USER, {"role": "narrator"}], {}, "message 1: role is wrong"),
        ([{"content": "x"}], {}, "message 0: role is wrong"),
        ([USER, {**USER, "task": "dance"}], {}, "message 1: task is wrong"),
        ([{"role": "user", "content": 3}], {}, "message 0: content is wrong"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {"tools": [{"name": "x"}]}, "message 0: content"),
        ([{"role": "developer", "content": ""}], {}, "message 0: content is wrong"),
        ([USER, {"role": "assistant", "tool_calls": [{"name": "x"}]}], {}, "message 1: tool_calls is wrong"),
        ([USER], {"tools": [{"type": "function"}]}, "tools is wrong"),
        ([USER], {"effort": "low"}, "'low'"),
        ([USER], {"effort": "none", "revision": "0731"}, "low, high, max"),
        ([USER], {"revision": "0913"}, "'0913'"),
    ],
)
def test_wrong_messages_are_refused(messages: list[dict[str, Any]], options: dict[str, Any], says_what: str) -> None:
    with pytest.raises(UsageError) as caught:
        render(messages, **options)
    assert says_what in str(caught.value)


def test_messages_are_not_changed() -> None:
    messages = json.loads((CHAT / "case_1.json").read_text("utf-8"))["messages"]
    before = json.dumps(messages)
    render(messages, thinking=True, tools=[{"name": "x"}])
    assert json.dumps(messages) == before
