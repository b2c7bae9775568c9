"""DSML, the markup of tool calls: rendering, and reading of what the model wrote, strict or tolerant."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from coli.errors import ColiError
from coli.families.deepseek_v4.chat_texts import BOS, DSML, EOS, THINK, THINK_END

__all__ = ["Answer", "Call", "parse", "render_calls", "to_json"]

BLOCK = f"<{DSML}tool_calls"
BLOCK_END = f"</{DSML}tool_calls>"
INVOKE = f"<{DSML}invoke"
INVOKE_END = f"</{DSML}invoke"
PARAMETER = f"<{DSML}parameter"
PARAMETER_END = f"</{DSML}parameter"

_NAME = re.compile(r'\s*name="([^\n]*?)"\s*>')
_PARAMETER_HEAD = re.compile(r'\s*name="([^\n]*?)"(?:\s+string="(true|false)")?\s*>')


class Call(NamedTuple):
    """One tool call. Values have JSON types; a text stays the text that was written."""

    name: str
    arguments: dict[str, Any]

    @property
    def arguments_json(self) -> str:
        """Return the arguments as JSON text."""
        return to_json(self.arguments)


class Answer(NamedTuple):
    """An assistant turn. `complete`: it ended with EOS or a closed block of calls. `problems`: what was mended."""

    reasoning: str
    content: str
    calls: tuple[Call, ...]
    complete: bool
    problems: tuple[str, ...]


def to_json(value: Any) -> str:
    """Return JSON as the format writes it: `, ` and `: `, characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def render_calls(calls: Sequence[tuple[str, Any]]) -> str:
    """Render tool calls (name, arguments) as a DSML block.

    Arguments are a mapping or the JSON text of an object; anything else becomes one parameter named `arguments`.
    """
    rendered = [f'{INVOKE} name="{name}">\n{_render_arguments(arguments)}\n{INVOKE_END}>' for name, arguments in calls]
    return f"{BLOCK}>\n" + "\n".join(rendered) + f"\n{BLOCK_END}"


def parse(text: str, *, thinking: bool, strict: bool = False) -> Answer:
    """Split the output of an assistant turn into reasoning, content and tool calls.

    ``text``: what was generated after the prompt, with EOS if it was generated. Strict: raises ColiError
    (`chat.format`) at the first deviation. Tolerant: never raises; only calls that are closed are returned, and
    `problems` says what was wrong.
    """
    return _strict(text, thinking) if strict else _tolerant(text, thinking)


# ---- rendering ------------------------------------------------------------------------------------------------------


def _render_arguments(arguments: Any) -> str:
    lines = []
    for key, value in _as_object(arguments).items():
        is_text = isinstance(value, str)
        shown = value if is_text else to_json(value)
        lines.append(f'{PARAMETER} name="{key}" string="{"true" if is_text else "false"}">{shown}{PARAMETER_END}>')
    return "\n".join(lines)


def _as_object(arguments: Any) -> Mapping[str, Any]:
    if isinstance(arguments, Mapping):
        return arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
    return {"arguments": arguments}


# ---- strict reading -------------------------------------------------------------------------------------------------


