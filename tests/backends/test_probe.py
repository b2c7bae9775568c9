"""How a child of the loader ended, from its exit code and what it said, on Linux and on Windows."""

from __future__ import annotations

import json

import pytest

from coli.backends.child import Ended
from coli.backends.gates import judge_answer
from coli.backends.probe import decide_answer

OPENED = [{"step": "start"}, {"step": "open", "error": None, "query": True}]


def ended(code: int, *steps: dict[str, object], errors: str = "") -> Ended:
    output = b"".join(json.dumps(step).encode() + b"\r\n" for step in (*OPENED, *steps))
    return Ended("exit", code, output, errors)


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        (0xC000001D, "illegal instruction"),
        (0xC0000005, "access violation"),
        (0xC00000FD, "stack overflow"),
        (0xC0000409, "fail-fast exception"),
        (0xC06D007E, "exception 0xc06d007e"),
    ],
)
def test_exception_that_ends_a_process_of_windows(code: int, detail: str) -> None:
    answer = decide_answer(ended(code), 30)
    assert (answer.end, answer.detail, answer.last) == ("signal", detail, "open")
    finding = judge_answer(answer, "cpu")[1]
    assert (finding.code, finding.evidence) == ("handshake.crash", f"{detail} while it runs coli_backend_query")


@pytest.mark.parametrize(
    ("crash", "detail"),
    [
        ({"code": 0xC000001D, "text": "[WinError -1073741795] Windows Error 0xc000001d"}, "illegal instruction"),
        ({"code": 0, "text": "exception: access violation reading 0x8"}, "exception: access violation reading 0x8"),
    ],
)
def test_exception_that_python_caught(crash: dict[str, object], detail: str) -> None:
    answer = decide_answer(ended(1, {"step": "crash", **crash}), 30)
    assert (answer.end, answer.detail, answer.last) == ("signal", detail, "open")


def test_exit_codes_that_are_no_exception() -> None:
    assert decide_answer(ended(0), 30).detail == "exit code 0"
    assert decide_answer(ended(3, errors="a\nb"), 30).detail == "exit code 3: b"
    assert decide_answer(Ended("signal", 11), 30).detail == "SIGSEGV"
    assert decide_answer(Ended("timeout"), 2.5).detail == "no answer within 2.5 s"
    assert decide_answer(Ended("not started", errors="no such file"), 30).detail == "no such file"
