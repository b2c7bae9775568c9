from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coli.cli.conversation import Conversation
from coli.errors import StageError, UsageError


def test_turns_are_rendered_again_with_the_whole_history(run: Any, model: Any) -> None:
    done = run("chat", "m", stdin="Hello\nAnd then?\n")
    assert done.code == 0
    assert done.out == "It rains.\nIt rains.\n\n"
    assert model.rendered[1][0] == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "And then?"},
    ]


def test_thoughts_are_kept_apart(run: Any, model: Any) -> None:
    model.pieces = ["Hmm</thi", "nk>Yes"]
    run("chat", "m", "--thinking", stdin="a\nb\n")
    assert model.rendered[1][0][1] == {"role": "assistant", "content": "Yes", "reasoning_content": "Hmm"}
    assert model.rendered[1][1] == {"thinking": True}


def test_commands(run: Any, model: Any, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    lines = ["/help", "a", "/system Be brief", "b", "/thinking on", f"/save {file}", "/nonsense", "/quit", "never"]
    done = run("chat", "m", stdin="\n".join(lines))
    assert "/reset" in done.err and "/nonsense: not a command" in done.err
    assert [len(messages) for messages, _ in model.rendered] == [1, 2]
    assert model.rendered[1][0][0] == {"role": "system", "content": "Be brief"}
    assert json.loads(file.read_text()) == {
        "system": "Be brief",
        "messages": [{"role": "user", "content": "b"}, {"role": "assistant", "content": "It rains."}],
    }


def test_a_line_can_continue(run: Any, model: Any) -> None:
    run("chat", "m", stdin="one\\\ntwo\n")
    assert model.rendered[0][0] == [{"role": "user", "content": "one\ntwo"}]


def test_interrupt_stops_the_answer_not_the_program(run: Any, model: Any) -> None:
    model.pieces = ["It", KeyboardInterrupt()]
    done = run("chat", "m", stdin="a\nb\n")
    assert done.code == 0
    assert len(model.calls) == 2
    assert model.rendered[1][0][1] == {"role": "assistant", "content": "It"}


def test_full_context_ends_the_turn_not_the_conversation(run: Any, model: Any) -> None:
    model.pieces = [UsageError("context", "is full")]
    done = run("chat", "m", stdin="a\n/quit\n")
    assert done.code == 0 and "context: is full" in done.err


def test_broken_stage_ends_the_program(run: Any, model: Any) -> None:
    model.pieces = ["It", StageError("router", "NaN in layer 3")]
    assert run("chat", "m", stdin="a\nb\n").code == 1
    assert len(model.calls) == 1


def test_save_never_replaces_a_file(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    file.write_text("mine")
    with pytest.raises(UsageError, match="already exists"):
        Conversation(None, False).save(str(file))
    assert file.read_text() == "mine"


def test_interrupt_ends_a_chat_that_nobody_types(run: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import coli.cli.chat

    waits = 0

    def read(interactive: bool) -> str | None:
        nonlocal waits
        waits += 1
        if waits == 1:
            raise KeyboardInterrupt
        return None

    monkeypatch.setattr(coli.cli.chat, "_read_message", read)
    assert run("chat", "m").code == 130


def test_save_to_the_home_of_nobody() -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        Conversation(None, False).save("~nobody-of-this-name/talk.json")


def test_a_command_without_what_it_needs_says_what(run: Any, model: Any) -> None:
    done = run("chat", "m", stdin="/save\n/thinking\n/nothing\n")
    assert "/save needs the name of a new file" in done.err
    assert "/thinking needs on or off" in done.err
    assert "/nothing: not a command" in done.err


def test_save_to_a_full_disk_or_nowhere_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        Conversation(None, False).save(str(tmp_path / "none" / "talk.json"))
    assert list(tmp_path.glob("**/*.json")) == []


def test_answer_stopped_while_thinking_has_no_content() -> None:
    conversation = Conversation(None, True)
    conversation.add("q", "still thinking")
    assert conversation.with_question("next")[1] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "still thinking",
    }
