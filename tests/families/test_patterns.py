from __future__ import annotations

import itertools
import random

import pytest

from coli.families.patterns import Pattern, expand, overlap, split_numbers


def test_choices_expand_to_every_combination() -> None:
    found = [".".join(p.segments) for p in expand("a.{b|c.d}.{e|f}")]
    assert found == ["a.b.e", "a.b.f", "a.c.d.e", "a.c.d.f"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("embed.weight", "embed"),
        ("layers.{layer}.attn.wq_a.scale", "attn.wq_a"),
        ("layers.{layer}.ffn.experts.{expert}.w1.weight", "w1"),
        ("layers.{layer}.attn.compressor.ape", "attn.compressor.ape"),
        ("hc_head_fn", "hc_head_fn"),
    ],
)
def test_part_is_the_text_behind_the_numbers(text: str, part: str) -> None:
    assert expand(text)[0].part == part


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a.{layer}.b.{layer}", "twice"),
        ("a.**.b", "not the last"),
        ("a.3.b", "is a number"),
        ("a..b", "not made of"),
        ("a.{b}", "neither"),
        ("a.b*", "not made of"),
        ("a.{b|}", "neither"),
        (".".join(["{a|b}"] * 11), "more than"),
    ],
)
def test_wrong_pattern_says_why(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        expand(text)


def test_numbers_are_canonical_and_cannot_be_forged() -> None:
    assert split_numbers("layers.12.x.0.w1") == (".layers.#.x.#.w1", ["12", "0"])
    assert split_numbers("layers.012.x")[1] == []
    assert split_numbers("layers.1234567.x")[1] == []
    assert split_numbers("layers.#.x") == (".layers.##.x", [])


def test_overlap_agrees_with_trying_names() -> None:
    # A small world of names, tried one by one, judges the decision made from the patterns alone.
    words = ["a", "b", "7"]
    names = [".".join(n) for size in (1, 2, 3) for n in itertools.product(words, repeat=size)]
    choices = ["a", "b", "{layer}", "*"]
    patterns = [
        Pattern(p, "") for size in (1, 2, 3) for p in itertools.product(choices, repeat=size) if p.count("{layer}") < 2
    ]
    patterns += [Pattern((*p.segments, "**"), "") for p in patterns if len(p.segments) < 3]
    sample = random.Random(5).sample(list(itertools.combinations(patterns, 2)), 1500)
    for first, second in sample:
        both = any(first.fits(n) and second.fits(n) for n in names)
        assert overlap(first, second) == both, (first.segments, second.segments)
