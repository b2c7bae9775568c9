"""DeepGEMM's headers: found below a folder, and held against what the adapter was written for."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from coli.build_matrix.deepgemm import KERNEL, probe_deepgemm, read_api

# A declaration of the same kind, small enough to count by hand: 4 parameters of the template, 3 of the function.
DECLARATION = """
#pragma once
template <typename T> struct Other { void sm120_split(int a, int b, int c, int d, int e); };
template <uint32_t BLOCK_M,   // rows, of a block
          bool kFlag = true,
          typename cd_t = Pair<int, float>, uint32_t kLast = BLOCK_M>
GLOBAL __launch_bounds__(BLOCK_M + 32, 1) void
sm120_fp8_fp4_gemm_1d1d_impl(cd_t* d, /* a, b */ const Map a,
                             Pair<int, int> pair) {
    other<1, 2>(d, a);
}
"""
SAME = "template<uint32_t BLOCK_M,bool kFlag=true,typename cd_t=Pair<int,float>,uint32_t kLast=BLOCK_M>"


def test_the_declaration_is_counted_and_hashed_without_comments_and_spaces() -> None:
    api, templates, parameters = read_api(DECLARATION)
    assert (templates, parameters) == (4, 3)
    written = SAME + "sm120_fp8_fp4_gemm_1d1d_impl(cd_t*d,const Map a,Pair<int,int>pair)"
    assert api == hashlib.sha256(written.encode()).hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("// rows, of a block", "// other, words", (4, 3)),
        ("other<1, 2>(d, a);", "", (4, 3)),
        ("\n          typename", " typename", (4, 3)),
    ],
)
def test_what_is_no_declaration_does_not_count(old: str, new: str, counts: tuple[int, int]) -> None:
    assert old in DECLARATION
    assert read_api(DECLARATION.replace(old, new)) == (read_api(DECLARATION)[0], *counts)


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        (", uint32_t kLast = BLOCK_M", "", (3, 3)),
        ("bool kFlag = true", "bool kFlag = false", (4, 3)),
        ("cd_t* d, /* a, b */ const Map a", "const Map a, cd_t* d", (4, 3)),
        ("Pair<int, int> pair", "Pair<int, int> pair, int more", (4, 4)),
    ],
)
def test_every_change_of_it_is_another_api(old: str, new: str, counts: tuple[int, int]) -> None:
    assert old in DECLARATION
    api, *found = read_api(DECLARATION.replace(old, new))
    assert api is not None and api != read_api(DECLARATION)[0] and tuple(found) == counts


@pytest.mark.parametrize("text", ["", "sm120_fp8_fp4_gemm_1d1d_impl(", DECLARATION[: DECLARATION.index("pair)")]])
def test_what_cannot_be_read_has_no_api(text: str) -> None:
    assert read_api(text) == (None, 0, 0)


def test_headers_are_found_below_home(tmp_path: Path) -> None:
    assert probe_deepgemm(tmp_path) is None
    include = tmp_path / "deep_gemm/include"
    (include / KERNEL).parent.mkdir(parents=True)
    (include / KERNEL).write_text(DECLARATION)
    found = probe_deepgemm(tmp_path)
    assert found is not None and found == probe_deepgemm(include)
    assert (found.include, found.api) == (include, read_api(DECLARATION)[0])
    (include / "deep_gemm/other.cuh").write_text("// another header\n")
    changed = probe_deepgemm(tmp_path)
    assert changed is not None and changed.api == found.api and changed.sha256 != found.sha256