class _Cursor:
    """Reads a text from the front and says where it went wrong."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def until(self, *stops: str) -> tuple[str, str]:
        """Return the text before the first of the stops, and that stop; moves behind it. Empty stop: the end."""
        places = [(p, s) for s in stops if (p := self.text.find(s, self.at)) >= 0]
        place, stop = min(places, default=(len(self.text), ""))
        before = self.text[self.at : place]
        self.at = place + len(stop)
        return before, stop

    def fail(self, rule: str, observed: str, expected: str) -> NoReturn:
        raise ColiError(
            "assistant output",
            rule,
            observed=f"{observed[:120]!r} before character {self.at}",
            expected=expected,
            code="chat.format",
        )


def _strict(text: str, thinking: bool) -> Answer:
    cursor = _Cursor(text)
    block = "\n\n" + BLOCK
    reasoning = ""
    if thinking:
        reasoning, stop = cursor.until(THINK_END, block)
        if stop != THINK_END:
            cursor.fail("reasoning must be closed", reasoning[-60:], THINK_END)
    content, stop = cursor.until(EOS, block)
    calls: list[Call] = []
    if stop == block:
        calls = _strict_calls(cursor)
        rest, stop = cursor.until(EOS)
        if rest:
            cursor.fail("nothing may follow the block of tool calls", rest, EOS)
    elif stop != EOS:
        cursor.fail("the turn must be ended", content[-60:], EOS)
    if cursor.at != len(text):
        cursor.fail("nothing may follow the end of the turn", text[cursor.at :], "the end")
    for token in (BOS, EOS, THINK, THINK_END, DSML):
        if token in content or token in reasoning:
            cursor.fail("the text must have no token of the format", token, "text")
    return Answer(reasoning, content, tuple(calls), True, ())


def _strict_calls(cursor: _Cursor) -> list[Call]:
    calls: list[Call] = []
    while True:
        between, stop = cursor.until(INVOKE, BLOCK_END)
        if not stop:
            cursor.fail("the block of tool calls must be closed", between, BLOCK_END)
        if between != ">\n":
            cursor.fail("tags of calls are on lines of their own", between, "'>\\n'")
        if stop == BLOCK_END:
            return calls
        calls.append(_strict_call(cursor))


def _strict_call(cursor: _Cursor) -> Call:
    head, stop = cursor.until(PARAMETER, INVOKE_END)
    # A call without parameters has an empty line, because the renderer joins no parameters with a newline on each side.
    match = re.fullmatch(r'\s*name="(.*?)">\n\n?', head, re.DOTALL)
    if not match or (stop == PARAMETER and head.endswith("\n\n")):
        cursor.fail("a call must name its tool", head, ' name="...">\\n')
    arguments: dict[str, Any] = {}
    while stop == PARAMETER:
        body, end = cursor.until(PARAMETER_END)
        found = re.fullmatch(r' name="(.*?)" string="(true|false)">(.*)', body, re.DOTALL)
        if not end or not found:
            cursor.fail("a parameter must have name, string and an end", body, ' name="..." string="true|false">...')
        name, is_text, value = found.groups()
        if name in arguments:
            cursor.fail("a parameter may be given once", name, "another name")
        try:
            arguments[name] = value if is_text == "true" else _json(value)
        except ValueError:
            cursor.fail(f'parameter {name!r} with string="false" must be JSON', value, "JSON")
        between, stop = cursor.until(PARAMETER, INVOKE_END)
        if stop and between != ">\n":
            cursor.fail("tags of parameters are on lines of their own", between, "'>\\n'")
    if not stop:
        cursor.fail("a call must be closed", "", INVOKE_END + ">")
    return Call(match.group(1), arguments)


def _json(text: str) -> Any:
    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON value")

    try:
        return json.loads(text, parse_constant=constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


# ---- tolerant reading -----------------------------------------------------------------------------------------------


def _tolerant(text: str, thinking: bool) -> Answer:
    problems: list[str] = []
    text, end, rest = text.partition(EOS)
    if rest.strip():
        problems.append("text after the end of the turn is left out")
    if text.startswith(THINK):  # the prompt has this token already; some write it again, or without being asked
        text, thinking = text[len(THINK) :], True
    reasoning, closed = "", True
    if thinking:
        reasoning, separator, after = text.partition(THINK_END)
        place = reasoning.find(BLOCK)
        closed = bool(separator)
        if place >= 0:
            problems.append("tool calls before the end of the reasoning")
            text, reasoning = text[place:], reasoning[:place].rstrip("\n")
        elif closed:
            text = after
        else:
            problems.append("the reasoning is not closed")
            text = ""
    content, found, block = text.partition(BLOCK)
    calls: list[Call] = []
    if found:
        content = content.removesuffix("\n\n")
        calls, ended = _tolerant_calls(block, problems)
        closed = closed or ended
        end = end or (EOS if ended else "")
    return Answer(reasoning, content, tuple(calls), bool(end) and closed, tuple(problems))


def _tolerant_calls(block: str, problems: list[str]) -> tuple[list[Call], bool]:
    body, ended, rest = block.partition(f"</{DSML}tool_calls")
    if not ended:
        problems.append("the block of tool calls is not closed")
    elif rest.lstrip(">").strip():
        problems.append("text after the block of tool calls is left out")
    calls = []
    for piece in body.split(INVOKE)[1:]:
        inner, closed, _ = piece.partition(INVOKE_END)
        head = _NAME.match(inner)
        if not closed or not head:
            problems.append("a tool call without name or end is left out")
            continue
        calls.append(Call(head.group(1), _tolerant_arguments(head.group(1), inner[head.end() :], problems)))
    return calls, bool(ended)


def _tolerant_arguments(tool: str, inner: str, problems: list[str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for piece in inner.split(PARAMETER)[1:]:
        head = _PARAMETER_HEAD.match(piece)
        value, closed, _ = piece[head.end() if head else 0 :].partition(PARAMETER_END)
        if not head or not closed:
            problems.append(f"{tool}: a parameter without name or end is left out")
            continue
        name, is_text = head.groups()
        if name in arguments:
            problems.append(f"{tool}: parameter {name!r} is there twice, the last one counts")
        if is_text == "true":
            arguments[name] = value
            continue
        try:
            arguments[name] = _json(value)
        except ValueError:
            arguments[name] = value
            if is_text == "false":
                problems.append(f"{tool}: parameter {name!r} is no JSON and is kept as text")
    return arguments
