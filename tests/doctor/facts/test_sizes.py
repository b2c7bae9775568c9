"""Sizes of tensors in few entries: what is written is by hand, and everything comes back."""

from __future__ import annotations

import pytest
from engine.sparse_flash import FLASH_BYTES, FLASH_TENSORS, flash_sizes
from hypothesis import given
from hypothesis import strategies as st

from coli.doctor.facts.sizes import pack_sizes, unpack_sizes

SIZES = {
    "head.weight": 7,
    "layers.0.norm.weight": 4,
    "layers.1.norm.weight": 4,
    "layers.2.norm.weight": 4,
    "layers.4.norm.weight": 4,
    "layers.3.norm.weight": 5,
    "layers.0.experts.0.w1": 16,
    "layers.0.experts.1.w1": 16,
    "layers.0.experts.01.w2": 3,
    "8": 1,
    "9": 1,
}
PACKED = {
    "head.weight": 7,
    "layers.[0-2].norm.weight": 4,
    "layers.4.norm.weight": 4,
    "layers.3.norm.weight": 5,
    "layers.0.experts.[0-1].w1": 16,
    "layers.0.experts.01.w2": 3,
    "[8-9]": 1,
}


def test_neighbours_of_one_size_are_one_entry() -> None:
    assert pack_sizes(SIZES) == PACKED
    assert unpack_sizes(PACKED) == SIZES


def test_flash_is_written_in_a_few_hundred_entries() -> None:
    sizes = flash_sizes()
    packed = pack_sizes(sizes)
    assert packed is not None and len(packed) < 1000
    again = unpack_sizes(packed)
    assert (len(again), sum(again.values())) == (FLASH_TENSORS, FLASH_BYTES)
    assert again == sizes


names = st.lists(st.sampled_from(["a", "w1", "0", "1", "2", "3", "10", "007", ""]), max_size=4).map(".".join)


@given(st.dictionaries(names, st.integers(0, 3), max_size=12))
def test_whatever_is_packed_comes_back(sizes: dict[str, int]) -> None:
    packed = pack_sizes(sizes)
    assert packed is not None
    assert unpack_sizes(packed) == sizes


def test_names_that_look_like_ranges_are_not_packed() -> None:
    assert pack_sizes({"layers.[0-9].x": 1}) is None


@pytest.mark.parametrize("name", ["x.[0-999999999].y", "x.[5-5].y", "x.[7-3].y"])
def test_ranges_that_nobody_packed_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a range of tensors"):
        unpack_sizes({name: 1})
