from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from engine.sparse_flash import FLASH_BYTES, FLASH_TENSORS, write_sparse_flash

from coli.doctor.facts.checkpoint import CheckpointFacts, probe_checkpoint
from coli.engine.checkpoint import Checkpoint
from coli.errors import CheckpointError
from coli.families.registry import Registry

CASES = Path(__file__).parents[2] / "cases"
ROOT = Path(__file__).parents[3]
DEMO = ROOT / "src" / "coli" / "data" / "demo" / "model"
SHARDS = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load(())


def model(folder: Path, config: dict[str, Any] | None = None) -> Path:
    """Write a model of three files with four tensors of 16 bytes each."""
    folder.mkdir(exist_ok=True)
    weight_map = {}
    for number, name in enumerate(SHARDS):
        tensors = {f"layers.{number}.{part}": np.arange(8, dtype=np.int16) for part in "abcd"}
        safetensors.numpy.save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": 12 * 16}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "olmoe"}))
    return folder


def codes(facts: CheckpointFacts, *parts: str) -> list[str]:
    return [problem.code for problem in facts.problems if not parts or problem.part in parts]


def demo(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO, tmp_path / "demo"))


def test_the_demo_model_is_known_down_to_its_roles(registry: Registry) -> None:
    facts = probe_checkpoint(DEMO, registry=registry, deep=True)
    assert facts.status == "ok"
    assert facts.problems == ()
    family = facts.family.value
    assert family is not None
    assert (family.id, family.found_by, family.revision) == ("deepseek_v4", "model_type", None)
    assert family.engine == "coli.families.deepseek_v4.engine:Engine"
    config = facts.config.value
    assert config is not None
    assert (config.layers, config.experts, config.hidden, config.vocab) == (4, 8, 256, 1024)
    # w1, w2, w3: 128 x 256 values of 4 bits, and a scale for each 32 of them.
    assert facts.expert_bytes.value == 3 * (128 * 256 // 2 + 128 * 256 // 32)
    assert (facts.layers.value, facts.experts_per_layer.value) == (4, 8)
    roles = facts.roles.value
    assert roles is not None
    assert sum(role.nbytes for role in roles) == facts.weight_bytes.value
    lengths = {name: (DEMO / name).stat().st_size for name in (shard.name for shard in facts.shards)}
    assert {shard.name: shard.file_bytes for shard in facts.shards} == lengths
    headers = {name: struct.unpack("<Q", (DEMO / name).read_bytes()[:8])[0] for name in lengths}
    assert facts.weight_bytes.value == sum(lengths.values()) - sum(8 + size for size in headers.values())
    assert facts.tokenizer.value is not None and facts.tokenizer.value.vocabulary == 1024
    assert facts.chat.value is not None and facts.chat.value.module == "coli.families.deepseek_v4.chat"
    generation = json.loads((DEMO / "generation_config.json").read_text())
    assert facts.generation_config.value == generation
    assert facts.deep.value is not None and facts.deep.value.read_bytes == facts.weight_bytes.value


def test_one_broken_file_hides_no_other(tmp_path: Path, registry: Registry) -> None:
    folder = model(tmp_path / "m")
    first = folder / SHARDS[0]
    os.truncate(first, first.stat().st_size - 5)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 4999802720\n"
    (folder / SHARDS[1]).write_bytes(pointer)
    (folder / SHARDS[2]).unlink()
    (folder / "config.json").write_text('{"model_type": "olmoe",}')
    (folder / "tokenizer.json").write_bytes(pointer)
    facts = probe_checkpoint(folder, registry=registry, deep=True)
    assert codes(facts) == [
        "checkpoint.config",
        "checkpoint.truncated",
        "checkpoint.git-lfs-pointer",
        "checkpoint.missing-shard",
        "checkpoint.git-lfs-pointer",
    ]
    assert [shard.state for shard in facts.shards] == ["truncated", "git-lfs-pointer", "missing-shard"]
    data = [problem.data for problem in facts.problems]
    assert data[1]["missing_bytes"] == 5
    assert data[2]["real_bytes"] == 4999802720
    assert data[3]["missing"] == (SHARDS[2],)
    assert "no comma after the last entry" in str(facts.problems[0].evidence)
    assert f"hf download REPOSITORY {SHARDS[2]} --local-dir {folder}" in str(facts.problems[3].fix)
    assert not facts.weight_bytes.known
    with pytest.raises(CheckpointError, match="4 problems") as caught:
        Checkpoint.open(folder)
    assert caught.value.data["codes"] == codes(facts)[:4]


def test_a_file_with_several_faults_tells_them_all(tmp_path: Path, registry: Registry) -> None:
    folder = model(tmp_path / "m")
    header = {
        "a": {"dtype": "F8_E5M3", "shape": [4], "data_offsets": [0, 4]},
        "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]},
        "c": {"dtype": "F4", "shape": [8], "data_offsets": [6, 12]},
    }
    raw = json.dumps(header).encode()
    (folder / SHARDS[0]).write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(9))
    facts = probe_checkpoint(folder, registry=registry)
    assert codes(facts, "weights") == [
        "checkpoint.unknown-dtype",
        "checkpoint.overlap",
        "checkpoint.tensor-size",
        "checkpoint.truncated",
        "checkpoint.absent-tensor",
        "checkpoint.unlisted-tensors",
    ]
    unknown, overlap, size, cut, absent, _ = (problem for problem in facts.problems if problem.part == "weights")
    assert (unknown.data["dtype"], unknown.data["tensor"]) == ("F8_E5M3", "a")
    assert overlap.data["tensors"] == ("a", "b")
    assert size.data["tensor"] == "c"
    assert cut.data["missing_bytes"] == 3
    assert list(absent.data["absent"]) == [f"layers.0.{part}" for part in "abcd"]


