from __future__ import annotations

import pytest

from coli.errors import FamilyError
from coli.families.descriptor import MAX_BYTES, parse_descriptor

GOOD = """
id = "tiny"
api = ">=1,<2"
name = "Tiny"
model_types = ["tiny"]
engine = "tiny_family.engine:Engine"

[[roles]]
kind = "embedding"
names = ["embed.weight"]
"""


def problems(text: str) -> str:
    with pytest.raises(FamilyError) as caught:
        parse_descriptor(text, "tiny/family.toml")
    assert caught.value.subject == "tiny/family.toml"
    assert caught.value.exit_code == 1
    return str(caught.value.observed)


def test_good_descriptor_reads() -> None:
    descriptor = parse_descriptor(GOOD, "here")
    assert descriptor.id == "tiny"
    assert descriptor.types() == ("tiny",)
    assert descriptor.roles[0].names == ("embed.weight",)
    assert descriptor.origin == "here"
    assert descriptor.context.maximum is None


def test_every_problem_is_listed_at_once() -> None:
    text = """
id = "Not An Id"
api = "about one"
model_types = []
architectures = ["A", "A", "not a class"]
engine = "no class here"
colour = "red"
capabilities = ["tools", "flight"]
minimum_compute_capability = 8.0
context = { maximum = -1, minimum = 2 }

[[variants]]
id = "v"
name = "V"

[[roles]]
kind = "butter"
names = ["a.{layer}.b.{layer}"]

[[roles]]
kind = "expert"
names = ["layers.{layer}.experts.{expert}.gate_proj.weight", "experts.w1"]
"""
    found = problems(text)
    for expected in (
        "id: 'Not An Id' is not an id",
        "api: 'about one' is not a version range",
        "name: missing",
        "model_types: []",
        "architectures[1]: 'A' is there twice",
        "architectures[2]: 'not a class' is not a class name",
        "engine: 'no class here' is not module:Class",
        "colour: unknown key, expected one of id, api, name",
        "capabilities[1]: 'flight' is not one of tools, thinking, grammar, vision, ram_budget, cuda",
        "minimum_compute_capability: 8.0 is not a compute capability",
        "context.minimum: unknown key",
        "context.maximum: -1 is not a number of tokens",
        "variants[0]: no match, present or absent",
        "roles[0].kind: 'butter' is not one of embedding",
        "'a.{layer}.b.{layer}': {layer} is there twice",
        "part 'gate_proj' of 'layers.{layer}.experts.{expert}.gate_proj.weight' is not one of w1, w2, w3",
        "'experts.w1' needs {layer} and {expert}",
    ):
        assert expected in found


@pytest.mark.parametrize(
    "names",
    [
        '["embed.weight"]',
        '["embed.*"]',
        '["**"]',
        '["{embed|head}.weight"]',
    ],
)
def test_a_name_with_two_roles_is_refused(names: str) -> None:
    found = problems(GOOD + f'\n[[roles]]\nkind = "dense"\nnames = {names}\n')
    assert "a tensor has one role" in found


def test_renames_keep_their_holes_and_do_not_meet_a_role() -> None:
    assert "differ in holes" in problems(GOOD + '\n[[renames]]\nold = "a.{layer}"\nnew = "embed.weight"\n')
    assert "fit the same name" in problems(GOOD + '\n[[renames]]\nold = "{embed|x}.weight"\nnew = "{y|embed}.weight"\n')


def test_without_an_engine_names_and_types_only() -> None:
    text = GOOD.replace('engine = "tiny_family.engine:Engine"\n', "")
    assert "roles: only with an engine" in problems(text)
    assert "roles: missing" in problems(GOOD.partition("[[roles]]")[0])


@pytest.mark.parametrize("text", ["", "id = ", "\x00", "[" * 5000, "a = 1e"])
def test_broken_toml_is_one_reason(text: str) -> None:
    assert problems(text)


def test_size_is_bounded_before_parsing() -> None:
    assert "larger than" in problems("#" * (MAX_BYTES + 1))


def test_a_flag_is_not_a_number_in_a_variant() -> None:
    text = GOOD + '\n[[variants]]\nid = "v"\nname = "V"\nmatch = { tied = true, layers = 1 }\n'
    variant = parse_descriptor(text, "here").variants[0]
    assert variant.applies({"tied": True, "layers": 1})
    assert not variant.applies({"tied": 1, "layers": 1})
    assert not variant.applies({"tied": True, "layers": True})
    assert not variant.applies({"tied": True})
