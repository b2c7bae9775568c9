from __future__ import annotations

from pathlib import Path

import pytest

from coli.settings import SETTINGS
from coli.settings.page import replace_table

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"


def test_guide_has_the_table_of_today() -> None:
    page = GUIDE.read_text(encoding="utf-8")
    assert replace_table(page) == page, "run: nox -s docs"


def test_every_name_is_in_the_guide() -> None:
    page = GUIDE.read_text(encoding="utf-8")
    for setting in SETTINGS:
        for name in (setting.option, setting.variable, setting.toml_key):
            assert name is None or f"`{name}" in page


def test_page_without_marks() -> None:
    with pytest.raises(ValueError, match="has no"):
        replace_table("# Guide")
