"""Opening and closing a model: what is refused before anything costs time, and what a closed model says."""

from __future__ import annotations

import gc
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import coli
from coli.errors import CheckpointError, ColiError, FamilyError, UsageError
from coli.families.registry import Registry

FIRST, SECOND = [5, 6, 7], [9, 30, 2]  # as long as each other: positions alone would not tell them apart


def test_an_iterator_whose_sequence_was_replaced_refuses_to_go_on(oracle_model: Any) -> None:
    expected = list(oracle_model.generate(SECOND, max_tokens=6, ignore_eos=True))
    first = oracle_model.generate(FIRST, max_tokens=6, ignore_eos=True)
    next(first)
    second = oracle_model.generate(SECOND, max_tokens=6, ignore_eos=True)
    begin = next(second)
    with pytest.raises(UsageError, match="another one was started"):
        next(first)
    assert [begin, *second] == expected


def test_logits_replace_the_sequence_of_an_iterator(oracle_model: Any) -> None:
    stream = oracle_model.generate(FIRST, max_tokens=6, ignore_eos=True)
    next(stream)
    oracle_model.logits(SECOND)
    with pytest.raises(UsageError, match="another one was started"):
        next(stream)


def test_an_iterator_begins_when_it_is_first_asked(oracle_model: Any) -> None:
    expected = [list(oracle_model.generate(ids, max_tokens=4, ignore_eos=True)) for ids in (FIRST, SECOND)]
    streams = [oracle_model.generate(ids, max_tokens=4, ignore_eos=True) for ids in (FIRST, SECOND)]
    assert [list(stream) for stream in streams] == expected


def test_threads_take_turns(oracle_model: Any) -> None:
    prompts = [FIRST, SECOND, [1], list(range(40))]
    expected = [oracle_model.logits(ids).tobytes() for ids in prompts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda ids: oracle_model.logits(ids).tobytes(), prompts * 5))
    assert found == expected * 5


def test_a_closed_model_says_so(oracle_path: Path) -> None:
    model = coli.open(oracle_path, threads=1, context=64)
    stream = model.generate(FIRST, ignore_eos=True)
    next(stream)
    model.close()
    model.close()
    for use in (lambda: next(stream), lambda: model.logits(FIRST), model.__enter__):
        with pytest.raises(ValueError, match="the model is closed"):
            use()


def test_a_model_that_nobody_holds_gives_its_files_back(oracle_path: Path) -> None:
    def open_and_drop() -> int:
        model = coli.open(oracle_path, threads=1, context=64)
        next(model.generate(FIRST, ignore_eos=True))
        del model
        gc.collect()
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("no /proc here")
    assert open_and_drop() == open_and_drop()


@pytest.mark.parametrize("ids", [[1.5], ["5"], "abc", None, [None], [True], [[1, 2], [3]], [2**80]])
def test_ids_that_are_no_whole_numbers(oracle_model: Any, ids: Any) -> None:
    for use in (oracle_model.logits, oracle_model.generate):
        with pytest.raises(UsageError, match="whole numbers"):
            use(ids)


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": "2"},
        {"threads": True},
        {"context": 1.5},
        {"prefill_chunk": 0},
        {"prefill_chunk": -5},
    ],
)
def test_counts_are_whole_numbers(oracle_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="whole number, 1 or more"):
        coli.open(oracle_path, **options)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vocab_size": None}, "vocab_size: missing"),
        ({"vocab_size": "x"}, "vocab_size: 'x'"),
        ({"vocab_size": [1]}, r"vocab_size: \[1\]"),
        ({"vocab_size": 10**12}, "vocab_size: 1000000000000"),
        ({"n_routed_experts": 10**12}, "n_routed_experts: 1000000000000"),
        ({"n_routed_experts": 2**31 - 1}, "needs this tensor|must be those"),
        ({"num_hash_layers": 4}, "gate.tid2eid"),
        ({"rope_theta": 1e-300}, "rope_theta: 1e-300, expected a number above 1"),
        ({"compress_rope_theta": 1}, "compress_rope_theta: 1, expected a number above 1"),
        ({"rope_scaling": {"type": "yarn", "factor": 1e-308}}, "rope_scaling.factor: 1e-308"),
        ({"rope_scaling": {"type": "yarn", "beta_slow": 1e-308}}, "rope_scaling.beta_slow: 1e-308"),
    ],
)
def test_a_config_that_asks_for_the_impossible(
    oracle_path: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    for file in oracle_path.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((oracle_path / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match=says):
        coli.open(tmp_path, threads=1, context=64)


def test_a_missing_dense_tensor_is_found_before_any_weight_is_read(
    oracle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import coli.engine.checkpoint

    folder = shutil.copytree(oracle_path, tmp_path / "model")
    name, other = "norm.weight", "morn.weight"  # the last tensor that is bound, under a name of the same length
    for file in folder.glob("model*"):
        file.write_bytes(file.read_bytes().replace(f'"{name}"'.encode(), f'"{other}"'.encode()))

    def read(*_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(coli.engine.checkpoint.Checkpoint, "read_run", read)
    with pytest.raises(ColiError, match=rf"tensor {name}: the geometry"):
        coli.open(folder, threads=1, context=64)


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


def test_the_descriptor_names_every_stage_that_the_engine_calls(demo_path: Path) -> None:
    with coli.open(demo_path, context=512) as model:
        model.logits(list(range(200)))
        served = {row["stage"] for row in model.stage_rows()}
    assert len(served) > 15
    assert served <= set(Registry.load(()).get("deepseek_v4").descriptor.stages)
