"""What is planned for: families with and without a budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from coli.doctor.plan.subject import demand_of
from coli.errors import FamilyError

CONFIG = {"model_type": "deepseek_v4"}


def test_a_family_without_a_budget_is_not_planned() -> None:
    with pytest.raises(FamilyError, match="has no budget") as refusal:
        demand_of("a family", "coli.families.registry:Registry", CONFIG, {}, "config.json")
    assert refusal.value.code == "family.no-budget"


def test_a_budget_that_cannot_be_imported_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_family").mkdir()
    (tmp_path / "broken_family" / "__init__.py").touch()
    (tmp_path / "broken_family" / "demand.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        demand_of("a family", "broken_family.engine:Engine", CONFIG, {}, "config.json")
