"""One model opened from the settings, and one answer from it: what run, chat and demo share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from coli.errors import UsageError
from coli.settings import Environment, Resolved
from coli.units import render_size

if TYPE_CHECKING:
    from coli.backends.candidates import Search
    from coli.cli.terminal import Terminal
    from coli.engine.sampling import SamplingChoice

__all__ = [
    "Answer",
    "Model",
    "TextStream",
    "backend_search",
    "banner",
    "collect",
    "describe_facts",
    "describe_sampling",
    "describe_timing",
    "model_path",
    "open_model",
    "run_document",
    "sampling_of",
    "show_found",
]


class Answer(Protocol):
    """The finished answer: ids, text, why it ended (`stop`, `length`, `eos`), seconds by name."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def text(self) -> str: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def timing(self) -> Mapping[str, float]: ...


class TextStream(Protocol):
    """Pieces of text as they come; ``result`` holds the answer when they have ended."""

    @property
    def result(self) -> Answer: ...
    def __iter__(self) -> Iterator[str]: ...


class Model(Protocol):
    """The part of `coli.open`'s model that the commands use."""

    @property
    def has_text(self) -> bool: ...
    def encode(self, text: str) -> list[int]: ...
    def render(self, messages: list[dict[str, Any]], **options: Any) -> str: ...
    def sampling(self, given: Mapping[str, Any]) -> SamplingChoice: ...
    def stream(
        self, ids: Sequence[int], max_tokens: int, sampling: Mapping[str, Any], stop: Sequence[str]
    ) -> TextStream: ...
    def logits(self, ids: Sequence[int], last: int | None = None) -> Any: ...
    def facts(self) -> dict[str, Any]: ...
    def stage_rows(self) -> list[dict[str, Any]]: ...


def open_model(
    settings: Resolved, path: str | Path, terminal: Terminal, *, text: bool
) -> AbstractContextManager[Model]:
    """Open the checkpoint at ``path`` with the settings' threads, memory and backend.

    ``terminal`` shows how far reading the weights is, and every new fallback. ``text``: a tokenizer is needed.
    """
    import coli

    model: AbstractContextManager[Model] = coli.open(
        path,
        threads=settings["threads"],
        context=settings["context"],
        prefill_chunk=settings["prefill_chunk"],
        ram=settings["ram"],
        io=settings["io"],
        vram=settings["vram"],
        backend=settings["backend"],
        search=backend_search(settings),
        plugins=settings["plugins"],
        text=text,
        progress=lambda done, total: terminal.progress("reading weights", done, total),
        tell=lambda fallback: terminal.line(
            f"[coli] fallback: {fallback.stage}: {fallback.backend} declined: {fallback.reason}"
        ),
    )
    return model


def backend_search(settings: Resolved) -> Search:
    """Return where backends are looked for, and which one was asked for, by whom."""
    from coli.backends.candidates import default_search

    environment = Environment()
    return default_search(
        settings["backend"],
        settings.origin("backend").text,
        settings["backend_path"],
        environment.library_path(),
        environment.for_tools(),
        settings["gpu"],
    )


def model_path(settings: Resolved) -> str:
    """Return the checkpoint that the settings name. Raises UsageError when none does."""
    path = settings["model"]
    if path is None:
        raise UsageError("MODEL", "is missing", fix="name a checkpoint folder, or set COLI_MODEL", code="usage.model")
    return str(path)


def sampling_of(settings: Resolved) -> dict[str, Any]:
    """Return the sampling values that the user gave, and the seed; the rest comes from generation_config.json."""
    given = {name: settings[name] for name in ("temperature", "top_p", "top_k", "min_p") if settings[name] is not None}
    return given | {"seed": settings["seed"]}


def describe_sampling(choice: SamplingChoice) -> str:
    """Return one line with the sampling values in force, and which of them the model's own file gave."""
    options, origins = asdict(choice.options), choice.origins
    if not options["temperature"]:
        return "[coli] greedy: always the most probable token" + _from(origins["temperature"])
    # What stays at its default does nothing; the seed always counts.
    shown = [name for name in options if origins[name] != "default" or name in ("temperature", "seed")]
    return "[coli] sampling: " + ", ".join(f"{name} {options[name]}{_from(origins[name])}" for name in shown)


def _from(origin: str) -> str:
    return "" if origin in ("given", "default") else f" ({origin})"


def banner(facts: Mapping[str, Any]) -> str:
    """Return the one start-up line that names the backend and why it was chosen."""
    backend = facts["backend"]
    file = Path(str(backend.get("path", ""))).name or "none"
    return (
        f"[coli] backend={file} ({backend.get('name')}) device={backend.get('device', 'cpu')} why={backend.get('why')}"
    )


def show_found(facts: Mapping[str, Any], terminal: Terminal) -> None:
    """Show what a model's opening found: the backend and why, family, context, memory."""
    terminal.note(banner(facts))
    for text in facts.get("notes", ()):
        terminal.line(f"[coli] {text}")
    terminal.facts(describe_facts(facts))


def describe_facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return `(name, value)` lines: family, context, memory."""
    memory = facts["memory"]
    limit = memory["ram_limit_bytes"]
    held, experts = memory["expert_slabs"], memory["experts"]
    return [
        ("family", f"{facts['family']} ({facts['variant']})"),
        ("context", f"{facts['context']} positions, prefill in chunks of {facts['prefill_chunk']}"),
        ("memory", f"{render_size(memory['ram_reserved_bytes'])}" + (f" of {render_size(limit)}" if limit else "")),
        ("experts", f"{'all' if held == experts else held} of {experts} fit in memory"),
        *(
            ("gpu", f"{upload['weights']} weights, {render_size(upload['bytes'])}, with {upload['backend']}")
            for upload in memory["uploads"]
        ),
    ]


def describe_timing(prompt_tokens: int, answer: Answer) -> str:
    """Return one line with token counts, seconds and tokens per second."""
    prefill, decode = answer.timing.get("prefill_s", 0.0), answer.timing.get("decode_s", 0.0)
    made = len(answer.token_ids)
    # The first token comes out of the prefill; the decode time belongs to the others.
    speed = f", {(made - 1) / decode:.1f} tokens/s" if made > 1 and decode > 0 else ""
    return (
        f"[coli] prompt {prompt_tokens} tokens in {prefill:.2f} s; answer {made} tokens in {decode:.2f} s{speed}; "
        f"ended by {answer.finish_reason}"
    )


def run_document(ids: Sequence[int], answer: Answer, model: Model) -> dict[str, Any]:
    """Return the document `coli.run/1`."""
    facts = model.facts()
    return {
        "schema": "coli.run/1",
        "prompt_ids": list(ids),
        "token_ids": list(answer.token_ids),
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "backend": facts["backend"],
        "stages": model.stage_rows(),
        "timing": dict(answer.timing),
        "memory": facts["memory"],
    }


def collect(stream: TextStream, show: Callable[[str], None]) -> Answer:
    """Pass every piece of ``stream`` to ``show`` and return the finished answer."""
    for piece in stream:
        show(piece)
    return stream.result
