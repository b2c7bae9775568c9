"""A scripted model in place of `coli.open`, for what the commands do around the model."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coli
from coli.cli import main
from coli.engine.sampling import SamplingChoice, resolve_sampling

VOCABULARY = 256


@dataclass
class FakeAnswer:
    token_ids: list[int]
    text: str
    finish_reason: str
    timing: dict[str, float] = field(default_factory=lambda: {"prefill_s": 0.5, "decode_s": 0.25, "ttft_s": 0.5})


class FakeStream:
    def __init__(self, pieces: Sequence[str | BaseException], token_ids: list[int] | None) -> None:
        self._pieces = pieces
        self._token_ids = token_ids
        self.result: FakeAnswer

    def __iter__(self) -> Iterator[str]:
        text = ""
        for piece in self._pieces:
            if isinstance(piece, BaseException):
                raise piece
            text += piece
            yield piece
        self.result = FakeAnswer(self._token_ids or list(text.encode()), text, "length")


class FakeModel:
    """Token ids are UTF-8 bytes; the most probable next token is the current one plus one."""

    def __init__(self) -> None:
        self.pieces: list[str | BaseException] = ["It", " rains", "."]
        self.opened: list[tuple[Any, dict[str, Any]]] = []
        self.calls: list[dict[str, Any]] = []
        self.rendered: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []
        self.has_text = True
        self.answer_ids: list[int] | None = None
        self.shift = 0.0
        self.shift_rows = slice(None)
        self.closed = 0
        self.open_error: BaseException | None = None

    def open(self, path: Any, **options: Any) -> FakeModel:
        if self.open_error is not None:
            raise self.open_error
        self.opened.append((path, options))
        return self

    def __enter__(self) -> FakeModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def render(self, messages: list[dict[str, Any]], **options: Any) -> str:
        self.rendered.append(([dict(message) for message in messages], options))
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)

    def sampling(self, given: Mapping[str, Any]) -> SamplingChoice:
        return resolve_sampling(given, {"do_sample": True, "temperature": 0.7, "top_p": 0.9})

    def stream(
        self, ids: Sequence[int], max_tokens: int, sampling: Mapping[str, Any], stop: Sequence[str]
    ) -> FakeStream:
        self.calls.append({"ids": list(ids), "max_tokens": max_tokens, "sampling": dict(sampling), "stop": tuple(stop)})
        return FakeStream(self.pieces, self.answer_ids)

    def logits(self, ids: Sequence[int], last: int | None = None) -> Any:
        rows = np.zeros((len(ids), VOCABULARY), np.float32)
        for row, token in enumerate(ids):
            rows[row, (token + 1) % VOCABULARY] = 5.0
        rows[self.shift_rows, 3] += np.float32(self.shift)
        return rows if last is None else rows[-last:]

    def facts(self) -> dict[str, Any]:
        return {
            "family": "deepseek_v4",
            "variant": "tiny",
            "backend": {
                "name": "cpu-x86-64-v4",
                "path": "/lib/libcoli_cpu_x86_64_v4.so",
                "device": "cpu",
                "why": "best",
            },
            "context": 4096,
            "prefill_chunk": 128,
            "memory": {
                "ram_limit_bytes": 12 << 30,
                "ram_reserved_bytes": 5 << 20,
                "expert_slabs": 3,
                "experts": 32,
                "uploads": [],
            },
        }

    def stage_rows(self) -> list[dict[str, Any]]:
        fallback = {"backend": "cuda-generic", "reason": "shape", "count": 2}
        common = {"backend": "cpu-x86-64-v4", "absent_in": []}
        return [
            {**common, "stage": "matmul", "calls": 7, "seconds": 0.75, "fallbacks": [fallback]},
            {**common, "stage": "rope", "calls": 4, "seconds": 0.25, "fallbacks": []},
        ]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no settings file of the developer reaches a test."""
    import os

    for name in list(os.environ):
        if name.startswith(("COLI_", "DSV4_")) or name == "NO_COLOR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    fake = FakeModel()
    # Not setattr: that looks the real one up first, and imports the engine.
    monkeypatch.setitem(vars(coli), "open", fake.open)
    return fake


@dataclass
class Run:
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call `coli` in this process: run("chat", "m", stdin="hello") -> Run."""
    import io

    def call(*arguments: str, stdin: str | bytes = "") -> Run:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        code = main(arguments)
        captured = capsys.readouterr()
        return Run(code, captured.out, captured.err)

    return call
