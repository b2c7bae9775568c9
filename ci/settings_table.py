"""Write the settings table of a page again: `python ci/settings_table.py docs/guide.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from coli.settings.page import replace_table

if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(replace_table(page.read_text(encoding="utf-8")), encoding="utf-8")
