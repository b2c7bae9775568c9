"""Every CPU library gives the same bytes through the whole engine, loaded by its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import Build
from stage_recorder import recorded_stages

import coli
from coli.backends.vectors import write_vectors

ALL = {"portable", "x86_64_v3", "x86_64_v4", "neon"}


def answers(path: Path, library: Path, prompts: list[dict[str, Any]]) -> list[bytes]:
    """Return the logits of prompts and of a few greedy tokens: prefill in chunks, then token by token."""
    found = []
    with coli.open(path, threads=2, context=512, prefill_chunk=64, backend=str(library)) as model:
        assert Path(model.facts()["backend"]["path"]) == library
        for prompt in prompts:
            found.append(model.logits(prompt["ids"]).tobytes())
            for at, token in enumerate(prompt["greedy"][:4], len(prompt["ids"])):
                found.append(model.engine.forward(np.array([token], np.int32), at, 1).tobytes())
    return found


def same_answers(
    path: Path, build: Build, runnable: dict[str, Path], reference: dict[str, Any], names: set[str]
) -> set[str]:
    """Compare the libraries that this processor runs with the portable one; return the levels that ran."""
    prompts = [prompt for prompt in reference["prompts"] if prompt["name"] in names]
    expected = answers(path, build.libraries["portable"], prompts)
    want = reference["arrays"][f"{prompts[0]['name']}.logits"]
    first = np.frombuffer(expected[0], np.float32).reshape(-1, want.shape[1])
    assert np.abs(first[-len(want) :] - want).max() < 5e-4  # the judge is right, not just repeatable
    for level in runnable.keys() - {"portable"}:
        assert answers(path, runnable[level], prompts) == expected, level
    return {"portable", *runnable}


@pytest.fixture
def forward_vectors(oracle: dict[str, Any], oracle_path: Path, native_build: Build, tmp_path: Path) -> tuple[Path, int]:
    """Every stage call of a forward pass with the portable library's bytes: a chunk that closes a window of 128 and
    reads its entry, then one token."""
    ids = np.array(next(p["ids"] for p in oracle["prompts"] if p["name"] == "over128"), np.int32)
    library = str(native_build.libraries["portable"])
    with coli.open(oracle_path, threads=2, context=192, prefill_chunk=128, backend=library) as model:
        model.engine.forward(ids[:120], 0, 1)
        with recorded_stages(model._dispatcher) as calls:
            model.engine.forward(ids[120:130], 120, 10)
            model.engine.forward(ids[130:131], 130, 1)
    path = tmp_path / "forward.bin"
    path.write_bytes(write_vectors([call.to_case() for call in calls]))
    return path, len(calls)


def test_libraries(
    oracle: dict[str, Any],
    oracle_path: Path,
    native_build: Build,
    runnable: dict[str, Path],
    forward_vectors: tuple[Path, int],
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran = same_answers(oracle_path, native_build, runnable, oracle, {"over128"})
    with capsys.disabled():
        print(f"\nsame bytes through the engine: {', '.join(sorted(ran))}")
    vectors, count = forward_vectors
    said = request.getfixturevalue("neon_build").replay("neon", vectors, 2)  # skips where there is no emulator
    assert f"{count} of {count} calls equal" in said
    with capsys.disabled():
        print(f"same bytes, every stage call of a forward pass in an emulator: {said.strip()}")
    missing = ALL - ran - {"neon"}
    if missing:
        pytest.skip(f"not run: {', '.join(sorted(missing))}: this processor has not the instructions")


@pytest.mark.full
def test_libraries_on_every_prompt(
    oracle: dict[str, Any], oracle_path: Path, native_build: Build, runnable: dict[str, Path]
) -> None:
    names = {prompt["name"] for prompt in oracle["prompts"]}
    ran = same_answers(oracle_path, native_build, runnable, oracle, names)
    if missing := ALL - ran - {"neon"}:
        pytest.skip(f"not run: {', '.join(sorted(missing))}: this processor has not the instructions")
