"""Opening and closing a model: what is refused before anything costs time, and what a closed model says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import coli
from coli.errors import CheckpointError, FamilyError
from coli.families.registry import Registry


def test_a_type_without_an_engine_is_refused_before_its_weights_are_missed(tmp_path: Path) -> None:
    # Nobody should fetch the rest of 700 GB to learn that no engine runs it.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "glm4_moe"}))
    with pytest.raises(FamilyError) as caught:
        coli.open(tmp_path)
    assert caught.value.code == "family.no-engine"


def test_who_needs_text_learns_of_a_missing_tokenizer_before_weights_are_read(tmp_path: Path, demo_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo_path, folder)
    (folder / "tokenizer.json").unlink()
    read: list[int] = []
    with pytest.raises(CheckpointError) as caught:
        coli.open(folder, text=True, progress=lambda done, total: read.append(done))
    assert caught.value.code == "checkpoint.no-tokenizer"
    assert not read
    with coli.open(folder, context=64) as model:
        assert len(list(model.generate([0, 5], max_tokens=2, ignore_eos=True))) == 2


def test_a_closed_model_says_so(demo_path: Path) -> None:
    model = coli.open(demo_path, context=64)
    model.close()
    model.close()
    for use in (lambda: model.logits([1]), lambda: list(model.generate([1]))):
        with pytest.raises(ValueError, match=r"^the model is closed$"):
            use()


def test_the_descriptor_names_every_stage_that_the_engine_calls(demo_path: Path) -> None:
    with coli.open(demo_path, context=512) as model:
        model.logits(list(range(200)))
        served = {row["stage"] for row in model.stage_rows()}
    assert len(served) > 15
    assert served <= set(Registry.load(()).get("deepseek_v4").descriptor.stages)
