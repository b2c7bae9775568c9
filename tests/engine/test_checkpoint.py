from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from coli.engine.checkpoint import Checkpoint
from coli.errors import CheckpointError
from coli.families.registry import Registry
from coli.families.roles import Inventory, RoleTable

from .sparse_flash import FLASH_BYTES, FLASH_TENSORS, write_sparse_flash

CASES = Path(__file__).parent.parent / "cases"


def make(folder: Path, shards: dict[str, list[str]], weight_map: dict[str, str] | None = None, total: int = 0) -> Path:
    """Write shards of U8 tensors; the bytes of a tensor start with its number of order."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "x"}')
    number = 0
    for name, tensors in shards.items():
        arrays = {}
        for tensor in tensors:
            arrays[tensor] = np.arange(number, number + 5, dtype=np.uint8)
            number += 1
        safetensors.numpy.save_file(arrays, folder / name)
    if weight_map is None and list(shards) != ["model.safetensors"]:
        weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    if weight_map is not None:
        index: dict[str, Any] = {"metadata": {"total_size": total or 5 * number}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def refusal(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(path)
    return caught.value


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


TWO = {"model-00001-of-00002.safetensors": ["a", "b"], "model-00002-of-00002.safetensors": ["c"]}


def test_reads_the_bytes_that_the_reference_library_reads(tmp_path: Path) -> None:
    folder = make(tmp_path, TWO)
    with Checkpoint.open(folder) as checkpoint:
        assert checkpoint.config == {"model_type": "x"}
        assert checkpoint.generation_config is None
        assert checkpoint.notes == ()
        assert sorted(checkpoint.tensors) == ["a", "b", "c"]
        for name, tensors in TWO.items():
            with safetensors.safe_open(folder / name, "np") as file:
                for tensor in tensors:
                    assert checkpoint.read(tensor).tobytes() == file.get_tensor(tensor).tobytes()


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    with Checkpoint.open(make(tmp_path, {"model.safetensors": ["a"]})) as checkpoint:
        assert checkpoint.read("a").tolist() == [0, 1, 2, 3, 4]


def test_read_into_wants_the_exact_size(tmp_path: Path) -> None:
    with Checkpoint.open(make(tmp_path, TWO)) as checkpoint:
        buffer = np.zeros((1, 5), np.uint8)
        checkpoint.read_into("b", buffer)
        assert buffer.tolist() == [[1, 2, 3, 4, 5]]
        with pytest.raises(ValueError, match="buffer holds 4 bytes"):
            checkpoint.read_into("b", bytearray(4))


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        Checkpoint.open(make(tmp_path, TWO)) as checkpoint,
        pytest.raises(CheckpointError, match=r"layers\.0\.x") as caught,
    ):
        checkpoint.read("layers.0.x")
    assert caught.value.code == "checkpoint.missing-tensor"


def test_descriptors_are_opened_late_and_closed(tmp_path: Path) -> None:
    folder = make(tmp_path, TWO)
    before = descriptors()
    for _ in range(20):
        with Checkpoint.open(folder) as checkpoint:
            assert descriptors() == before
            for _ in range(3):
                checkpoint.read("a")
                checkpoint.read("c")
            assert descriptors() == before + 2
        assert descriptors() == before
    with pytest.raises(ValueError, match="closed"):
        checkpoint.read("a")


def test_failed_opens_leave_no_descriptor() -> None:
    before = descriptors()
    for case in ("A-W01", "A-W02", "A-W03", "A-W04"):
        refusal(CASES / case)
    assert descriptors() == before


def test_a_file_that_shrinks_while_open_is_named_with_the_tensor(tmp_path: Path) -> None:
    folder = make(tmp_path, TWO)
    path = folder / "model-00001-of-00002.safetensors"
    with Checkpoint.open(folder) as checkpoint:
        os.truncate(path, path.stat().st_size - 3)
        assert checkpoint.read("a").tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(CheckpointError) as caught:
            checkpoint.read("b")
        infos = [checkpoint["a"], checkpoint["b"]]
        with pytest.raises(CheckpointError) as together:
            checkpoint.read_run(infos, [memoryview(bytearray(5)), memoryview(bytearray(5))])
    for error in (caught.value, together.value):
        assert error.code == "checkpoint.short-read"
        assert error.subject == f"{path}: b"


def test_a_cut_shard_tells_how_much_is_missing() -> None:
    error = refusal(CASES / "A-W01")
    assert error.code == "checkpoint.truncated"
    assert error.subject.endswith("model-00002-of-00002.safetensors")
    assert "96 bytes are missing" in error.rule
    assert (error.observed, error.expected) == ("5496 bytes", "5592 bytes")


def test_all_lfs_pointers_are_named_with_their_real_sizes() -> None:
    error = refusal(CASES / "A-W02")
    expect = json.loads((CASES / "A-W02" / "expected.json").read_text())["expect"]
    assert error.code == "checkpoint.git-lfs-pointer"
    for fact in [*expect["files"], *map(str, expect["real_sizes"])]:
        assert fact in str(error)


def test_a_missing_shard_is_counted_by_name() -> None:
    error = refusal(CASES / "A-W03")
    assert error.code == "checkpoint.missing-shard"
    assert "1 of 3" in error.rule
    assert "model-00003-of-00003.safetensors" in str(error.observed)


def test_a_missing_shard_of_a_cache_is_fetched_by_the_tool_that_owns_the_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--some-lab--Some--Model" / "snapshots" / "1f"
    snapshot.parent.mkdir(parents=True)
    make(snapshot, TWO)
    (snapshot / "model-00002-of-00002.safetensors").unlink()
    assert "`hf download some-lab/Some--Model` fetches what is missing" in str(refusal(snapshot).fix)


def test_a_repository_name_is_not_a_folder_and_says_how_to_get_one(tmp_path: Path) -> None:
    assert "`hf download some-lab/Some-Model`" in str(refusal(Path("some-lab/Some-Model")).fix)
    assert "hf download" not in str(refusal(tmp_path / "nothing").fix)


def test_absent_and_misplaced_tensors_are_told_apart(tmp_path: Path) -> None:
    error = refusal(CASES / "A-W04")
    assert error.code == "checkpoint.absent-tensor"
    assert "mtp.fc.weight (model-00002-of-00002.safetensors)" in str(error.observed)
    assert "model.norm.weight" in str(error.observed)
    folder = tmp_path / "m"
    shutil.copytree(CASES / "A-W04", folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    del index["weight_map"]["mtp.fc.weight"]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with Checkpoint.open(folder) as checkpoint:
        assert checkpoint["model.norm.weight"].path.name == "model-00002-of-00002.safetensors"
        assert [note.code for note in checkpoint.notes] == ["checkpoint.misplaced-tensor", "checkpoint.total-size"]


@pytest.mark.parametrize("links", ["symbolic", "as text"])
@pytest.mark.parametrize("where", ["", "models--org--x", "models--org--x/snapshots/0123abcd", ".."])
def test_a_cache_with_an_unfinished_shard(tmp_path: Path, links: str, where: str) -> None:
    hub = tmp_path / "hub"
    shutil.copytree(CASES / "A-W05" / "hub", hub)
    snapshot = hub / "models--org--x" / "snapshots" / "0123abcd"
    if links == "symbolic":
        for link in snapshot.iterdir():
            target = link.read_text()
            link.unlink()
            link.symlink_to(target)
    error = refusal(hub / where)
    assert error.code == "checkpoint.incomplete-download"
    assert error.subject.endswith("snapshots/0123abcd/model-00002-of-00002.safetensors")
    assert "700 bytes" in str(error.observed)
    blobs = hub / "models--org--x" / "blobs"
    name = "0000000000000000000000000000000000abc125"
    shutil.copy(CASES / "A-W09" / "model-00002-of-00002.safetensors", blobs / name)
    (blobs / f"{name}.incomplete").unlink()
    with Checkpoint.open(hub / where) as checkpoint:
        assert len(checkpoint.tensors) == 27
        assert checkpoint.path.name == "0123abcd"
        for tensor in checkpoint.tensors:
            checkpoint.read(tensor)
    (blobs / name).unlink()
    assert refusal(hub / where).code == "checkpoint.dangling-link"


def test_a_cache_of_two_models_needs_a_choice(tmp_path: Path) -> None:
    for name in ("models--org--x", "models--org--y"):
        (tmp_path / name / "snapshots").mkdir(parents=True)
    error = refusal(tmp_path)
    assert error.code == "checkpoint.many-models"
    assert "models--org--x, models--org--y" in str(error.observed)
    assert refusal(tmp_path / "models--org--x").code == "checkpoint.no-snapshot"
    (tmp_path / "models--org--x" / "refs").mkdir()
    (tmp_path / "models--org--x" / "refs" / "main").write_text("../../../etc")
    assert refusal(tmp_path / "models--org--x").code == "checkpoint.revision"


def test_stray_files_are_ignored_with_a_note() -> None:
    expect = json.loads((CASES / "A-W09" / "expected.json").read_text())["expect"]
    with Checkpoint.open(CASES / "A-W09") as checkpoint:
        assert len(checkpoint.shards) == expect["used"]
        assert [note.subject for note in checkpoint.notes if note.code == "checkpoint.ignored-file"] == expect[
            "ignored"
        ]


def test_several_broken_files_are_reported_at_once(tmp_path: Path) -> None:
    folder = make(tmp_path, TWO)
    os.truncate(folder / "model-00001-of-00002.safetensors", 100)
    (folder / "model-00002-of-00002.safetensors").unlink()
    error = refusal(folder)
    assert "2 problems" in error.rule
    assert "model-00001-of-00002.safetensors" in str(error.observed)
    assert "model-00002-of-00002.safetensors" in str(error.observed)


def test_an_unfinished_file_beside_its_place(tmp_path: Path) -> None:
    folder = make(tmp_path, TWO)
    path = folder / "model-00002-of-00002.safetensors"
    path.rename(folder / f"{path.name}.incomplete")
    assert refusal(folder).code == "checkpoint.incomplete-download"


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "x.bin", "..", ""])
def test_an_index_cannot_point_elsewhere(tmp_path: Path, name: str) -> None:
    assert refusal(make(tmp_path, {"model.safetensors": ["a"]}, {"a": name})).code == "checkpoint.index"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', '{"weight_map": null}', "{"]
)
def test_a_broken_index_is_named(tmp_path: Path, text: str) -> None:
    folder = make(tmp_path, TWO)
    (folder / "model.safetensors.index.json").write_text(text)
    error = refusal(folder)
    assert error.code == "checkpoint.index"
    assert "model.safetensors.index.json" in error.subject


def test_what_is_there_instead_of_weights_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none").code == "checkpoint.no-folder"
    assert refusal(tmp_path).code == "checkpoint.no-config"
    (tmp_path / "config.json").write_text("{}")
    assert refusal(tmp_path / "config.json").code == "checkpoint.not-a-folder"
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    error = refusal(tmp_path)
    assert error.code == "checkpoint.no-weights"
    assert error.observed == "pytorch_model.bin"
    make(tmp_path, TWO)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert refusal(tmp_path).code == "checkpoint.missing-index"


def test_a_path_that_the_system_refuses_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / ("x" * 300)).code == "checkpoint.unreadable"
    (tmp_path / "config.json").symlink_to("config.json")
    assert refusal(tmp_path).code == "checkpoint.dangling-link"


def test_reads_that_the_system_cuts_short_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv

    def slow(descriptor: int, views: list[memoryview], offset: int) -> int:
        return preadv(descriptor, [views[0][:3]], offset)

    with Checkpoint.open(make(tmp_path, TWO)) as checkpoint:
        monkeypatch.setattr(os, "preadv", slow)
        views = [bytearray(5), bytearray(5)]
        checkpoint.read_run([checkpoint["a"], checkpoint["b"]], [memoryview(view) for view in views])
        assert views == [bytes([0, 1, 2, 3, 4]), bytes([1, 2, 3, 4, 5])]


def test_a_fifo_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    folder = make(tmp_path, {"model.safetensors": ["a"]})
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert refusal(folder).code == "checkpoint.not-a-file"
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert refusal(folder).code == "checkpoint.not-a-file"


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_broken_configs_are_named_and_odd_ones_noted(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path, TWO)
    for text in ("", "[1]", "{", '{"a": NaN}', '{"a":' * 3000):
        (folder / name).write_text(text)
        error = refusal(folder)
        assert error.subject == str(folder / name)
        assert error.code in ("checkpoint.config", "checkpoint.non-finite")
        assert name in str(error.fix)
    (folder / name).write_text('\ufeff{"a": 1}')
    with Checkpoint.open(folder) as checkpoint:
        assert (checkpoint.config if name == "config.json" else checkpoint.generation_config) == {"a": 1}
        assert [(note.code, note.subject) for note in checkpoint.notes] == [("checkpoint.config", name)]


HYBRID = {  # as save_pretrained of Transformers 5.24 writes them, and the released names
    "model.embed_tokens.weight": "embed.weight",
    "model.norm.weight": "norm.weight",
    "head.weight": "head.weight",
    "model.hc_head.hc_fn": "hc_head_fn",
    "model.hc_head.hc_base": "hc_head_base",
    "model.layers.0.attn.norm.weight": "layers.0.attn.kv_norm.weight",
    "model.layers.0.attn.compressor.norm.weight": "layers.0.attn.compressor.norm.weight",
    "model.layers.0.attn.indexer.compressor.norm.weight": "layers.0.attn.indexer.compressor.norm.weight",
    "model.layers.10.ffn.experts.3.w1.weight": "layers.10.ffn.experts.3.w1.weight",
    "layers.0.attn_norm.weight": "layers.0.attn_norm.weight",
    "mtp.0.norm.weight": "mtp.0.norm.weight",
}


@pytest.fixture(scope="module")
def deepseek_v4_names() -> RoleTable:
    return RoleTable(Registry.load(()).get("deepseek_v4").descriptor)


def test_the_hybrid_layout_of_save_pretrained_is_read(tmp_path: Path, deepseek_v4_names: RoleTable) -> None:
    with Checkpoint.open(make(tmp_path, {"model.safetensors": list(HYBRID)})) as checkpoint:
        assert sorted(checkpoint.tensors) == sorted(HYBRID)
        checkpoint.rename(deepseek_v4_names.canonical)
        assert sorted(checkpoint.tensors) == sorted(HYBRID.values())
        assert all(name == info.name for name, info in checkpoint.tensors.items())
        numbers = {name: i for i, name in enumerate(HYBRID)}
        for name, canonical in HYBRID.items():
            assert checkpoint.read(canonical)[0] == numbers[name]


def test_two_spellings_of_one_tensor_are_refused(tmp_path: Path, deepseek_v4_names: RoleTable) -> None:
    folder = make(tmp_path, {"model.safetensors": ["norm.weight", "model.norm.weight"]})
    with Checkpoint.open(folder) as checkpoint, pytest.raises(CheckpointError) as caught:
        checkpoint.rename(deepseek_v4_names.canonical)
    assert caught.value.code == "checkpoint.two-spellings"
    assert caught.value.subject == f"{folder}: norm.weight"
    assert "norm.weight in model.safetensors" in str(caught.value.observed)


def test_the_index_decides_between_two_files(tmp_path: Path) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    shards = {first: ["a", "b"], second: ["a", "c"]}
    for name, value in ((first, 0), (second, 2)):
        folder = make(tmp_path / name, shards, {"a": name, "b": first, "c": second}, total=15)
        with Checkpoint.open(folder) as checkpoint:
            assert checkpoint.read("a")[0] == value
            assert [note.code for note in checkpoint.notes] == ["checkpoint.tensor-twice"]
    folder = make(tmp_path / "none", {first: ["a", "b"], second: ["a", "c"]}, {"b": first, "c": second})
    assert refusal(folder).code == "checkpoint.tensor-twice"


def inventory(checkpoint: Checkpoint) -> tuple[str, Inventory]:
    """Return the model's name and what the registry makes of every tensor."""
    resolution = Registry.load(()).resolve(checkpoint.config, str(checkpoint.path))
    found = RoleTable(resolution.descriptor).inventory(checkpoint.tensors)
    found.require_known(str(checkpoint.path))
    return resolution.name, found


