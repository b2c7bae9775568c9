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


@pytest.mark.parametrize(
    ("config", "source", "layers", "experts"),
    [
        (
            {"llm_config": {"num_hidden_layers": 9, "n_routed_experts": 5}, "vision_config": {"depth": 3}},
            "llm_config",
            9,
            5,
        ),
        ({"language_config": {"n_layer": 4, "moe_num_experts": 6}}, "language_config", 4, 6),
        (
            {"thinker_config": {"text_config": {"num_layers": 2}, "audio_config": {}}},
            "thinker_config.text_config",
            2,
            None,
        ),
        ({"text_config": {"text_config": {"n_layers": 7, "num_local_experts": 8}}}, "text_config.text_config", 7, 8),
        ({"num_hidden_layers": 3, "num_experts": 2, "text_config": {"model_type": "x"}}, None, 3, 2),
        ({"num_hidden_layers": 27, "text_config": {"num_hidden_layers": 40}}, "text_config", 40, None),
        ({"thinker_config": {"num_hidden_layers": 1}}, None, None, None),
    ],
)
def test_nestings(config: dict[str, Any], source: str | None, layers: int | None, experts: int | None) -> None:
    found = config_facts(config)
    assert (found.text_source, found.layers, found.experts) == (source, layers, experts)


@pytest.mark.parametrize(
    ("table", "want"),
    [
        (
            {"quant_method": "fp8", "weight_block_size": [64, 32], "scale_fmt": "ue8m0"},
            ("fp8", (64, 32), "ue8m0", False),
        ),
        ({"quant_method": "fp8", "scale_fmt": None}, ("fp8", None, "float32", False)),
        ({"quant_method": "FP8"}, ("fp8", None, "float32", False)),
        ({"quant_method": "mxfp4"}, ("mxfp4", None, "ue8m0", False)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("modelopt", None, None, False)),
        ({"producer": {"name": "modelopt"}, "quant_algo": "MIXED_PRECISION"}, ("modelopt", None, None, True)),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "naive-quantized",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float", "block_structure": "128x64"}}},
            },
            ("compressed-tensors", (128, 64), "float32", False),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "mixed-precision",
                "config_groups": {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}}},
            },
            ("compressed-tensors", None, None, True),
        ),
    ],
)
def test_quantization_variants(table: dict[str, Any], want: tuple[Any, ...]) -> None:
    for config in (
        {"quantization_config": table},
        {"quantization_config": None, "text_config": {"quantization_config": table}},
    ):
        found = config_facts(config).quantization
        assert found is not None
        assert (found.method, found.block, found.scale, found.mixed) == want


def test_modules_that_are_not_quantized() -> None:
    for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules"):
        table = {"quant_method": "fp8", key: ["lm_head", "model.norm"]}
        found = config_facts({"quantization_config": table}).quantization
        assert found is not None and found.ignored == ("lm_head", "model.norm")


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({"rope_parameters": {}, "rope_scaling": {"type": "yarn", "factor": 2}, "rope_theta": 5}, ("yarn", 5.0, 2.0)),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 9}}},
            ("linear", 9.0, 8.0),
        ),
        ({"rope_scaling": {"rope_type": "default"}, "rotary_emb_base": 7}, (None, 7.0, None)),
        ({"rope_scaling": {"type": "su", "factor": 4}}, ("longrope", None, 4.0)),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 4}}, ("yarn", None, 4.0)),
        ({"text_config": {"num_hidden_layers": 1, "rope_theta": 3}, "rope_theta": 4}, (None, 3.0, None)),
    ],
)
def test_names_of_rope(config: dict[str, Any], want: tuple[Any, ...]) -> None:
    assert config_facts(config).rope[:3] == want


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ('"torch_dtype": "torch.bfloat16"', "bfloat16"),
        ('"dtype": "bf16"', "bfloat16"),
        ('"torch_dtype": "float16", "text_config": {"num_hidden_layers": 1}', "float16"),
        ('"torch_dtype": null', None),
    ],
)
def test_names_of_dtypes(text: str, dtype: str | None) -> None:
    assert config_facts(json.loads(f"{{{text}}}")).dtype == dtype


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"num_hidden_layers": float("inf")}, "num_hidden_layers"),
        ({"text_config": {"num_hidden_layers": 2, "rope_theta": float("-inf")}}, "text_config.rope_theta"),
        ({"rope_parameters": {"factor": float("inf"), "rope_type": "yarn"}}, "rope_parameters.factor"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"vocab_size": 10**400}, "vocab_size"),
    ],
)
def test_numbers_that_must_be_finite(config: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_facts(config)
    assert caught.value.code == "checkpoint.non-finite"
    assert caught.value.data["field"] == field


def test_one_class_as_a_text_and_a_null_type() -> None:
    found = Registry.load(()).resolve({"model_type": None, "architectures": "OlmoeForCausalLM"})
    assert (found.found_by, found.descriptor.id) == ("architectures", "olmoe")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1,}', "no comma after the last entry"),
        ('{"a": [1, 2, ]}', "no comma after the last entry"),
        ('{"a": 1, // why\n"b": 2}', "comments are not part of JSON"),
        ('{"a": 1 /* why */}', "comments are not part of JSON"),
        ("# a\n{}", "comments are not part of JSON"),
        ("{'a': 1}", "double quotes"),
        ('{"a": True}', "this is how Python writes them"),
        ('{"a": None}', "this is how Python writes them"),
        ('{"a": {"b": 1', "it is cut off"),
        ('{"a": 1\n<<<<<<< HEAD\n}', "unfinished git merge"),
        ('{"a": 1}\0\0\0\0', "filled with zeros"),
    ],
)
def test_texts_that_are_nearly_json_say_why(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        read_config(tmp_path)
    assert caught.value.code == "checkpoint.config"
    assert says in str(caught.value.expected)
    assert "line " in str(caught.value.observed)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_byte_order_marks(tmp_path: Path, encoding: str) -> None:
    mark = "\ufeff" if encoding != "utf-8-sig" else ""
    (tmp_path / "config.json").write_bytes(f'{mark}{{"name": "größe"}}'.encode(encoding))
    config = read_config(tmp_path)
    assert config.data == {"name": "größe"}
    assert len(config.notes) == 1


def test_half_a_character_of_utf_16(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes("\ufeff{}".encode("utf-16-le") + b"\x20")
    with pytest.raises(CheckpointError, match="is not UTF-16"):
        read_config(tmp_path)
