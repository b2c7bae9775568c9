"""The registry of a case: of exactly the model types that it brings in a list `registered`, else the built-in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coli.families.descriptor import Descriptor
from coli.families.registry import BUILT_IN, Family, Registry

__all__ = ["registry_of"]


def registry_of(case: Path) -> Registry:
    """Return the registry that a case runs on."""
    for file in [case / "expected.json", *sorted(case.glob("*.json"))]:
        try:
            table = json.loads(file.read_text("utf-8-sig"))
        except (ValueError, OSError):
            continue  # the case is about a broken text
        for part in (table, table.get("expect") if isinstance(table, dict) else None):
            if isinstance(part, dict) and isinstance(part.get("registered"), list):
                return Registry([_family(entry) for entry in part["registered"]])
    return Registry.load(())


def _family(entry: str | dict[str, Any]) -> Family:
    """Return a family of names: an entry is a model type, or a mapping with more of them."""
    said: dict[str, Any] = {"model_type": entry} if isinstance(entry, str) else entry
    types = said.get("model_types") or [said.get("model_type") or said["id"]]
    name = str(said.get("id", types[0]))
    return Family(
        Descriptor(
            id=name,
            api=">=1",
            name=name,
            origin="case",
            model_types=tuple(types),
            aliases=tuple(said.get("aliases", ())),
            architectures=tuple(said.get("architectures", ())),
        ),
        BUILT_IN,
    )
