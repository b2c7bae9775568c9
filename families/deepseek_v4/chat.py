"""The DeepSeek V4 chat format: messages to the prompt text the model was trained on. Reading answers is in `dsml`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coli.errors import UsageError
from coli.families.deepseek_v4.chat_texts import (
    ASSISTANT,
    BOS,
    EFFORTS,
    EOS,
    REMINDER,
    RESPONSE_FORMAT,
    TASKS,
    THINK,
    THINK_END,
    TOOLS_AFTER,
    TOOLS_BEFORE,
    USER,
)
from coli.families.deepseek_v4.dsml import Answer, Call, parse, render_calls, to_json

__all__ = ["Answer", "Call", "parse", "render"]

ROLES = ("system", "user", "assistant", "tool", "developer", "latest_reminder")
ASKS = ("user", "developer")

Message = Mapping[str, Any]


def render(
    messages: Sequence[Message],
    *,
    thinking: bool = False,
    effort: str | None = None,
    revision: str | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    drop_thinking: bool = True,
    add_generation_prompt: bool = True,
    bos: bool = True,
) -> str:
    """Render messages in the form of the chat completions API to prompt text.

    Keys of a message: `role`, `content` (text or a list of text parts), `reasoning_content`, `tool_calls`,
    `tool_call_id`, `tools`, `response_format`, `task`, `wo_eos`. ``tools`` go to the first system or developer
    message. ``effort`` follows ``revision`` (None: first release, or `0731`). ``drop_thinking``: leave out reasoning
    of turns before the last question; never done when there are tools. Raises UsageError with the message's number.
    """
    paragraph = _effort(effort, revision)
    complete = _with_tools(messages, tools)
    turns = _sort_results(_merge([dict(m) for m in complete], first=len(messages) - len(complete)))
    drop = drop_thinking and not any(t.get("tools") for t in turns)
    if thinking and drop:
        turns = _drop_thinking(turns)
    last = _last_question(turns)
    pieces = [BOS] if bos else []
    if thinking and turns:
        pieces.append(paragraph)
    for index, turn in enumerate(turns):
        after_task = index > 0 and turns[index - 1].get("task") is not None
        keeps = thinking and not after_task and (not drop or index > last)
        pieces.append(_body(index, turn, keeps))
        following = turns[index + 1]["role"] if index + 1 < len(turns) else None
        if following in (None, "assistant", "latest_reminder"):
            opens = thinking and (not drop or index >= last)
            pieces.append(_opening(turn, thinking, opens, add_generation_prompt or following is not None))
    return "".join(pieces)


# ---- what comes before rendering ------------------------------------------------------------------------------------


def _effort(effort: str | None, revision: str | None) -> str:
    if revision not in EFFORTS:
        known = ", ".join(sorted(str(r) for r in EFFORTS))
        raise UsageError("revision", "the chat format has no such revision", observed=repr(revision), expected=known)
    if effort is None:
        return ""
    known_efforts = EFFORTS[revision]
    if effort not in known_efforts:
        raise UsageError(
            "reasoning effort",
            f"revision {revision or 'of the first release'} does not know this effort",
            observed=repr(effort),
            expected=", ".join(known_efforts),
            code="chat.effort",
        )
    return known_efforts[effort]


def _with_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Sequence[Message]:
    for number, message in enumerate(messages):
        if message.get("role") not in ROLES:
            raise _wrong(number, "role", repr(message.get("role")), ", ".join(ROLES))
        task = message.get("task")
        if task is not None and task not in TASKS:
            raise _wrong(number, "task", repr(task), ", ".join(TASKS))
    if not tools:
        return messages
    for number, message in enumerate(messages):
        if message["role"] in ("system", "developer"):
            changed = {**message, "tools": [*(message.get("tools") or ()), *tools]}
            return [*messages[:number], changed, *messages[number + 1 :]]
    return [{"role": "system", "content": "", "tools": list(tools)}, *messages]


def _merge(messages: list[dict[str, Any]], first: int) -> list[dict[str, Any]]:
    """Turn tool messages into blocks of a user turn, and join user turns that follow each other.

    Every turn keeps the `number` of its message, for errors; ``first`` is -1 when a system message was put in front.
    """
    turns: list[dict[str, Any]] = []
    for number, message in enumerate(messages, first):
        message["number"] = number
        if message["role"] not in ("user", "tool"):
            turns.append(message)
            continue
        is_tool = message["role"] == "tool"
        blocks = [_result_block(number, message)] if is_tool else _user_blocks(number, message)
        before = turns[-1] if turns else None
        # A result joins any user turn; a question does not join one that has a task, which is answered on its own.
        if before and before["role"] == "user" and (is_tool or before.get("task") is None):
            before["blocks"] += blocks
            if message.get("task") is not None:
                before["task"] = message["task"]
        elif is_tool:
            turns.append({"role": "user", "number": number, "blocks": blocks})
        else:
            turns.append({**message, "blocks": blocks})
    return turns


def _result_block(number: int, message: Message) -> dict[str, str]:
    content = message.get("content")
    if isinstance(content, list):
        # Tools may answer with images; the trained format says that one was there.
        parts = [p["text"] if _is_text(p) else f"[Unsupported {_part_type(p)}]" for p in content]
        content = "\n\n".join(parts)
    text = _text(number, content)
    return {"text": f"<tool_result>{text}</tool_result>", "result_of": str(message.get("tool_call_id") or "")}


def _user_blocks(number: int, message: Message) -> list[dict[str, str]]:
    content = message.get("content")
    if not isinstance(content, list):
        return [{"text": _text(number, content)}]
    return [{"text": _part_text(number, part)} for part in content]


def _sort_results(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put tool results in the order of the calls, whatever order they came back in; other blocks stay."""
    order: dict[str, int] = {}
    for turn in turns:
        if turn["role"] == "assistant" and turn.get("tool_calls"):
            calls = enumerate(turn["tool_calls"])
            order = {str(c["id"]): i for i, c in calls if isinstance(c, Mapping) and c.get("id")}
        elif turn["role"] == "user" and order:
            results = [b for b in turn["blocks"] if "result_of" in b]
            ordered = iter(sorted(results, key=lambda b: order.get(b["result_of"], 0)))
            turn["blocks"] = [next(ordered) if "result_of" in b else b for b in turn["blocks"]]
    return turns


