"""The packaged canary, the file format, and the libraries that are installed here."""

from __future__ import annotations

import sys
from pathlib import Path

import canary_cases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stubs import floats, hand_canary

from coli.backends.abi import SLOTS
from coli.backends.canary import Case, MatrixData, Scalar, WeightData
from coli.backends.candidates import PACKAGE_LIB, Search
from coli.backends.loader import CANARY, load, survey
from coli.backends.vectors import VectorError, pack_cases, parse_cases


def test_packaged_canary_is_what_exact_arithmetic_says() -> None:
    assert CANARY.read_bytes() == pack_cases(canary_cases.canary_cases())


def test_one_case_by_hand() -> None:
    """Written down byte by byte from the description of the format."""
    data = (
        b"COLIVEC1\x01\0\0\0"
        b"\x0a\0dequantize\x03\0"
        b"\x05\x03\0\0\0"
        + (2).to_bytes(8, "little")
        + (32).to_bytes(8, "little")
        + (3).to_bytes(8, "little")
        + (1).to_bytes(8, "little")
        + b"abcd"
        b"\x01\xfe\xff\xff\xff\xff\xff\xff\xff"
        b"\x04\0\0\0\0" + (1).to_bytes(8, "little") + (2).to_bytes(8, "little") + floats(1, 2) + floats(3, 4)
    )
    case = Case(
        "dequantize",
        (WeightData(3, 2, 32, b"abc", b"d"), Scalar(-2), MatrixData(1, 2, 0, floats(1, 2), floats(3, 4))),
    )
    assert parse_cases(data) == (case,)
    assert pack_cases([case]) == data


def test_every_kind_of_argument_survives() -> None:
    names = {slot.name: len(slot.arguments) for slot in SLOTS}
    weights = (WeightData(3, 2, 32, bytes(32), bytes(2)), WeightData(2, 1, 1, b"x", b"y"))
    values = (None, Scalar(1 << 40), Scalar(0.5), MatrixData(0, 7, 1, b""), weights, (), None, None, None)
    assert len(values) == names["moe"]
    assert parse_cases(pack_cases([Case("moe", values)])) == (Case("moe", values),)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "pass the end"),
        (b"COLIVEC2\0\0\0\0", "magic"),
        (b"COLIVEC1\0\0\0\0x", "follow"),
        (b"COLIVEC1\xff\xff\xff\xff", "cases"),
        (b"COLIVEC1\x01\0\0\0\x03\0adx\x02\0", "not in the slot list"),
        (b"COLIVEC1\x01\0\0\0\x03\0add\x03\0", "not in the slot list"),
        (b"COLIVEC1\x01\0\0\0\x03\0add\x02\0\x09", "tag 9"),
        (b"COLIVEC1\x01\0\0\0\x03\0add\x02\0\x03\0\0\0\0" + b"\xff" * 16, "pass the end"),
        (b"COLIVEC1\x01\0\0\0\x03\0add\x02\0\x03\x05\0\0\0" + bytes(16), "matrix type 5"),
    ],
)
def test_damaged_files(data: bytes, text: str) -> None:
    with pytest.raises(VectorError, match=text):
        parse_cases(data)


@settings(max_examples=200, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=6), cut=st.integers(0, 40)
)
def test_damage_is_a_vector_error(edits: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(hand_canary())
    for at, value in edits:
        data[at % len(data)] = value
    try:
        parse_cases(bytes(data[: len(data) - cut]))
    except VectorError:
        return


@pytest.mark.skipif(sys.platform != "linux", reason="not run: other file names")
def test_installed_libraries_pass(tmp_path: Path) -> None:
    trace = survey(Search(cache_folder=tmp_path))
    names = {row.candidate.name: row for row in trace.candidates}
    assert "cpu-portable" in names, f"no portable backend in {PACKAGE_LIB}"
    for row in trace.candidates:
        refusal = row.refusal
        assert refusal is None or refusal.gate == "cpu", (row.candidate.name, refusal)
    loaded = load(search=Search(cache_folder=tmp_path))
    assert loaded.address != 0 and loaded.name == f"cpu-{trace.machine.split(', ')[1]}"
