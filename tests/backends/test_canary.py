"""The packaged canary, the file format, and the libraries that are installed here."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import canary_cases
import make_canary
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stubs import floats, hand_canary

from coli.backends.abi import SLOTS
from coli.backends.canary import check_cases
from coli.backends.candidates import PACKAGE_LIB, Search
from coli.backends.loader import CANARY, load, survey
from coli.backends.vectors import (
    Case,
    Floating,
    Integer,
    Matrix,
    Weight,
    Weights,
    read_vectors,
    write_vectors,
)


def test_packaged_canary_is_what_exact_arithmetic_says() -> None:
    exact = canary_cases.canary_cases()
    packaged = read_vectors(CANARY.read_bytes())
    assert packaged[: len(exact)] == exact


def test_packaged_canary_has_a_call_of_every_mandatory_stage() -> None:
    stages = {case.stage for case in read_vectors(CANARY.read_bytes())}
    assert {slot.name for slot in SLOTS if slot.kind == "stage" and slot.mandatory} <= stages


def test_packaged_canary_is_what_its_generator_writes() -> None:
    assert CANARY.read_bytes() == make_canary.canary(PACKAGE_LIB / "libcoli_cpu_portable.so")


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def test_one_case_by_hand() -> None:
    """Written down word by word from the description of the format."""
    weight = words(5, 3, 2, 32, 3, 1) + b"abc\0\0\0\0\0" + b"d\0\0\0\0\0\0\0"
    output = words(4, 0, 1, 2) + floats(1, 2) + floats(3, 4)
    data = b"COLIVEC1" + words(1) + b"dequantize".ljust(32, b"\0") + words(3) + weight + words(1, -2) + output
    case = Case(
        "dequantize", (Weight(3, 2, 32, b"abc", b"d"), Integer(-2), Matrix(0, 1, 2, floats(1, 2), floats(3, 4)))
    )
    assert read_vectors(data) == [case]
    assert write_vectors([case]) == data
    check_cases([case])


ONE = Matrix(0, 1, 1, floats(1))


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (Case("invented", ()), "'invented' is not a stage"),
        (Case("context_create", (None, None)), "'context_create' is not a stage"),
        (Case("add", (ONE,)), "add: 1 arguments, the slot has 2"),
        (Case("add", (ONE, Integer(3))), "add: y is Integer, the slot has coli_matrix"),
        (Case("swiglu", (ONE, ONE, Integer(1), ONE)), "swiglu: limit is Integer, the slot has float"),
        (Case("swiglu", (ONE, ONE, Floating(1 << 40), ONE)), "swiglu: limit is Floating"),
        (Case("kv_append", (ONE, None, ONE)), "kv_append: position is NoneType"),
        (Case("dequantize", (Weights(()), Integer(0), ONE)), "dequantize: weight is Weights"),
    ],
)
def test_calls_that_do_not_fit_the_slots(case: Case, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_cases([case])


@settings(max_examples=200, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=6), cut=st.integers(0, 40)
)
def test_damage_is_a_value_error(edits: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(hand_canary())
    for at, value in edits:
        data[at % len(data)] = value
    try:
        check_cases(read_vectors(bytes(data[: len(data) - cut])))
    except ValueError:
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
