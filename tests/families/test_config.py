from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coli.errors import CheckpointError, FamilyError
from coli.families.config_facts import ConfigFacts, config_facts
from coli.families.config_file import MAX_CONFIG_BYTES, read_config
from coli.families.descriptor import Descriptor
from coli.families.registry import BUILT_IN, Family, Registry

CASES = Path(__file__).parent.parent / "cases"


def expected(case: str) -> Any:
    return json.loads((CASES / case / "expected.json").read_text("utf-8"))["expect"]


def facts(*path: str) -> ConfigFacts:
    config = read_config(CASES.joinpath(*path))
    return config_facts(config.data, str(config.path))


def names_only(*types: str, architectures: tuple[str, ...] = ()) -> Family:
    return Family(
        Descriptor(
            id=types[0], api=">=1", name=types[0], origin="test", model_types=types, architectures=architectures
        ),
        BUILT_IN,
    )


def test_c01_nested_text_config() -> None:
    want, found = expected("A-C01"), facts("A-C01", "config.json")
    assert found.model_type == want["model_type"]
    assert found.layers == want["text.layers"]
    assert found.experts == want["text.experts"]
    assert found.text_source == want["text.source"]


def test_c02_architectures_when_there_is_no_type() -> None:
    want = expected("A-C02")
    config = read_config(CASES / "A-C02")
    found = Registry.load(()).resolve(config.data)
    assert (found.found_by, found.model_type) == (want["config.json"]["family_from"], want["config.json"]["model_type"])
    with pytest.raises(FamilyError) as caught:
        Registry.load(()).resolve(read_config(CASES / "A-C02" / "config-none.json").data)
    assert caught.value.code == "family." + want["config-none.json"]["error_kind"]


def test_c03_no_neighbour_and_no_default() -> None:
    table = json.loads((CASES / "A-C03" / "types.json").read_text("utf-8"))
    registry = Registry([names_only(t) for t in table["registered"]])
    for model_type, outcome in table["cases"]:
        config = {"model_type": model_type, "architectures": ["DeepseekV3ForCausalLM"]}
        if outcome == model_type:
            assert registry.resolve(config).descriptor.id == outcome
            continue
        with pytest.raises(FamilyError) as caught:
            registry.resolve(config)
        if outcome.startswith("unknown"):
            assert caught.value.code == "family.unknown-type"
            assert model_type in str(caught.value) and "DeepseekV3ForCausalLM" in str(caught.value)
        else:
            assert caught.value.code in ("family.no-model-type", "family.model-type")


def test_c04_type_before_class() -> None:
    want, found = expected("A-C04"), facts("A-C04", "config.json")
    resolution = Registry.load(()).resolve(read_config(CASES / "A-C04").data)
    assert (resolution.model_type, resolution.found_by) == (want["model_type"], want["family_from"])
    assert resolution.descriptor.id != "deepseek_v3"
    assert found.experts == want["text.experts"]


def test_c05_quantization() -> None:
    want = expected("A-C05")
    for name in ("q1", "q2", "q3", "q4"):
        found = facts("A-C05", f"{name}.json").quantization
        assert found is not None
        for key, value in want[name].items():
            assert getattr(found, key) == (tuple(value) if isinstance(value, list) else value), (name, key)
    with pytest.raises(CheckpointError) as caught:
        facts("A-C05", "q5.json")
    assert caught.value.code == "checkpoint." + want["q5"]["error_kind"]
    assert caught.value.observed == want["q5"]["name"]


def test_c06_infinity_is_noted_and_nan_refused() -> None:
    want = expected("A-C06")
    config = read_config(CASES / "A-C06")
    assert config_facts(config.data).model_type == want["config.json"]["model_type"]
    assert config.notes == ("time_step_limit[1] is inf",)
    with pytest.raises(CheckpointError) as caught:
        read_config(CASES / "A-C06" / "config-nan.json")
    assert caught.value.code == "checkpoint." + want["config-nan.json"]["error_kind"]
    assert want["config-nan.json"]["field"] in str(caught.value)
    with pytest.raises(CheckpointError, match="rope_theta must be finite"):
        config_facts({"rope_theta": float("inf")})


def test_c07_byte_order_mark_and_crlf() -> None:
    want, config = expected("A-C07"), read_config(CASES / "A-C07")
    found = config_facts(config.data)
    assert (found.model_type, found.layers) == (want["model_type"], want["text.layers"])
    assert config.notes == ("starts with a byte order mark", "has CRLF line ends")


def test_c08_two_generations_of_names() -> None:
    for name, want in expected("A-C08").items():
        found = facts("A-C08", f"{name}.json")
        flat = {"theta": found.rope.theta, "rope": found.rope.kind, "factor": found.rope.factor, "dtype": found.dtype}
        for key, value in want.items():
            assert flat[key] == value, (name, key)


def test_c09_remote_code_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    want = expected("A-C09")
    config = read_config(CASES / "A-C09")
    found = config_facts(config.data)
    explanation = Registry.load(()).explain(config.data)
    assert found.model_type == want["model_type"] == "kimi_k2"
    assert found.remote_code == ("configuration_x.XConfig",)
    assert "never run" in found.notes[0]
    assert explanation.resolution is not None
    places = [tmp_path, CASES / "A-C09"]
    assert any((p / "MARKER-IMPORTED").exists() for p in places) is want["marker_file_exists"]


def test_c10_tied_embeddings() -> None:
    for name in expected("A-C10"):
        assert facts("A-C10", name).tied is True


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"", "checkpoint.config", "the file is empty"),
        (b"{", "checkpoint.config", "line 1, column 2"),
        (b"[1]", "checkpoint.config", "a list at the top"),
        (b'{"a": \xff}', "checkpoint.config", "byte 6 is not UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "checkpoint.config", "Git LFS"),
        (b"[" * 100_000, "checkpoint.config", "RecursionError"),
        (b'{"a": ' + b"9" * 5000 + b"}", "checkpoint.config", "ValueError"),
        (b'{"a": {"b": [0, -NaN]}}', "checkpoint.config", "line 1"),
        (b'{"a": {"b": [0, NaN]}}', "checkpoint.non-finite", "a.b[1] must be a number"),
    ],
)
def test_broken_files_have_one_reason(tmp_path: Path, content: bytes, code: str, says: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_config(tmp_path)
    assert caught.value.code == code
    assert says in str(caught.value)
    assert str(tmp_path / "config.json") == caught.value.subject


def test_missing_and_too_large(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        read_config(tmp_path)
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    with pytest.raises(CheckpointError, match="16 MiB"):
        read_config(tmp_path)


def test_repeated_keys_and_large_numbers_are_noted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1, "b": {"c": 1, "c": 2}, "big": 1e999}')
    config = read_config(tmp_path)
    assert config.data["b"] == {"c": 2}
    assert config.notes == ("key 'c' is there twice, the last one counts", "big is inf")


def test_unknown_facts_are_none() -> None:
    found = config_facts({})
    assert found[:2] == (None, ())
    assert all(value is None for value in found[2:11])
    assert config_facts({"num_hidden_layers": True, "hidden_size": "4096", "rope_theta": "x"}).layers is None


def test_dtype_under_two_names_that_differ() -> None:
    found = config_facts({"dtype": "float16", "torch_dtype": "bfloat16"})
    assert found.dtype == "float16"
    assert "differ" in found.notes[0]
