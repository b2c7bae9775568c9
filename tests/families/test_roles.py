from __future__ import annotations

from dataclasses import dataclass

import pytest

from coli.errors import CheckpointError
from coli.families.descriptor import parse_descriptor
from coli.families.roles import Role, RoleTable

TOML = """
id = "tiny"
api = ">=1,<2"
name = "Tiny"
model_types = ["tiny"]
engine = "tiny_family.engine:Engine"
prefix = "model."

[[renames]]
old = "layers.{layer}.mlp.experts.{expert}.{gate_proj|down_proj}.weight"
new = "layers.{layer}.experts.{expert}.{w1|w2}.weight"

[[roles]]
kind = "embedding"
names = ["embed_tokens.weight"]

[[roles]]
kind = "head"
names = ["lm_head.weight"]

[[roles]]
kind = "expert"
names = ["layers.{layer}.experts.{expert}.{w1|w2}.weight"]
scales = ["layers.{layer}.experts.{expert}.{w1|w2}.scale"]

[[roles]]
kind = "expert"
part = "w3"
names = ["layers.{layer}.up.{expert}.weight"]

[[roles]]
kind = "ignored"
names = ["rotary.**", "layers.{layer}.*.inv_freq"]
"""


@dataclass(frozen=True)
class Tensor:
    dtype: str
    nbytes: int


@pytest.fixture
def table() -> RoleTable:
    return RoleTable(parse_descriptor(TOML, "tiny"))


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("embed_tokens.weight", Role("embedding", None, None, "embed_tokens", False)),
        ("model.embed_tokens.weight", Role("embedding", None, None, "embed_tokens", False)),
        ("layers.3.experts.17.w2.weight", Role("expert", 3, 17, "w2", False)),
        ("layers.3.experts.17.w2.scale", Role("expert", 3, 17, "w2", True)),
        ("layers.3.up.5.weight", Role("expert", 3, 5, "w3", False)),
        ("model.layers.0.mlp.experts.9.down_proj.weight", Role("expert", 0, 9, "w2", False)),
        ("rotary.a.1.b", Role("ignored", None, None, "rotary", False)),
        ("layers.4.attn.inv_freq", Role("ignored", 4, None, "inv_freq", False)),
    ],
)
def test_role_of_a_name(table: RoleTable, name: str, role: Role) -> None:
    assert table.classify(name) == role


@pytest.mark.parametrize(
    "name",
    [
        "",
        "rotary",
        "layers.x.experts.1.w1.weight",
        "layers.01.experts.1.w1.weight",
        "layers.#.experts.#.w1.weight",
        "layers.1.experts.1.w4.weight",
        "layers.1.a.b.inv_freq",
        "model.model.embed_tokens.weight",
        "embed_tokens.weight ",
    ],
)
def test_unknown_names_have_no_role(table: RoleTable, name: str) -> None:
    assert table.find(name) is None
    with pytest.raises(CheckpointError, match="1 of unknown role"):
        table.classify(name)


def test_canonical_names_undo_prefix_and_renames(table: RoleTable) -> None:
    assert table.canonical("model.layers.2.mlp.experts.31.gate_proj.weight") == "layers.2.experts.31.w1.weight"
    assert table.canonical("model.embed_tokens.weight") == "embed_tokens.weight"
    assert table.canonical("something.else") == "something.else"


def test_inventory_adds_up_and_reports_unknown_names(table: RoleTable) -> None:
    tensors = {
        "embed_tokens.weight": Tensor("BF16", 100),
        "layers.0.experts.0.w1.weight": Tensor("I8", 10),
        "layers.0.experts.0.w1.scale": Tensor("F8_E8M0", 1),
        "layers.0.experts.1.w1.weight": Tensor("I8", 10),
        "layers.0.experts.1.w1.scale": Tensor("F8_E8M0", 1),
        "layers.2.experts.0.w1.weight": Tensor("I8", 10),
        "layers.2.experts.1.w1.weight": Tensor("F8_E4M3", 20),
        **{f"strange.{letter}": Tensor("F32", 4) for letter in "abcdefghij"},
    }
    found = table.inventory(tensors)
    assert found.total_bytes == 192 == sum(k.nbytes for k in found.kinds.values()) + found.unknown_bytes
    assert found.kinds["expert"] == (6, 52, 2, ("F8_E4M3", "I8"))
    assert found.experts == {0: 2, 2: 2}
    assert found.expert_bytes == {0: 11, 2: None}
    assert found.layers == 3
    with pytest.raises(CheckpointError) as caught:
        found.require_known("model.safetensors")
    assert "10 of unknown role: strange.a, strange.b" in str(caught.value)
    assert "and 2 more" in str(caught.value)
    table.inventory({"lm_head.weight": Tensor("F32", 4)}).require_known("model.safetensors")


def test_tied_embeddings_are_counted_once(table: RoleTable) -> None:
    found = table.inventory([("model.embed_tokens.weight", Tensor("BF16", 1024))])
    assert (found.total_bytes, found.kinds["embedding"].nbytes, found.kinds.get("head")) == (1024, 1024, None)


def test_layers_of_a_drafter_are_no_layers_of_the_model() -> None:
    toml = TOML + '\n[[roles]]\nkind = "draft"\nnames = ["mtp.{layer}.**"]\n'
    found = RoleTable(parse_descriptor(toml, "tiny")).inventory([("mtp.2.x", Tensor("F32", 4))])
    assert (found.layers, found.kinds["draft"].tensors) == (0, 1)
