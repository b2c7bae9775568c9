from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coli.backends.targets import Target
from coli.build_matrix.arch import Card, native_targets, parse_arch, portable_targets, supports
from coli.build_matrix.matrix import load_matrix
from coli.build_matrix.version import Version
from coli.errors import UsageError

MATRIX = load_matrix()


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("Sm_89", "89"),
        ("sm-89", "89"),
        ("COMPUTE_90", "90-ptx"),
        ("compute90", "90-ptx"),
        ("8.6+ptx 9.0", "86 86-ptx 90"),
        ("compute_86+PTX", "86-ptx"),
        ("86-real;90-virtual", "86 90-ptx"),
        ("  80 ,\t86;; ", "80 86"),
        ('"80;86"', "80 86"),
        ("'sm_90a'", "90a"),
        ("12.0F,12.1", "120f 121"),
        ("10.3a", "103a"),
        ("sm_90,sm_80,90", "90 80"),
    ],
)
def test_spellings(text: str, short: str) -> None:
    arch = parse_arch(text, MATRIX)
    assert [target.short for target in arch.targets] == short.split()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sm_91", "nearest is sm_90"),
        ("sm_102", "nearest is sm_101"),
        ("130", "nearest is sm_121"),
        ("12", "nearest is sm_120"),
        ("nativ", "nearest is native"),
        ("portabel", "nearest is portable"),
        ("hopper", "sm_90 (H100"),
        ("sm_75", "'sm_75' is below sm_80"),
        ("7.5+PTX", "is below sm_80"),
        ("sm_79", "is below sm_80"),
        ("sm_21", "is below sm_80"),
        ("sm_86a", "has no form 'a', there is sm_86"),
        ("90f", "has no form 'f', there is sm_90 and sm_90a"),
        ("portable 86", "'portable' cannot stand in a list"),
        ("native,portable", "cannot stand in a list"),
        ("compute_86-real", "machine code and PTX at once"),
        ("lto_86", "is no target"),
        ("089", "is no target"),
        ("8.10", "is no target"),
        ("８９", "is no target"),
        ("sm_86$(id)", "is no target"),
        ("86\x00", "is no target"),
        ("sm_91 99", "'99' is unknown"),
        ("", "it is empty"),
        ('""', "it is empty"),
        (" ;, ", "it is empty"),
        ("86 " * 400, "longer than"),
        (" ".join(["86"] * 33), "longer than"),
    ],
)
def test_slips_are_refused_with_the_nearest_name(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_arch(text, MATRIX)
    assert says in (caught.value.observed or "")
    assert caught.value.code == f"build.arch-{'below-minimum' if 'below sm_80' in says else 'unknown'}"


def test_all_slips_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse_arch("sm_91 86 sm_75", MATRIX)
    assert caught.value.observed is not None
    assert "sm_91" in caught.value.observed and "sm_75" in caught.value.observed
    assert caught.value.code == "build.arch-unknown"


@given(st.text(max_size=60) | st.text("sm_compute89012.af+PTX-real;, ", max_size=40))
@settings(max_examples=300, deadline=None)
def test_only_digits_and_a_letter_come_through(text: str) -> None:
    try:
        arch = parse_arch(text, MATRIX)
    except UsageError:
        return
    for target in arch.targets:
        assert target.number in MATRIX.architectures
        assert target.suffix in ("", "a", "f")
        for written in (target.name, target.cmake, target.gencode):
            assert set(written) <= set("0123456789abcdefghijklmnopqrstuvwxyz_=,-")


def test_what_compilers_are_given() -> None:
    code, ptx = Target(120, "a"), Target(90, ptx=True)
    assert (code.cmake, ptx.cmake) == ("120a-real", "90-virtual")
    assert (code.gencode, ptx.gencode) == (
        "arch=compute_120a,code=sm_120a",
        "arch=compute_90,code=compute_90",
    )
    assert parse_arch("80;8.6+PTX", MATRIX).text == "sm_80+sm_86+compute_86"


# CUDA's release notes, by hand; 13.0 as `nvcc --list-gpu-arch` prints it.
@pytest.mark.parametrize(
    ("toolkit", "knows"),
    [
        ((11, 0), "80"),
        ((11, 5), "80 86 87"),
        ((11, 8), "80 86 87 89 90"),
        ((12, 4), "80 86 87 89 90"),
        ((12, 8), "80 86 87 89 90 100 101 120"),
        ((12, 9), "80 86 87 89 90 100 101 103 120 121"),
        ((13, 0), "80 86 87 88 89 90 100 103 110 120 121"),
    ],
)
def test_what_each_toolkit_compiles_for(toolkit: tuple[int, int], knows: str) -> None:
    version = Version(*toolkit)
    assert [n for n in MATRIX.architectures if supports(version, Target(n), MATRIX)] == [int(n) for n in knows.split()]


def test_forms_came_later() -> None:
    assert not supports(Version(11, 8), Target(90, "a"), MATRIX)
    assert supports(Version(12, 0), Target(90, "a"), MATRIX)
    assert supports(Version(12, 8, 61), Target(120, "a"), MATRIX)
    assert not supports(Version(12, 8, 61), Target(120, "f"), MATRIX)


@pytest.mark.parametrize(
    ("toolkit", "targets", "left_out"),
    [
        ((13, 0), "80 86 89 90 120 80-ptx 120-ptx", ""),
        ((12, 8), "80 86 89 90 120 80-ptx 120-ptx", ""),
        ((12, 4), "80 86 89 90 80-ptx 90-ptx", "120"),
        ((11, 5), "80 86 80-ptx 86-ptx", "89 90 120"),
        ((11, 0), "80 80-ptx", "86 89 90 120"),
        ((10, 2), "", "80 86 89 90 120"),
    ],
)
def test_portable_shrinks_with_an_older_toolkit(toolkit: tuple[int, int], targets: str, left_out: str) -> None:
    portable = portable_targets(Version(*toolkit), MATRIX)
    assert " ".join(target.short for target in portable.targets) == targets
    assert " ".join(target.short for target in portable.left_out) == left_out


def test_native_is_the_cards_that_can_be_used() -> None:
    native = native_targets(
        [
            Card(0, "RTX 3060", (8, 6)),
            Card(1, "GTX 1080 Ti", (6, 1)),
            Card(2, "RTX 3090", (8, 6)),
            Card(3, "H100", (9, 0)),
            Card(4, "unknown", None),
            Card(5, "T4", (7, 5)),
        ],
        MATRIX,
    )
    assert [target.name for target in native.targets] == ["sm_86", "sm_90"]
    assert [(one.card.index, one.reason) for one in native.skipped] == [
        (1, "below sm_80"),
        (4, "compute capability not known"),
        (5, "below sm_80"),
    ]


def test_cards_younger_than_the_matrix_get_what_runs_on_them() -> None:
    native = native_targets([Card(0, "next", (12, 5)), Card(1, "after", (14, 0))], MATRIX)
    # Machine code runs upwards within a major, PTX across majors.
    assert [target.name for target in native.targets] == ["sm_121", "compute_121"]
    assert len(native.notes) == 2
