"""`coli demo`: show that this installation works, with the model that the package carries."""

from __future__ import annotations

import json
import shlex
import sys

import click

from coli.cli.options import with_settings
from coli.cli.session import collect, describe_sampling, describe_timing, open_model, run_document, show_found
from coli.cli.terminal import Terminal
from coli.paths import demo_model
from coli.settings import Resolved

__all__ = ["command"]

# A chat turn: the model was trained to answer a paragraph with the next one and to end there.
_PROMPT = "They walked to the village the next morning, and found Mr. Elton in the garden."
_MAX_TOKENS = 200
_SEED = 7


@click.command("demo")
@with_settings("demo")
def command(settings: Resolved) -> None:
    """Run the small packaged model: what was found, a paragraph of text, where the time went."""
    path = demo_model()
    output = Terminal.from_settings(sys.stderr if settings["json"] else sys.stdout, settings)
    with open_model(settings, path, Terminal.from_settings(sys.stderr, settings), text=True) as model:
        output.facts([("model", str(path))])
        show_found(model.facts(), output)
        ids = model.encode(model.render([{"role": "user", "content": _PROMPT}], thinking=False))
        # No temperature here: it comes from the model's generation_config.json, as in `coli run`.
        given = {"seed": _SEED}
        output.note(describe_sampling(model.sampling(given)))
        stream = model.stream(ids, _MAX_TOKENS, given, ())
        if settings["json"]:
            click.echo(json.dumps(run_document(ids, collect(stream, lambda piece: None), model), ensure_ascii=False))
            return
        output.line(f"\n> {_PROMPT}\n")
        answer = collect(stream, output.write)
        output.line("\n")
        output.note(describe_timing(len(ids), answer))
        output.stages(model.stage_rows())
        again = ["coli", "run", str(path), _PROMPT, "--max-tokens", str(_MAX_TOKENS), "--seed", str(_SEED)]
        output.line(f"The same text again: {shlex.join(again)}")
