from __future__ import annotations

from pathlib import Path

from coli.settings import SETTINGS

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"


def test_every_name_is_in_the_guide() -> None:
    page = GUIDE.read_text(encoding="utf-8")
    for setting in SETTINGS:
        for name in (setting.option, setting.variable, setting.toml_key):
            assert name is None or f"`{name}" in page
