"""Resolution of settings: option, then variable, then settings file, then default, with the origin kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coli.errors import UsageError
from coli.paths import config_file, user_path
from coli.settings.environment import Environment
from coli.settings.names import incumbent_note, nearest
from coli.settings.table import SETTINGS, Setting

__all__ = ["Origin", "Resolved", "resolve"]

_FILE_LIMIT = 1 << 20  # bytes


@dataclass(frozen=True)
class Origin:
    """Say where a value came from: ``kind`` is option, variable, file or default; ``text`` names it."""

    kind: str
    text: str


class Resolved(Mapping[str, Any]):
    """Hold every setting's value by name, where each came from, and ``notes`` for the user."""

    def __init__(self, values: Mapping[str, tuple[Any, Origin]], notes: tuple[str, ...]) -> None:
        self._values = dict(values)
        self.notes = notes

    def __getitem__(self, name: str) -> Any:
        return self._values[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def origin(self, name: str) -> Origin:
        """Return where the value of ``name`` came from."""
        return self._values[name][1]


def resolve(options: Mapping[str, Any] | None = None, environment: Environment | None = None) -> Resolved:
    """Resolve all settings.

    ``options``: values of the command line by setting name; None means not given. Raises UsageError for a value that
    its kind refuses, and for COLI_* variables and TOML keys that look like misspelt ones of ours.
    """
    environment = environment or Environment()
    options = options or {}
    notes = _check_variables(environment)
    path, table = _read_file(environment)
    values = {setting.name: _one(setting, options, environment, path, table, notes) for setting in SETTINGS}
    return Resolved(values, tuple(notes))


def _one(
    setting: Setting,
    options: Mapping[str, Any],
    environment: Environment,
    path: Path | None,
    table: Mapping[str, Any],
    notes: list[str],
) -> tuple[Any, Origin]:
    kind = setting.kind
    given = options.get(setting.name)
    if given is not None and given != ():
        subject = setting.option or setting.name.upper()
        return (kind.parse if isinstance(given, str) else kind.accept)(given, subject), Origin("option", subject)
    for variable in (setting.variable, *setting.aliases):
        text = environment.get(variable) if variable else None
        if variable is None or text is None:
            continue
        if variable == "NO_COLOR" and text:  # any text, "0" too, means no colour (no-color.org)
            return True, Origin("variable", variable)
        if variable in setting.aliases:
            notes.append(f"{variable} is honoured; {setting.variable} is its name here")
        if not text and not kind.empty:
            continue
        return kind.parse(text, variable), Origin("variable", variable)
    if setting.toml_key is not None and setting.toml_key in table:
        return kind.accept(table[setting.toml_key], f"{path}: {setting.toml_key}"), Origin("file", f"{path}")
    return setting.default, Origin("default", setting.unset if setting.default is None else "default")


def _check_variables(environment: Environment) -> list[str]:
    known = [name for setting in SETTINGS for name in (setting.variable, *setting.aliases) if name]
    notes = []
    for name in environment.names():
        if name in known:
            continue
        note = incumbent_note(name)
        if note is None and (close := nearest(name, known)) is not None:
            raise UsageError(name, "is not a variable of coli", fix=f"did you mean {close}?", code="usage.variable")
        notes.append(note or f"{name} is not a variable of coli and is not read")
    return notes


def _read_file(environment: Environment) -> tuple[Path | None, dict[str, Any]]:
    import sys

    named = environment.get("COLI_CONFIG")
    if named:
        path = user_path(named)
        if path.is_fifo():  # opening it would wait for a writer
            raise UsageError(
                str(path),
                "settings file is a pipe",
                fix="correct or unset COLI_CONFIG",
                code="usage.file",
            )
    else:
        path = config_file()
        if not path.is_file():
            return None, {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with path.open("rb") as stream:
            raw = stream.read(_FILE_LIMIT + 1)
    except OSError as error:
        fix = "correct or unset COLI_CONFIG" if named else "make the file readable"
        raise UsageError(
            str(path), "settings file cannot be read", observed=str(error.strerror), fix=fix, code="usage.file"
        ) from None
    if len(raw) > _FILE_LIMIT:
        raise UsageError(str(path), "settings file is too large", expected="at most 1MiB", code="usage.file")
    try:
        table = tomllib.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(str(path), "settings file is not valid TOML", observed=str(error), code="usage.file") from None
    keys = [setting.toml_key for setting in SETTINGS if setting.toml_key]
    for key in table:
        if key not in keys:
            close = nearest(key, keys)
            raise UsageError(
                f"{path}: {key}",
                "is not a setting",
                expected=", ".join(keys),
                fix=f"did you mean {close}?" if close else "remove it",
                code="usage.key",
            )
    return path, table
