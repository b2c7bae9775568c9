"""The settings table as it stands in docs/guide.md."""

from __future__ import annotations

from coli.settings.table import EVERY, SETTINGS, Setting

__all__ = ["render_table"]


def render_table() -> str:
    """Return the settings as a Markdown table."""
    lines = ["| option | variable | TOML key | default | what |", "|---|---|---|---|---|"]
    lines += [_row(setting) for setting in SETTINGS]
    return "\n".join(lines)


def _row(setting: Setting) -> str:
    option = f"`{' '.join(filter(None, (setting.option, setting.kind.metavar)))}`" if setting.option else ""
    variable = f"`{setting.variable}`" if setting.variable else ""
    key = f"`{setting.toml_key}`" if setting.toml_key else ""
    default = setting.unset if setting.default is None else (setting.kind.show(setting.default) or "none")
    commands = ", ".join(setting.readers) if setting.readers != EVERY else "all"
    cells = (option, variable, key, default, f"{setting.help} ({commands})")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
