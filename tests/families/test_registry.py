from __future__ import annotations

import subprocess
import sys

import pytest

from coli.errors import FamilyError
from coli.families.descriptor import Descriptor
from coli.families.registry import BUILT_IN, Family, Provider, Registry

KNOWN_WITHOUT_ENGINE = {
    "deepseek_v41", "deepseek_v3", "deepseek_v32", "glm4_moe", "glm_moe_dsa", "kimi_k25", "kimi_linear", "olmoe",
    "qwen3_moe", "inkling", "minimax",
}  # fmt: skip


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load(())


def family(
    ident: str, *types: str, engine: bool = True, aliases: tuple[str, ...] = (), plugin: str | None = None
) -> Family:
    descriptor = Descriptor(
        id=ident, api=">=1", name=ident, origin="test", model_types=types, aliases=aliases,
        engine=f"{ident}.engine:Engine" if engine else None,
    )  # fmt: skip
    return Family(descriptor, Provider("plugin", plugin, "1", "") if plugin else BUILT_IN)


def test_built_in_families(registry: Registry) -> None:
    status = {f.descriptor.id: f.status for f in registry.families()}
    assert status.pop("deepseek_v4") == "engine"
    assert status == dict.fromkeys(KNOWN_WITHOUT_ENGINE, "names only")
    assert registry.refused() == ()


@pytest.mark.parametrize(
    ("model_type", "ident"),
    [
        ("deepseek_v4", "deepseek_v4"),
        ("deepseek_v41", "deepseek_v41"),
        ("kimi_k2", "kimi_k25"),
        ("inkling_mm_model", "inkling"),
        ("minimax_m2", "minimax"),
        ("minimax_text_01", "minimax"),
    ],
)
def test_types_resolve(registry: Registry, model_type: str, ident: str) -> None:
    assert registry.resolve({"model_type": model_type}).descriptor.id == ident


def test_known_without_engine_says_so_with_the_same_exit_code(registry: Registry) -> None:
    with pytest.raises(FamilyError) as known:
        registry.resolve({"model_type": "deepseek_v41"}).require_engine()
    with pytest.raises(FamilyError) as unknown:
        registry.resolve({"model_type": "deepseek_v5"})
    assert known.value.exit_code == unknown.value.exit_code == 1
    assert known.value.code == "family.no-engine" and "DeepSeek V4.1 is known, but has no engine" in str(known.value)
    assert unknown.value.code == "family.unknown-type" and "deepseek_v4" in str(unknown.value.expected)


def test_v41_is_never_run_by_v4(registry: Registry) -> None:
    config = {"model_type": "deepseek_v41", "architectures": ["DeepseekV4ForCausalLM"], "text_config": {"n": 1}}
    found = registry.resolve(config)
    assert found.descriptor.id == "deepseek_v41"
    assert found.text_source == "text_config" and found.text == {"n": 1}


def test_unknown_type_names_neighbours_classes_and_parts(registry: Registry) -> None:
    explanation = registry.explain(
        {
            "model_type": "qwen3_moo",
            "architectures": ["Qwen3MoeForCausalLM", "\x1b[31mRed", 3],
            "text_config": {"model_type": "olmoe"},
        }
    )
    assert explanation.resolution is None and explanation.error is not None
    text = str(explanation.error)
    assert "perhaps qwen3_moe" in text and "Qwen3MoeForCausalLM, ?[31mRed" in text
    why = " / ".join(explanation.why)
    assert "architectures is also used by qwen3_moe, which is not enough" in why
    assert "text_config is of family olmoe, but a part of a model is not the model" in why


def test_ambiguous_class_without_a_type_is_refused() -> None:
    def with_class(ident: str) -> Family:
        return Family(
            Descriptor(id=ident, api=">=1", name=ident, origin="t", model_types=(ident,), architectures=("Shared",)),
            BUILT_IN,
        )

    registry = Registry([with_class("one"), with_class("two")])
    with pytest.raises(FamilyError, match="names no single family"):
        registry.resolve({"architectures": ["Shared"]})


def test_remote_code_is_mentioned_and_not_run(registry: Registry) -> None:
    with pytest.raises(FamilyError, match="never run"):
        registry.resolve({"model_type": "zebra", "auto_map": {"AutoConfig": "x.Y"}})


def test_explain_takes_an_id(registry: Registry) -> None:
    explanation = registry.explain("inkling")
    assert explanation.resolution is not None and explanation.resolution.model_type == "inkling_mm_model"
    assert explanation.error is not None and explanation.error.code == "family.no-engine"


def test_context_is_the_lower_of_family_and_config(registry: Registry) -> None:
    def context(**config: object) -> int | None:
        return registry.resolve({"model_type": "deepseek_v4", **config}).context

    assert context() == 1048576
    assert context(max_position_embeddings=8192) == 8192
    assert context(max_position_embeddings=1 << 40) == 1048576
    assert context(max_position_embeddings=True) == 1048576


def test_get_refuses_with_the_nearest_id(registry: Registry) -> None:
    with pytest.raises(FamilyError) as caught:
        registry.get("deepseek_v5")
    assert "deepseek_v4" in str(caught.value.expected)


# ---- conflicts ------------------------------------------------------------------------------------------------------


def test_plugin_cannot_take_a_family_that_has_an_engine() -> None:
    for thief in (
        family("main", "other", plugin="thief"),
        family("thief", "main_type", plugin="thief"),
        family("thief", "other", aliases=("main_type",), plugin="thief"),
    ):
        registry = Registry([family("main", "main_type"), thief])
        assert [f.descriptor.id for f in registry.families()] == ["main"]
        assert registry.refused()[0].code == "plugin.duplicate"
        assert "belongs to the built-in family main" in registry.refused()[0].reason
        assert registry.resolve({"model_type": "main_type"}).family.provider == BUILT_IN


def test_plugin_with_an_engine_takes_over_a_family_of_names() -> None:
    names = family("olmoe", "olmoe", "olmoe_old", engine=False)
    registry = Registry([names, family("olmoe_run", "olmoe", plugin="runner")])
    assert registry.resolve({"model_type": "olmoe"}).descriptor.id == "olmoe_run"
    assert registry.resolve({"model_type": "olmoe_old"}).descriptor.id == "olmoe"
    registry = Registry([names, family("olmoe", "olmoe", "olmoe_old", plugin="runner")])
    assert [f.provider.source for f in registry.families()] == ["plugin"]
    registry = Registry([names, family("olmoe", "olmoe", engine=False, plugin="runner")])
    assert registry.refused()[0].code == "plugin.duplicate"


def test_two_plugins_that_claim_a_name_are_both_refused() -> None:
    registry = Registry([family("a", "same", plugin="one"), family("b", "x", aliases=("same",), plugin="two")])
    assert registry.families() == ()
    assert [r.provider.distribution for r in registry.refused()] == ["one", "two"]
    assert "also claimed by plugin two 1" in registry.refused()[0].reason
    with pytest.raises(FamilyError, match="provides it, but model type same is also claimed"):
        registry.resolve({"model_type": "same"})


def test_importing_the_registry_is_light() -> None:
    # Counted, not timed: what start-up must not drag in.
    code = (
        "import sys; from coli.families.registry import Registry; Registry.load();"
        "print(*sorted(m for m in sys.modules if m.partition('.')[0] in"
        " {'numpy', 'rich', 'tokenizers', 'jinja2', 'subprocess', 'platformdirs', 'psutil', 'asyncio'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.stdout.strip() == ""