def _drop_thinking(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last = _last_question(turns)
    return [t for i, t in enumerate(turns) if i >= last or t["role"] != "developer"]


def _last_question(turns: list[dict[str, Any]]) -> int:
    return max((i for i, t in enumerate(turns) if t["role"] in ASKS), default=-1)


# ---- rendering of one turn ------------------------------------------------------------------------------------------


def _body(index: int, turn: dict[str, Any], keeps_thinking: bool) -> str:
    role, number = turn["role"], turn["number"]
    if role == "user":
        return USER + "\n\n".join(b["text"] for b in turn["blocks"])
    content = _text(number, turn.get("content"))
    if role == "assistant":
        reasoning = turn.get("reasoning_content") or turn.get("reasoning")
        thought = _text(number, reasoning) + THINK_END if keeps_thinking else ""
        calls = turn.get("tool_calls") or []
        block = "\n\n" + render_calls(_calls(number, calls)) if calls else ""
        return thought + content + block + ("" if turn.get("wo_eos") else EOS)
    if role == "latest_reminder":
        return REMINDER + content
    if role == "developer" and not content:
        raise _wrong(number, "content", "nothing", "the text of a developer message")
    text = USER + content if role == "developer" else content
    if turn.get("tools"):
        text += "\n\n" + TOOLS_BEFORE + "\n".join(_schemas(number, turn["tools"])) + TOOLS_AFTER
    if turn.get("response_format"):
        text += "\n\n" + RESPONSE_FORMAT + to_json(turn["response_format"])
    return text


def _opening(turn: dict[str, Any], thinking: bool, opens_thinking: bool, wanted: bool) -> str:
    """Return what opens the answer to a turn, or its task."""
    task = turn.get("task")
    if task is not None:
        if task == "action":
            return ASSISTANT + (THINK if thinking else THINK_END) + TASKS[task]
        return TASKS[str(task)]
    if turn["role"] not in ASKS or not wanted:
        return ""
    return ASSISTANT + (THINK if opens_thinking else THINK_END)


def _schemas(number: int, tools: Iterable[Any]) -> list[str]:
    schemas = []
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _wrong(number, "tools", str(tool)[:80], '{"type": "function", "function": {"name": ...}}')
        schemas.append(to_json(function))
    return schemas


def _calls(number: int, calls: Iterable[Any]) -> list[tuple[str, Any]]:
    found = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _wrong(number, "tool_calls", str(call)[:80], '{"function": {"name": ..., "arguments": ...}}')
        found.append((function["name"], function.get("arguments") or {}))
    return found


def _text(number: int, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(number, part) for part in content)
    raise _wrong(number, "content", type(content).__name__, "text or a list of parts")


def _part_text(number: int, part: Any) -> str:
    if _is_text(part):
        return str(part["text"])
    raise _wrong(number, "content", f"a part of type {_part_type(part)}", "text parts: this family reads text only")


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _part_type(part: Any) -> str:
    return str(part.get("type"))[:40] if isinstance(part, Mapping) else type(part).__name__


def _wrong(number: int, key: str, observed: str, expected: str) -> UsageError:
    return UsageError(f"message {number}", f"{key} is wrong", observed=observed, expected=expected, code="chat.message")
