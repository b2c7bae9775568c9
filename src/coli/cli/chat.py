"""`coli chat`: talk with a model, turn by turn."""

from __future__ import annotations

import contextlib
import sys

import click

from coli.cli.conversation import Conversation
from coli.cli.options import with_settings
from coli.cli.session import (
    Model,
    describe_sampling,
    describe_timing,
    model_path,
    open_model,
    sampling_of,
    show_found,
)
from coli.cli.terminal import Terminal
from coli.errors import ColiError, UsageError
from coli.settings import Resolved

__all__ = ["command"]

_HELP = """\
/help             this text
/reset            forget the conversation
/system [TEXT]    set the system message (without TEXT: remove it) and start again
/thinking on|off  let the model think before it answers
/save FILE        write the conversation to a new JSON file
/stages           where the time went
/quit             leave; Ctrl-D does the same
A line that ends in \\ continues on the next one. Ctrl-C stops the answer, not the program."""


@click.command("chat")
@click.argument("model", required=False)
@with_settings("chat")
def command(settings: Resolved) -> None:
    """Talk with the checkpoint MODEL. MODEL may come from COLI_MODEL.

    /help lists what can be typed besides messages. Ctrl-C stops the answer, Ctrl-D leaves.
    """
    path = model_path(settings)
    notes = Terminal.from_settings(sys.stderr, settings)
    output = Terminal.from_settings(sys.stdout, settings)
    with open_model(settings, path, notes, text=True) as model:
        show_found(model.facts(), notes)
        notes.note(describe_sampling(model.sampling(sampling_of(settings))))
        notes.note("/help lists the commands")
        _talk(model, settings, output, notes)
        if settings["explain"]:
            notes.stages(model.stage_rows())


def _talk(model: Model, settings: Resolved, output: Terminal, notes: Terminal) -> None:
    conversation = Conversation(settings["system"], settings["thinking"])
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(
            ImportError
        ):  # absent on Windows: then there is no line editing, and nothing else changes
            import readline  # noqa: F401
    while True:
        try:
            line = _read_message(interactive)
        except KeyboardInterrupt:
            if not interactive:  # nobody is there to type /quit
                raise
            output.line("\n(/quit or Ctrl-D leaves)")
            continue
        if line is None:
            output.line()
            return
        if not line.strip():
            continue
        try:
            if line.startswith("/"):
                if not _obey(line, conversation, model, notes):
                    return
            else:
                _answer(line, conversation, model, settings, output, notes)
        except UsageError as refusal:
            # A wrong file name or a full context ends the turn, not the conversation.
            notes.line(refusal.text())


def _read_message(interactive: bool) -> str | None:
    lines: list[str] = []
    while True:
        if interactive:
            try:
                line = input("... " if lines else "> ")
            except EOFError:
                return None
        else:
            line = sys.stdin.readline()
            if not line:
                return "\n".join(lines) if lines else None
            line = line.rstrip("\r\n")
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])


def _obey(line: str, conversation: Conversation, model: Model, notes: Terminal) -> bool:
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name == "/quit":
        return False
    if name == "/help":
        notes.line(_HELP)
    elif name == "/reset":
        conversation.reset()
        notes.line("the conversation is empty")
    elif name == "/system":
        conversation.system = rest or None
        conversation.reset()
        notes.line(
            "the conversation is empty" + (", with this system message" if rest else ", without a system message")
        )
    elif name == "/thinking" and rest in ("on", "off"):
        conversation.thinking = rest == "on"
        notes.line(f"thinking is {rest}")
    elif name == "/save" and rest:
        conversation.save(rest)
        notes.line(f"saved to {rest}")
    elif name == "/stages":
        notes.stages(model.stage_rows())
    elif name in ("/thinking", "/save"):
        notes.line(f"{name} needs {'on or off' if name == '/thinking' else 'the name of a new file'}")
    else:
        notes.line(f"{line}: not a command; /help lists them")
    return True


def _answer(
    text: str, conversation: Conversation, model: Model, settings: Resolved, output: Terminal, notes: Terminal
) -> None:
    messages = conversation.with_question(text)
    ids = model.encode(model.render(messages, thinking=conversation.thinking))
    pieces: list[str] = []
    try:
        stream = model.stream(ids, settings["max_tokens"], sampling_of(settings), settings["stop"])
        for piece in stream:
            pieces.append(piece)
            output.write(piece)
        notes_line = describe_timing(len(ids), stream.result)
    except KeyboardInterrupt:
        notes_line = "[coli] stopped; what is shown stays in the conversation"
    except ColiError:
        output.line()
        raise
    output.line()
    notes.note(notes_line)
    conversation.add(text, "".join(pieces))