def test_without_an_index_the_names_say_which_files_are_missing(tmp_path: Path, registry: Registry) -> None:
    folder = model(tmp_path / "m")
    (folder / "model.safetensors.index.json").unlink()
    (folder / SHARDS[1]).unlink()
    facts = probe_checkpoint(folder, registry=registry)
    assert codes(facts, "weights") == ["checkpoint.missing-index", "checkpoint.missing-shard"]
    assert facts.problems[1].data == {"missing": (SHARDS[1],), "present": 2}
    assert not facts.index.known


@pytest.mark.parametrize("target", ["../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors"])
def test_a_wild_index_is_refused_and_the_files_are_looked_at_all_the_same(
    tmp_path: Path, registry: Registry, target: str
) -> None:
    folder = model(tmp_path / "m")
    os.truncate(folder / SHARDS[1], 20)
    index = {"weight_map": {"layers.0.a": target}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    facts = probe_checkpoint(folder, registry=registry)
    assert codes(facts, "weights") == ["checkpoint.index", "checkpoint.header-length"]
    assert [shard.state for shard in facts.shards] == ["ok", "header-length", "ok"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks_of_every_kind(tmp_path: Path, registry: Registry, encoding: str) -> None:
    folder = model(tmp_path / "m")
    for name in ("config.json", "model.safetensors.index.json"):
        text = (folder / name).read_text("utf-8")
        (folder / name).write_bytes(text.replace("\n", "\r\n").encode(encoding))
    facts = probe_checkpoint(folder, registry=registry)
    assert codes(facts, "config", "weights") == ["checkpoint.config"]
    assert facts.problems[0].status == "note"
    assert facts.config.value is not None and facts.config.value.model_type == "olmoe"
    with Checkpoint.open(folder) as checkpoint:
        assert len(checkpoint.tensors) == 12


def test_files_that_belong_to_none_are_ignored(tmp_path: Path, registry: Registry) -> None:
    folder = model(tmp_path / "m")
    for name in ("consolidated.safetensors", "model.safetensors"):
        (folder / name).write_bytes(b"anything")
    facts = probe_checkpoint(folder, registry=registry)
    assert facts.ignored == ("consolidated.safetensors", "model.safetensors")
    assert facts.weight_bytes.value == 12 * 16
    (note,) = (problem for problem in facts.problems if problem.part == "weights")
    assert (note.code, note.status, note.data["names"]) == ("checkpoint.ignored-file", "note", facts.ignored)


def test_misplaced_tensors_are_one_warning(tmp_path: Path, registry: Registry) -> None:
    folder = model(tmp_path / "m")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"] |= {"layers.0.a": SHARDS[2], "layers.1.b": SHARDS[0]}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    facts = probe_checkpoint(folder, registry=registry)
    (problem,) = (problem for problem in facts.problems if problem.part == "weights")
    assert problem.status == "warn"
    assert problem.data["files"] == {"layers.0.a": (SHARDS[2], SHARDS[0]), "layers.1.b": (SHARDS[0], SHARDS[1])}


@pytest.mark.parametrize("tool", ["hf", "hf of old", "aria2", "browser"])
def test_what_downloaders_leave_is_no_missing_file(tmp_path: Path, registry: Registry, tool: str) -> None:
    folder = model(tmp_path / "m")
    name = SHARDS[1]
    apart = folder / ".cache" / "huggingface" / "download"
    apart.mkdir(parents=True)
    # By `printf model-00002-of-00003.safetensors.metadata | sha1sum | xxd -r -p | base64`, with - for + as in URLs.
    partial = {
        "hf": apart / "D5-QTaCbl9VUFv9Wr0C28eFewRc=.e3b0c442.incomplete",
        "hf of old": apart / f"{name}.e3b0c442.incomplete",
        "aria2": folder / f"{name}.aria2",
        "browser": folder / f"{name}.crdownload",
    }[tool]
    if tool != "aria2":
        (folder / name).unlink()
    partial.write_bytes(bytes(33))
    facts = probe_checkpoint(folder, registry=registry)
    assert codes(facts, "weights") == ["checkpoint.incomplete-download"]
    assert facts.problems[0].data == {"have_bytes": 33, "partial": partial.name, "file": name}


def test_a_cache_is_found_from_each_of_its_folders(tmp_path: Path, registry: Registry) -> None:
    hub = Path(shutil.copytree(CASES / "A-W05" / "hub", tmp_path / "hub"))
    snapshot = hub / "models--org--x" / "snapshots" / "0123abcd"
    for given in (tmp_path, hub, hub / "models--org--x", snapshot):
        facts = probe_checkpoint(given, registry=registry)
        assert facts.folder.value == snapshot
        state = facts.hub.value
        assert state is not None
        assert (state.repository, state.revision) == ("org/x", "0123abcd")
        assert state.incomplete == (("0000000000000000000000000000000000abc125.incomplete", 700),)
        assert [shard.state for shard in facts.shards] == ["ok", "incomplete-download"]


def test_a_type_that_no_family_has_is_told_with_its_class_and_neighbours(tmp_path: Path, registry: Registry) -> None:
    config = {"model_type": "deepseek_v5", "architectures": ["DeepseekV4ForCausalLM"], "num_hidden_layers": 7}
    facts = probe_checkpoint(model(tmp_path / "m", config), registry=registry)
    (problem,) = (problem for problem in facts.problems if problem.part == "family")
    assert (problem.code, problem.status) == ("family.unknown-type", "fail")
    assert problem.data["architectures"] == ("DeepseekV4ForCausalLM",)
    assert "deepseek_v4" in problem.data["nearest"]
    assert not facts.family.known
    assert facts.config.value is not None and facts.config.value.layers == 7


def test_parts_that_no_text_engine_uses_and_code_that_never_runs(tmp_path: Path, registry: Registry) -> None:
    config = {
        "model_type": "olmoe",
        "auto_map": {"AutoConfig": "configuration_x.XConfig"},
        "vision_config": {"depth": 27},
    }
    folder = model(tmp_path / "m", config)
    marker = tmp_path / "ran"
    (folder / "modeling_x.py").write_text(f"open({str(marker)!r}, 'w')")
    facts = probe_checkpoint(folder, registry=registry)
    assert facts.unused == ("vision_config", "configuration_x.XConfig", "modeling_x.py")
    assert [code for code in codes(facts, "config")] == ["checkpoint.unused-part", "checkpoint.remote-code"]
    assert not marker.exists()


def test_a_tied_embedding_is_counted_once(registry: Registry) -> None:
    for name in ("t1", "t2"):
        facts = probe_checkpoint(CASES / "A-C10" / name, registry=registry)
        assert facts.embedding_bytes.value == 32 * 16 * 2
        assert ("output head" in facts.unused) is (name == "t2")


def test_several_wrong_fields_of_a_config_are_all_told(tmp_path: Path, registry: Registry) -> None:
    text = (
        '{"model_type": "olmoe", "hidden_size": Infinity, "rope_scaling": {"type": "yarn", "factor": -Infinity},'
        ' "quantization_config": {"quant_method": "xq4"}, "num_hidden_layers": 3}'
    )
    folder = model(tmp_path / "m")
    (folder / "config.json").write_text(text)
    facts = probe_checkpoint(folder, registry=registry)
    told = [problem for problem in facts.problems if problem.part == "config" and problem.status == "fail"]
    assert [problem.data.get("field", problem.data.get("name")) for problem in told] == [
        "hidden_size",
        "rope_scaling.factor",
        "xq4",
    ]
    assert facts.config.value is not None and facts.config.value.layers == 3


def test_a_tokenizer_of_another_model(tmp_path: Path, registry: Registry) -> None:
    folder = demo(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for rows, status in ((1023, "fail"), (1024, None), (2047, None), (4096, "warn")):
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": rows}))
        found = probe_checkpoint(folder, registry=registry).problems
        assert [p.status for p in found if p.code == "checkpoint.vocabulary"] == ([status] if status else [])


def test_files_that_hold_less_than_the_config_says(tmp_path: Path, registry: Registry) -> None:
    folder = demo(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    more = {"num_hidden_layers": 5, "n_routed_experts": 16, "compress_ratios": [0, 4, 128, 0, 0]}
    (folder / "config.json").write_text(json.dumps(config | more))
    facts = probe_checkpoint(folder, registry=registry)
    assert {"checkpoint.missing-layers", "checkpoint.missing-experts"} <= set(codes(facts, "roles"))


def rewrite(path: Path, change: dict[str, Any]) -> None:
    """Change what a header says of some tensors; their bytes stay."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    for name, fields in change.items():
        header[name] |= fields
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def test_what_the_engine_would_refuse_is_known_before(tmp_path: Path, registry: Registry) -> None:
    folder = demo(tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    name = "layers.1.attn.wq_a.weight"
    rewrite(folder / index[name], {name: {"shape": [256, 128]}})
    facts = probe_checkpoint(folder, registry=registry)
    (problem,) = facts.problems
    assert (problem.code, problem.part, problem.status) == ("checkpoint.wrong-shape", "roles", "fail")
    assert problem.evidence == "found F8_E4M3 [256, 128]; expected F8_E4M3 [128, 256]"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hc_mult": 17, "o_groups": 3}))
    (problem,) = probe_checkpoint(folder, registry=registry).problems
    assert (problem.code, problem.part) == ("checkpoint.config", "config")
    assert "hc_mult" in str(problem.evidence) and "o_groups" in str(problem.evidence)


def test_a_mirror_that_lacks_a_file(tmp_path: Path, registry: Registry) -> None:
    folder, copy = model(tmp_path / "m"), tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / SHARDS[0]).unlink()
    os.truncate(copy / SHARDS[1], 30)
    facts = probe_checkpoint(folder, registry=registry, mirrors=[folder, copy])
    assert facts.mirrors[0].same == tuple(SHARDS)
    second = facts.mirrors[1]
    assert (second.same, second.missing, second.different) == ((SHARDS[2],), (SHARDS[0],), (SHARDS[1],))
    assert [p.subject for p in facts.problems if p.part == "mirror"] == [str(copy)]


def test_paths_that_are_no_model(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "file.gguf").write_bytes(b"GGUF")
    for path, code in (
        (tmp_path / "none", "checkpoint.no-folder"),
        (tmp_path / "file.gguf", "checkpoint.not-a-folder"),
        (tmp_path / ("x" * 300), "checkpoint.unreadable"),
        (tmp_path / "a\0b", "checkpoint.no-folder"),
    ):
        facts = probe_checkpoint(path, registry=registry)
        assert codes(facts) == [code]
        assert not facts.folder.known


def test_weights_without_a_config_are_looked_at(registry: Registry) -> None:
    facts = probe_checkpoint(CASES / "A-W07", registry=registry)
    assert codes(facts) == ["checkpoint.no-config", "checkpoint.overlap", "checkpoint.no-tokenizer"]


@pytest.mark.full
def test_flash_is_known_from_its_headers_alone(tmp_path: Path, registry: Registry) -> None:
    total = write_sparse_flash(tmp_path)
    facts = probe_checkpoint(tmp_path, registry=registry)
    assert codes(facts) == ["checkpoint.no-tokenizer"]
    assert facts.weight_bytes.value == total == FLASH_BYTES
    assert sum(shard.tensors or 0 for shard in facts.shards) == FLASH_TENSORS
    assert len(facts.shards) == 46
    family = facts.family.value
    assert family is not None and (family.variant, family.context) == ("flash", 1048576)
    assert (facts.layers.value, facts.experts_per_layer.value) == (43, 256)
    assert facts.expert_bytes.value == 13_369_344
    roles = facts.roles.value
    assert roles is not None and sum(role.nbytes for role in roles) == total
