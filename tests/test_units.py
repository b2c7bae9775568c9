from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coli.errors import UsageError
from coli.units import parse_size, render_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("12", 12_884_901_888),
        ("12GiB", 12_884_901_888),
        ("12GB", 12_000_000_000),
        ("512MiB", 536_870_912),
        ("512 MiB", 536_870_912),
        ("1.5GiB", 1_610_612_736),
        ("0.1KB", 100),
        ("64kib", 65_536),
        ("1TB", 1_000_000_000_000),
        ("1TiB", 1_099_511_627_776),
        ("7B", 7),
        ("0", 0),
        ("4194304TiB", 1 << 62),
    ],
)
def test_parse(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1GiB", "12G", "12g", "12Gib/s", "1e3", "nan", "inf", "1GiB 2MiB", "1,5GiB", "4194305TiB", "١GiB"],
)
def test_refuse(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_ambiguous_unit_asks() -> None:
    with pytest.raises(UsageError, match="write 12GiB or 12GB"):
        parse_size("12G", "--ram")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (5_848_042, "5.6MiB"),
        (12 << 30, "12GiB"),
        ((12 << 30) - 1, "12GiB"),
        ((1 << 30) - 1, "1GiB"),
        (1023 << 20, "1023MiB"),
        (160_000_000_000, "149GiB"),
        (3 << 50, "3072TiB"),
        (-1536, "-1.5KiB"),
    ],
)
def test_render(nbytes: int, text: str) -> None:
    assert render_size(nbytes) == text


@given(st.integers(0, 1 << 62))
def test_rendered_size_reads_back_within_its_digit(nbytes: int) -> None:
    text = render_size(nbytes)
    assert "1024" not in text.partition(".")[0] or text.endswith("TiB")
    assert abs(parse_size(text) - nbytes) <= max(1, nbytes // 19)
