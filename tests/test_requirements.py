"""The locked requirements follow pyproject.toml."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]


def test_lock_has_everything_that_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = [
        *project["project"]["dependencies"],
        *project["build-system"]["requires"],
        *project["dependency-groups"]["test"],
    ]
    lock = (ROOT / "ci" / "requirements-test.txt").read_text(encoding="utf-8")
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock, re.MULTILINE):
        locked.setdefault(name.lower(), []).append(version)
    for requirement in map(Requirement, asked):
        versions = locked.get(requirement.name.lower(), [])
        assert versions, f"{requirement.name} is not in the lock; run: nox -s lock"
        assert all(requirement.specifier.contains(version) for version in versions), requirement