def test_flash_opens_from_its_headers_alone(tmp_path: Path) -> None:
    assert write_sparse_flash(tmp_path) == FLASH_BYTES
    with Checkpoint.open(tmp_path) as checkpoint:
        assert len(checkpoint.shards) == 46
        assert len(checkpoint.tensors) == FLASH_TENSORS
        assert sum(info.nbytes for info in checkpoint.tensors.values()) == FLASH_BYTES
        assert checkpoint.notes == ()
        assert checkpoint["layers.42.ffn.experts.255.w2.weight"].shape == (4096, 1024)
        assert not checkpoint.read("hc_head_fn").any()
        name, found = inventory(checkpoint)
    assert name == "DeepSeek V4 Flash"
    assert found.total_bytes == sum(kind.nbytes for kind in found.kinds.values()) == FLASH_BYTES
    assert found.kinds["expert"].nbytes == 43 * 256 * 3 * (2048 * 2048 + 2048 * 128)
    assert found.kinds["embedding"].nbytes == found.kinds["head"].nbytes == 129280 * 4096 * 2


def test_the_later_flash_opens_with_its_three_draft_blocks(tmp_path: Path) -> None:
    total = write_sparse_flash(tmp_path, "flash-0731")
    with Checkpoint.open(tmp_path) as checkpoint:
        assert len(checkpoint.shards) == 48
        assert sum(info.nbytes for info in checkpoint.tensors.values()) == total
        drafts = {name: info.nbytes for name, info in checkpoint.tensors.items() if name.startswith("mtp.")}
        assert {name.split(".")[1] for name in drafts} == {"0", "1", "2"}
        name, found = inventory(checkpoint)
    assert name == "DeepSeek V4 Flash (0731)"
    assert found.total_bytes == sum(kind.nbytes for kind in found.kinds.values()) == total
    assert found.kinds["draft"].nbytes == sum(drafts.values())
