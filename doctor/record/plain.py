"""Facts as plain data, for JSON, and back: typed, checked, in one place for every dataclass."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any, TypeVar

import msgspec

__all__ = ["from_plain", "to_plain"]

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Return ``value`` as mappings, lists, texts and numbers; sets are sorted, so that the same facts give the same."""
    return msgspec.to_builtins(value, enc_hook=_encode, order="deterministic")


def from_plain(data: Any, kind: type[T]) -> T:
    """Return what `to_plain` was given. Raises ValueError that says where ``data`` is not of that form."""
    return msgspec.convert(data, kind, dec_hook=_decode)


def _encode(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} is no fact")


def _decode(kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(value, str):
        return Path(value)
    # A number where a path belongs is a mistake in the file, not in coli.
    raise ValueError(f"Expected `{getattr(kind, '__name__', kind)}`, got `{type(value).__name__}`")
