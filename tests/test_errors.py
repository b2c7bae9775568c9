from __future__ import annotations

from coli.errors import CheckpointError


def test_an_escape_sequence_in_a_name_is_shown_not_obeyed() -> None:
    text = CheckpointError("a\x1b[31m\nb", "rule\x07", observed="first\n            second\r", expected="e\x9b").text()
    assert text.splitlines() == [
        "a\\x1b[31m\\nb: rule\\x07",
        "  found:    first",
        "            second\\r",
        "  expected: e\\x9b",
    ]


def test_letters_of_any_script_stay() -> None:
    assert CheckpointError("Grüße/模型", "it is fine").text() == "Grüße/模型: it is fine"


def test_a_value_of_any_length_makes_a_line_that_can_be_read() -> None:
    error = CheckpointError("config.json", "rule", observed="x" * 10**6)
    assert len(error.text()) < 2000 and "(1000000 characters)" in error.text()
    assert error.as_dict()["observed"] == "x" * 10**6


def test_an_empty_subject_is_seen() -> None:
    assert CheckpointError("", "no family has this id").text() == "'': no family has this id"
