from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).parent / "cases"
sys.path.insert(0, str(CASES))

import adapter  # noqa: E402

PLAYS = adapter.kinds()


@pytest.mark.parametrize("case", list(adapter.find_cases([CASES])), ids=lambda case: str(case.name))
def test_case(case: Path) -> None:
    outcome = adapter.run_case(case, PLAYS)
    if outcome.not_run:
        pytest.skip(f"not run: {outcome.not_run}")
    assert outcome.problems == ()


def test_other_words_for_the_same_cause_and_no_more() -> None:
    assert adapter.matches("fail:hole", "fail:gap") and adapter.matches("no-space-left", "disk-full")
    assert not adapter.matches("fail:hole", "warn:gap") and not adapter.matches("hole", "overlap")
    assert not adapter.matches("ok", "hole")


def write(folder: Path, expect: dict[str, Any], kind: str = "build", **files: Any) -> Path:
    folder.mkdir()
    document = {"id": folder.name, "kind": kind, "title": "", "expect": expect}
    (folder / "expected.json").write_text(json.dumps(document))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_a_case_that_was_never_seen_runs_and_can_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "good", {"table": "arch.json"}, arch=[["sm_90", ["90"]], ["sm_99", "error"]])
    write(tmp_path / "bad", {"table": "arch.json"}, arch=[["sm_90", ["89"]]])
    write(tmp_path / "other", {"x": 1}, kind="weather")
    write(tmp_path / "crash", {"table": "absent.json"})
    assert adapter.main([str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "good    build          ok" in output
    assert "expected ['89'], found ['90']" in output
    assert "not run: nothing answers cases of the kind weather" in output
    assert "FileNotFoundError" in output
    assert "4 cases: 1 ok, 2 failed, 1 not run" in output
    assert adapter.main([str(tmp_path / "good")]) == 0
    (tmp_path / "empty").mkdir()
    assert adapter.main([str(tmp_path / "empty")]) == 2


@pytest.mark.parametrize(
    ("expect", "facts", "agree"),
    [
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {}, False),
        ({"a_in": [None, "12.6"]}, {"a": "12.6"}, True),
        ({"a_in": [None]}, {"a": "12.6"}, False),
        ({"status_at_least": "warn"}, {"status": "fail"}, True),
        ({"status_at_least": "warn"}, {"status": "ok"}, False),
        ({"b_max": 3}, {"b": 4}, False),
        ({"b_between": [1, 3]}, {"b": 3}, True),
        ({"argv_contains_exact": ["/my tools"]}, {"argv": ["-DX=/my tools"]}, True),
        ({"argv_contains_exact": ["/my tools"]}, {"argv": ["-DX=/my", "tools"]}, False),
        ({"g": [{"i": 0}]}, {"g": [{"i": 0, "cc": "8.6"}]}, True),
        ({"g": [{"i": 0}]}, {"g": [{"i": 0}, {"i": 1}]}, False),
        ({"p": "$ROOT/usr"}, {"p": "/usr"}, True),
        ({"a": 1}, {"a": 1, "must_not": ["start ninja"]}, False),
        ({"table": "t"}, {"table": []}, False),
    ],
)
def test_comparison(expect: dict[str, Any], facts: dict[str, Any], agree: bool) -> None:
    assert (not list(adapter.compare(expect, facts))) is agree
