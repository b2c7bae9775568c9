from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

import coli.families.deepseek_v4 as family
from coli.families.descriptor import parse_descriptor
from coli.families.registry import Registry
from coli.families.roles import RoleTable

from . import released

FLASH = {"hidden_size": 4096, "num_hidden_layers": 43, "n_routed_experts": 256}
PRO = {"hidden_size": 7168, "num_hidden_layers": 61, "n_routed_experts": 384}


@pytest.fixture(scope="module")
def table() -> RoleTable:
    file = Path(str(family.__file__)).with_name("family.toml")
    return RoleTable(parse_descriptor(file.read_text("utf-8"), "deepseek_v4"))


def test_flash_every_tensor_and_every_byte(table: RoleTable) -> None:
    tensors = dict([*released.backbone(released.FLASH), *released.first_draft(released.FLASH)])
    assert len(tensors) == released.FLASH_TENSORS
    found = table.inventory(tensors)
    found.require_known("Flash")
    assert found.total_bytes == released.FLASH_BYTES == sum(k.nbytes for k in found.kinds.values())
    assert found.kinds["draft"].tensors == released.FLASH_DRAFT_TENSORS
    # 43 layers, 256 experts, three matrices each with a scale: 8 MiB + 512 KiB of fp4 a matrix of 2048 x 4096 / 2.
    assert found.kinds["expert"].tensors == 43 * 256 * 6
    assert found.kinds["expert"].dtypes == ("I8",)
    assert set(found.expert_bytes.values()) == {3 * (2048 * 2048 + 2048 * 128)}
    assert found.layers == 43 and set(found.experts.values()) == {256}
    assert found.kinds["embedding"].tensors == found.kinds["head"].tensors == 1
    assert found.kinds["router"].tensors == 43 * 2
    assert found.kinds["hyper"].tensors == 43 * 6 + 3
    assert "ignored" not in found.kinds


@pytest.mark.parametrize(
    ("release", "layers", "dtypes"),
    [
        (released.PRO, 61, ("I8",)),
        (released.FLASH_BASE, 43, ("F8_E4M3",)),
        (released.PRO_BASE, 61, ("F8_E4M3",)),
    ],
    ids=["pro", "flash-base", "pro-base"],
)
def test_other_releases(table: RoleTable, release: released.Release, layers: int, dtypes: tuple[str, ...]) -> None:
    few = release._replace(experts=3)  # the shapes of experts repeat; their number is Flash's test
    found = table.inventory([*released.backbone(few), *released.first_draft(few)])
    found.require_known("release")
    assert found.layers == layers
    assert found.kinds["expert"].dtypes == dtypes
    assert sum(k.nbytes for k in found.kinds.values()) == found.total_bytes


def test_0731_whatever_is_below_mtp_is_draft(table: RoleTable) -> None:
    names = [*(n for n, _ in released.backbone(released.FLASH)), *released.drafter_names(released.FLASH)]
    assert len(names) == released.FLASH_0731_TENSORS
    roles = {name: table.classify(name) for name in names}
    drafts = {n: r for n, r in roles.items() if r.kind == "draft"}
    assert all(n.startswith("mtp.") for n in drafts)
    assert tuple(Counter(r.layer for r in drafts.values()).values()) == released.FLASH_0731_DRAFT
    for leaf in ("norm.weight", "embed.weight", "anything.new", "ffn.experts.3.w9.weight", "0.1.2"):
        assert table.classify(f"mtp.1.{leaf}").kind == "draft"
    assert table.find("mtp.norm.weight") is None


def test_parts_name_what_plan_and_loader_need(table: RoleTable) -> None:
    parts: dict[str, set[str]] = {}
    for name, _ in released.backbone(released.FLASH._replace(experts=1)):
        role = table.classify(name)
        parts.setdefault(role.kind, set()).add(role.part)
    assert parts["expert"] == {"w1", "w2", "w3"}
    assert parts["router"] == {"ffn.gate", "ffn.gate.bias", "ffn.gate.tid2eid"}
    assert parts["norm"] == {
        "norm", "attn_norm", "ffn_norm", "attn.q_norm", "attn.kv_norm", "attn.compressor.norm",
        "attn.indexer.compressor.norm",
    }  # fmt: skip
    assert parts["dense"] == {
        "attn.wq_a", "attn.wq_b", "attn.wkv", "attn.wo_a", "attn.wo_b", "attn.attn_sink",
        "attn.compressor.ape", "attn.compressor.wkv", "attn.compressor.wgate",
        "attn.indexer.wq_b", "attn.indexer.weights_proj",
        "attn.indexer.compressor.ape", "attn.indexer.compressor.wkv", "attn.indexer.compressor.wgate",
        "ffn.shared_experts.w1", "ffn.shared_experts.w2", "ffn.shared_experts.w3",
    }  # fmt: skip


def test_names_that_save_pretrained_writes(table: RoleTable) -> None:
    # Measured on Transformers 5.24: a prefix before most names, and four names of its own.
    aliases = {
        "model.embed_tokens.weight": "embed.weight",
        "model.norm.weight": "norm.weight",
        "head.weight": "head.weight",
        "model.hc_head.hc_fn": "hc_head_fn",
        "model.hc_head.hc_base": "hc_head_base",
        "model.hc_head.hc_scale": "hc_head_scale",
        "model.layers.7.attn.norm.weight": "layers.7.attn.kv_norm.weight",
        "model.layers.7.attn.compressor.norm.weight": "layers.7.attn.compressor.norm.weight",
        "model.layers.7.ffn.experts.1.w1.weight": "layers.7.ffn.experts.1.w1.weight",
    }
    for written, own in aliases.items():
        assert table.canonical(written) == own
        assert table.classify(written) == table.classify(own)


def test_a_misspelt_leaf_is_unknown(table: RoleTable) -> None:
    names = [n for n, _ in released.backbone(released.FLASH._replace(experts=2))]
    for name in random.Random(3).sample(names, 50):
        assert table.find(name + "x") is None
        assert table.find("x" + name) is None


def test_stages_are_slots_of_the_backend_interface() -> None:
    import coli.backends.abi as abi

    text = (Path(next(iter(abi.__path__))) / "coli_slots.inc").read_text("utf-8")
    for stage in Registry.load(()).get("deepseek_v4").descriptor.stages:
        assert f", {stage}, " in text


@pytest.mark.parametrize(
    ("config", "variant", "revision"),
    [
        ({**FLASH, "expert_dtype": "fp4"}, "flash", None),
        ({**FLASH}, "flash", None),
        ({**PRO}, "pro", None),
        ({**FLASH, "expert_dtype": "fp8"}, "flash-base", None),
        ({**PRO, "expert_dtype": "fp8"}, "pro-base", None),
        ({**FLASH, "dspark_block_size": 5}, "flash-0731", "0731"),
        ({**PRO, "dspark_block_size": 5}, "pro-0813", "0731"),
        ({**FLASH, "n_routed_experts": 160, "dspark_block_size": 5}, "other-0731", "0731"),
        ({"hidden_size": 256, "num_hidden_layers": 4, "n_routed_experts": 8}, None, None),
    ],
)  # fmt: skip
def test_variants_and_revisions(config: dict[str, object], variant: str | None, revision: str | None) -> None:
    found = Registry.load(()).resolve({"model_type": "deepseek_v4", **config})
    assert (found.variant.id if found.variant else None, found.revision) == (variant, revision)
    assert found.descriptor.engine == "coli.families.deepseek_v4.engine:Engine"
