from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from coli.paths import demo_model


def test_what_was_found_then_text_then_stages(run: Any, model: Any) -> None:
    done = run("demo")
    assert done.code == 0
    found, text, stages = (done.out.index(part) for part in ("deepseek_v4", "It rains.", "matmul"))
    assert found < text < stages
    assert "libcoli_cpu_x86_64_v4.so" in done.out and "why=best" in done.out


def test_the_command_it_prints_makes_the_same_call(run: Any, model: Any) -> None:
    line = next(line for line in run("demo").out.splitlines() if line.startswith("The same text again: "))
    arguments = shlex.split(line.partition("again: ")[2])
    assert arguments[0] == "coli"
    assert run(*arguments[1:]).out == "It rains.\n"
    assert model.calls[0] == model.calls[1]
    assert Path(model.opened[0][0]) == Path(model.opened[1][0])


def test_json_is_the_document_of_a_run(run: Any, model: Any) -> None:
    done = run("demo", "--json")
    assert json.loads(done.out)["schema"] == "coli.run/1"


def test_packaged_model_is_complete() -> None:
    index = json.loads((demo_model() / "model.safetensors.index.json").read_text())
    shards = set(index["weight_map"].values())
    assert shards and all((demo_model() / shard).is_file() for shard in shards)
    assert sum((demo_model() / shard).stat().st_size for shard in shards) == 5_800_830
    assert (demo_model().parent / "MODEL_CARD.md").is_file()
