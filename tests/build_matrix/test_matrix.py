from __future__ import annotations

import re
from pathlib import Path

import pytest

from coli.build_matrix import arch, choose, decide, order, recipe
from coli.build_matrix.matrix import load_matrix, parse_cell, read_matrix
from coli.build_matrix.version import Version, parse_version
from coli.errors import UsageError

MATRIX = load_matrix()
FILE = Path(arch.__file__).with_name("matrix.toml")


def test_every_rule_is_used_and_every_used_rule_is_there() -> None:
    source = "".join(Path(module.__file__ or "").read_text("utf-8") for module in (arch, choose, decide, order))
    assert {rule for rule in MATRIX.rules if f'"{rule}"' not in source} == set()
    named = set(re.findall(r'(?:\(matrix,|\n\s+matrix,|matrix\.rule\(|rule=)\s*"([a-z-]+)"', source))
    assert len(named) > 10
    assert named <= set(MATRIX.rules)
    usage = set(recipe._USAGE_RULES)
    assert usage <= set(MATRIX.rules)


def test_cells_have_the_ids_of_their_fields() -> None:
    assert MATRIX.cells["cpu-x86-64-v4"].level == "x86-64-v4"
    assert MATRIX.cells["cpu-x86-64-v4"].machines == ("x86_64",)
    cell = MATRIX.cells["cuda13.0-portable-tc-generic"]
    assert (cell.kind, cell.toolkit, cell.arch, cell.tensor_cores, cell.flavour) == (
        "cuda",
        Version(13, 0),
        "portable",
        True,
        "generic",
    )
    assert {tag for one in MATRIX.cells.values() for tag in one.tags} == {"cpu", "cuda", "ci"}
    assert all(("cpu" in one.tags) == (one.kind == "cpu") for one in MATRIX.cells.values())


def test_cells_that_are_not_listed_are_read_too() -> None:
    cell = parse_cell("cuda12.6-sm_80+sm_90a+compute_90-notc-generic")
    assert (cell.toolkit, cell.arch, cell.tensor_cores) == (Version(12, 6), "sm_80+sm_90a+compute_90", False)


@pytest.mark.parametrize(
    "text", ["", "cuda13.0", "cuda13-portable-tc-generic", "cpu-avx2", "cuda13.0-../x-tc-generic", "cpu-neon\n"]
)
def test_other_ids_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cell(text)
    assert caught.value.code == "build.cell-unknown"


def test_a_matrix_with_a_slip_is_not_read() -> None:
    text = FILE.read_text("utf-8")
    with pytest.raises(ValueError, match="no rule"):
        read_matrix(text.replace('refused_by = "arch-needs-toolkit"', 'refused_by = "arch-needs-luck"'))
    with pytest.raises(ValueError, match="twice"):
        read_matrix(text.replace("number = 121", "number = 120"))
    with pytest.raises(ValueError, match="not a version"):
        read_matrix(text.replace('minimum = "11.1"', 'minimum = "eleven"'))
    with pytest.raises(ValueError, match="schema"):
        read_matrix(text.replace("schema = 1", "schema = 2"))


# NVIDIA's release notes and installation guides, by hand.
@pytest.mark.parametrize(
    ("toolkits", "gcc"),
    [("11.4 11.8", 11), ("12.0 12.3", 12), ("12.4 12.6", 13), ("12.8 12.9", 14), ("13.0 13.3", 15), ("13.5", 16)],
)
def test_newest_gcc_where_no_header_tells(toolkits: str, gcc: int) -> None:
    for text in toolkits.split():
        version = parse_version(text)
        assert version is not None
        assert MATRIX.bounds_for(version).gcc == gcc
        assert "matrix.toml" in MATRIX.bounds_for(version).source


def test_versions() -> None:
    assert parse_version("12.8.93") == Version(12, 8, 93)
    assert Version(12, 10) > Version(12, 9, 1)
    assert (Version(12, 8).text, Version(12, 8, 93).short, Version(14, 2).full) == ("12.8", "12.8", "14.2.0")
    for text in ("12", "12.8.1.2", "v12.8", "12.x", "", "١٢.٨", "1" * 400 + ".0"):
        assert parse_version(text) is None
