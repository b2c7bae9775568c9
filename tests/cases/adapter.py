"""Run cases against the real code: `adapter.py DIR [DIR...]`, each DIR a case or a folder of cases.

A case's kind names what finds the facts; they are compared with those of `expected.json`. It lies in one of the modules
`kinds_*.py` beside this file. `KINDS` there is a mapping from kind to a function of the prepared machine that returns
facts.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prepared import Prepared, prepare
from words import same_word

HERE = Path(__file__).parent
STATUSES = ("ok", "note", "warn", "fail")


class NotRun(Exception):
    """A fact cannot be found here; the text says why."""


@dataclass(frozen=True)
class Row:
    """One row of a table: what went in, what must come out, what came out."""

    label: str
    expected: Any
    found: Any
    passed: bool


@dataclass(frozen=True)
class Outcome:
    """How one case went. ``problems`` is empty when it passed; ``not_run`` says why it did not run."""

    id: str
    kind: str
    problems: tuple[str, ...] = ()
    not_run: str | None = None

    @property
    def line(self) -> str:
        said = f"not run: {self.not_run}" if self.not_run else "FAILED" if self.problems else "ok"
        return "\n      ".join((f"{self.id:7} {self.kind:14} {said}", *self.problems))


Play = Callable[[Path, Path], list[str]]
"""Play a case in an empty folder and return what is not as expected."""


def kinds() -> dict[str, Play]:
    """Return what plays each kind."""
    found: dict[str, Play] = {}
    for file in sorted(HERE.glob("kinds_*.py")):
        module = importlib.import_module(file.stem)
        for kind in module.KINDS:
            found[kind] = _of_machine(module.KINDS[kind])
    return found


def _of_machine(function: Callable[[Prepared], dict[str, Any]]) -> Play:
    def play(case: Path, work: Path) -> list[str]:
        machine = prepare(case, work)
        return list(compare(machine.expect, function(machine)))

    return play


def find_cases(folders: list[Path]) -> Iterator[Path]:
    """Yield the case folders in or among ``folders``."""
    for folder in folders:
        if (folder / "expected.json").is_file():
            yield folder
        else:
            yield from sorted(path.parent for path in folder.rglob("expected.json"))


def run_case(case: Path, plays: dict[str, Play]) -> Outcome:
    """Play one case."""
    expected = json.loads((case / "expected.json").read_text("utf-8"))
    id, kind = expected["id"], expected["kind"]
    if kind not in plays:
        return Outcome(id, kind, not_run=f"nothing answers cases of the kind {kind} yet")
    with tempfile.TemporaryDirectory(prefix="case-") as work:
        try:
            return Outcome(id, kind, tuple(plays[kind](case.resolve(), Path(work).resolve())))
        except NotRun as reason:
            return Outcome(id, kind, not_run=str(reason))
        except Exception as error:  # a crash is an outcome of this case, not the end of the others
            return Outcome(id, kind, (f"{type(error).__name__}: {error}",))


def compare(expect: dict[str, Any], facts: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each fact that is not as expected. Rows and broken rules of a case come from its function."""
    for row in facts.get("table", ()):
        if not row.passed:
            yield f"{row.label}: expected {row.expected!r}, found {row.found!r}"
    for broken in facts.get("must_not", ()):
        yield f"must not: {broken}"
    for key, wanted in expect.items():
        if key == "table":
            if not facts.get("table"):
                yield "table: no rows"
            continue
        problem = _compare_one(key, _without_root(wanted), facts)
        if problem:
            yield problem


def _compare_one(key: str, wanted: Any, facts: dict[str, Any]) -> str | None:
    for suffix, agrees in _COMPARISONS.items():
        name = key.removesuffix(suffix)
        if suffix and name != key and key not in facts:
            if name not in facts:
                return f"{name}: no answer"
            return None if agrees(facts[name], wanted) else f"{key}: expected {wanted!r}, found {facts[name]!r}"
    if key not in facts:
        return f"{key}: no answer"
    return None if matches(facts[key], wanted) else f"{key}: expected {wanted!r}, found {facts[key]!r}"


def matches(found: Any, wanted: Any) -> bool:
    """Compare values: of mappings only the expected keys, lists one by one."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and not any(_compare_one(key, wanted[key], found) for key in wanted)
    if isinstance(wanted, list):
        same = isinstance(found, (list, tuple)) and len(found) == len(wanted)
        return same and all(matches(one, other) for one, other in zip(found, wanted, strict=True))
    if isinstance(wanted, bool) or isinstance(found, bool):
        return found is wanted
    if isinstance(wanted, str) and isinstance(found, str) and same_word(found, wanted):
        return True
    return bool(found == wanted)


def _status_at_least(found: Any, wanted: Any) -> bool:
    return STATUSES.index(found) >= STATUSES.index(wanted)


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "_in": lambda found, wanted: any(matches(found, one) for one in wanted),
    "_at_least": _status_at_least,
    "_at_most": lambda found, wanted: STATUSES.index(found) <= STATUSES.index(wanted),
    "_max": lambda found, wanted: found <= wanted,
    "_max_bytes": lambda found, wanted: found <= wanted,
    "_max_mib": lambda found, wanted: found <= wanted,
    "_min_mib": lambda found, wanted: found >= wanted,
    "_min_bytes": lambda found, wanted: found >= wanted,
    "_min": lambda found, wanted: found >= wanted,
    "_between": lambda found, wanted: wanted[0] <= found <= wanted[1],
    # Each text is a whole argument, or the whole value of one: `-Dname=text`.
    "_contains_exact": lambda found, wanted: all(
        any(one == text or one.partition("=")[2] == text for one in found) for text in wanted
    ),
}


def _without_root(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$ROOT", "")
    if isinstance(value, list):
        return [_without_root(one) for one in value]
    return {key: _without_root(one) for key, one in value.items()} if isinstance(value, dict) else value


def main(arguments: list[str]) -> int:
    """Run all cases that are named; exit 1 when one failed, 2 when there was none."""
    plays = kinds()
    outcomes = []
    for case in find_cases([Path(argument) for argument in arguments] or [HERE]):
        outcome = run_case(case, plays)
        outcomes.append(outcome)
        print(outcome.line, flush=True)
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    waiting = sum(outcome.not_run is not None for outcome in outcomes)
    print(f"{len(outcomes)} cases: {len(outcomes) - failed - waiting} ok, {failed} failed, {waiting} not run")
    return 2 if not outcomes else 1 if failed else 0


if __name__ == "__main__":
    sys.modules["adapter"] = sys.modules["__main__"]  # the kinds import Row from here
    sys.exit(main(sys.argv[1:]))
