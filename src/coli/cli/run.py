"""`coli run`: answer one prompt."""

from __future__ import annotations

import json
import sys

import click

from coli.cli.options import with_settings
from coli.cli.prompt import read_prompt
from coli.cli.session import (
    Model,
    collect,
    describe_sampling,
    describe_timing,
    model_path,
    open_model,
    run_document,
    sampling_of,
    show_found,
)
from coli.cli.terminal import Terminal
from coli.settings import Resolved

__all__ = ["command"]


@click.command("run")
@click.argument("model", required=False)
@click.argument("prompt", required=False)
@with_settings("run")
def command(settings: Resolved, prompt: str | None) -> None:
    """Answer PROMPT with the checkpoint MODEL and stream the text to stdout.

    MODEL may come from COLI_MODEL. PROMPT "-", or none and a pipe, reads standard input.
    """
    path = model_path(settings)
    ids = settings["ids"]
    # Only the command line contradicts --raw and --ids; a system message in the settings file is for the other runs.
    asked = any(settings.origin(name).kind == "option" for name in ("system", "thinking"))
    text = read_prompt(prompt, has_ids=ids is not None, has_chat_options=asked, raw=settings["raw"])
    terminal = Terminal.from_settings(sys.stderr, settings)
    with open_model(settings, path, terminal, text=text is not None) as model:
        show_found(model.facts(), terminal)
        prompt_ids = list(ids) if text is None else _encode(model, text, settings)
        terminal.note(describe_sampling(model.sampling(sampling_of(settings))))
        stream = model.stream(prompt_ids, settings["max_tokens"], sampling_of(settings), settings["stop"])
        if settings["json"]:
            answer = collect(stream, lambda piece: None)
            click.echo(json.dumps(run_document(prompt_ids, answer, model), ensure_ascii=False))
        else:
            output = Terminal.from_settings(sys.stdout, settings)
            answer = collect(stream, output.write)
            if not model.has_text:
                output.write(",".join(map(str, answer.token_ids)))
            if not answer.text.endswith("\n"):
                output.line()
        terminal.note(describe_timing(len(prompt_ids), answer))
        if settings["explain"]:
            terminal.stages(model.stage_rows())


def _encode(model: Model, text: str, settings: Resolved) -> list[int]:
    if settings["raw"]:
        return model.encode(text)
    messages = [{"role": "user", "content": text}]
    if settings["system"] is not None:
        messages.insert(0, {"role": "system", "content": settings["system"]})
    return model.encode(model.render(messages, thinking=settings["thinking"]))
