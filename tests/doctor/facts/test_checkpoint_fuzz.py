"""Whatever lies in a model folder, the probe returns, and takes no memory that the files do not have."""

from __future__ import annotations

import json
import shutil
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coli.doctor.facts.checkpoint import CheckpointFacts, probe_checkpoint
from coli.engine.checkpoint import Checkpoint
from coli.errors import CheckpointError
from coli.families.registry import Registry

DEMO = Path(__file__).parents[3] / "src" / "coli" / "data" / "demo" / "model"
ALLOWED_BYTES = 24 << 20  # two readers of 8 MiB, and what parsing takes
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

REGISTRY = Registry.load(())
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
CONFIG: dict[str, Any] = json.loads((DEMO / "config.json").read_text())
WORDS = (*CONFIG, "text_config", "vision_config", "auto_map", "rope_parameters", "tie_word_embeddings", "config_groups")
HEADER = {
    "embed.weight": {"dtype": "BF16", "shape": [4, 4], "data_offsets": [0, 32]},
    "layers.0.ffn.experts.0.w1.weight": {"dtype": "I8", "shape": [4, 4], "data_offsets": [32, 48]},
    "layers.0.ffn.experts.0.w1.scale": {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [48, 52]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("fuzz") / "m"
    yield path


def lay_out(folder: Path, changed: dict[str, bytes]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    raw = json.dumps(HEADER).encode()
    files = {
        "config.json": json.dumps(CONFIG).encode(),
        "tokenizer.json": b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}',
        "model.safetensors.index.json": json.dumps(
            {"metadata": {"total_size": 52}, "weight_map": dict.fromkeys(HEADER, "model-00001-of-00001.safetensors")}
        ).encode(),
        "model-00001-of-00001.safetensors": struct.pack("<Q", len(raw)) + raw + b"\x11" * 52,
    }
    for name, data in (files | changed).items():
        (folder / name).write_bytes(data)
    return folder


def examine(folder: Path) -> CheckpointFacts:
    tracemalloc.start()
    try:
        facts = probe_checkpoint(folder, registry=REGISTRY, deep=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < ALLOWED_BYTES
    crashed = [problem for problem in facts.problems if problem.code == "checkpoint.not-examined"]
    assert not crashed, crashed
    # What the doctor calls broken files, the engine refuses, and for one of its reasons.
    codes = {p.code for p in facts.problems if p.status == "fail" and p.part in ("weights", "config", "location")}
    try:
        Checkpoint.open(folder).close()
    except CheckpointError as error:
        assert error.code in codes
    else:
        assert codes <= {"checkpoint.non-finite", "checkpoint.unknown-quant-method", "checkpoint.quantization"}
    return facts


def damaged(data: st.DataObject, text: bytes) -> bytes:
    content = bytearray(text)
    for _ in range(data.draw(st.integers(1, 4))):
        how = data.draw(st.sampled_from(["byte", "cut", "insert", "repeat"]))
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        if how == "byte" and content:
            content[at] = data.draw(st.integers(0, 255))
        elif how == "cut":
            del content[at:]
        elif how == "insert":
            content[at:at] = data.draw(st.binary(max_size=20))
        else:
            content[at:at] = content[at : at + 50]
    return bytes(content)


FILES = ("config.json", "tokenizer.json", "model.safetensors.index.json", "model-00001-of-00001.safetensors")


def test_the_undamaged_folder_is_sound(folder: Path) -> None:
    facts = examine(lay_out(folder, {}))
    assert not [p for p in facts.problems if p.part in ("weights", "config", "values") and p.status == "fail"]


@quick
@given(data=st.data())
def test_damaged_bytes(folder: Path, data: st.DataObject) -> None:
    lay_out(folder, {})
    for name in data.draw(st.sets(st.sampled_from(FILES), min_size=1)):
        path = folder / name
        path.write_bytes(damaged(data, path.read_bytes()))
    examine(folder)


@quick
@given(changes=st.dictionaries(st.sampled_from(WORDS), values, max_size=4), nested=st.booleans())
def test_configs_of_any_shape(folder: Path, changes: dict[str, Any], nested: bool) -> None:
    config: dict[str, Any] = CONFIG | changes
    if nested:
        config = {"model_type": "x", "text_config": config}
    examine(lay_out(folder, {"config.json": json.dumps(config).encode("utf-8", "surrogatepass")}))


@quick
@given(text=st.recursive(scalars, lambda inner: st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)))
def test_texts_that_are_json_and_nothing_else(folder: Path, text: Any) -> None:
    raw = json.dumps(text).encode("utf-8", "surrogatepass")
    for name in FILES[:3]:
        examine(lay_out(folder, {name: raw}))


@quick
@given(
    places=st.dictionaries(st.sampled_from(list(HEADER)), values, max_size=3),
    names=st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3),
)
def test_headers_and_indexes_of_any_shape(folder: Path, places: dict[str, Any], names: dict[str, str]) -> None:
    raw = json.dumps(HEADER | places).encode("utf-8", "surrogatepass")
    index = json.dumps({"weight_map": dict.fromkeys(HEADER, FILES[3]) | names}).encode("utf-8", "surrogatepass")
    examine(
        lay_out(
            folder, {FILES[3]: struct.pack("<Q", len(raw)) + raw + bytes(52), "model.safetensors.index.json": index}
        )
    )


@quick
@given(length=st.integers(0, 2**64 - 1), size=st.integers(0, 64))
def test_lengths_of_any_size(folder: Path, length: int, size: int) -> None:
    examine(lay_out(folder, {FILES[3]: (struct.pack("<Q", length) + b"{" * 64)[: size + 1]}))


@pytest.mark.parametrize("name", FILES)
def test_things_that_are_no_files(folder: Path, name: str) -> None:
    lay_out(folder, {})
    (folder / name).unlink()
    (folder / name).mkdir()
    examine(folder)
    (folder / name).rmdir()
    (folder / name).symlink_to(name)
    examine(folder)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    examine(folder)
