"""What a plan is made of: the model from its headers, and the process as it would run it. Pure."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coli.backends.abi.structs import workspace_bytes
from coli.backends.devices.facts import UNKNOWN
from coli.doctor.facts.checkpoint import CheckpointFacts
from coli.doctor.facts.sizes import unpack_sizes
from coli.engine.budget import Demand, basis_items, driver_item, vocabulary_of
from coli.engine.direct import decide_io
from coli.engine.ledger import Item
from coli.engine.run_record import RunRecord
from coli.engine.store import READERS
from coli.errors import FamilyError
from coli.families.registry import BUILT_IN

__all__ = ["DRIVER_BYTES", "Subject", "demand_of", "item_bytes", "subject_of"]

# What a driver and its context take of the RAM, until a run of this model has measured it.
DRIVER_BYTES = 400 << 20
# A process with numpy, the tokenizer and a table of 69 thousand tensors, until a run of this model has measured it:
# 97 MiB with a small vocabulary.
_RUNTIME_BYTES = 128 << 20


@dataclass(frozen=True)
class Subject:
    """A model that is going to run.

    ``family``: as people read it. ``context``: the most that it was made for. ``runtime_bytes``: the resident set of
    a process with everything imported. ``file_bytes``: of all tensors.
    """

    path: str
    family: str
    demand: Demand
    context: int | None
    vocabulary: int
    runtime_bytes: int
    file_bytes: int

    def basis(
        self, threads: int, io: str, available_bytes: int | None, limit_bytes: int, driver_bytes: int | None = None
    ) -> list[Item]:
        """Return what is held before the family asks for anything; how weights are read depends on the memory.

        ``driver_bytes``: what a device's driver takes of the RAM, None without a device.
        """
        direct = decide_io(io, self.file_bytes, available_bytes, limit_bytes) == "direct"
        items = basis_items(self.runtime_bytes, workspace_bytes(threads), self.vocabulary, READERS if direct else None)
        return items if driver_bytes is None else [*items, driver_item(driver_bytes)]

    def page_cached(self, io: str, available_bytes: int | None, limit_bytes: int) -> bool:
        """Tell whether the system may keep the files in memory beside what the engine fills."""
        if io == "direct" or available_bytes is None:
            return False
        return decide_io("auto", self.file_bytes, available_bytes, limit_bytes) == "buffered"


def item_bytes(record: RunRecord | None, name: str, default: int) -> int:
    """Return the bytes that the last run reserved in RAM under ``name``; ``default`` where none is on record."""
    ram = record.tiers.get("ram") if record is not None else None
    items = ram["items"] if ram is not None else []
    return next((int(item["bytes"]) for item in items if item["name"] == name), default)


def subject_of(facts: CheckpointFacts, last_run: RunRecord | None) -> Subject | str:
    """Return the model of a checkpoint's facts; a text that says why there is none to plan.

    Raises what the family's `demand` raises for a geometry that its engine would refuse.
    """
    family, text, packed = facts.family.value, facts.text_config.value, facts.tensor_bytes.value
    if family is None:
        return "its family is not known" + (
            f" ({facts.family.source})" if facts.family.source != UNKNOWN.source else ""
        )
    if text is None or packed is None:
        return f"the sizes of its tensors are not known ({facts.tensor_bytes.source})"
    if family.engine is None:
        return f"the family {family.id} has no engine"
    if family.provider != BUILT_IN.text():
        return "the code of a plugin is run by `coli plan` only"
    sizes = unpack_sizes(packed)
    return Subject(
        str(facts.folder.value or facts.given),
        f"{family.id} ({family.name})",
        demand_of(family.id, family.engine, text, sizes, "config.json"),
        family.context,
        vocabulary_of(text),
        item_bytes(last_run, "runtime", _RUNTIME_BYTES),
        sum(sizes.values()),
    )


def demand_of(
    family: str, engine: str | None, text: Mapping[str, Any], tensor_bytes: Mapping[str, int], source: str
) -> Demand:
    """Return what a family asks for. ``engine``: the entry of its descriptor, beside which `demand.py` lies.

    Raises FamilyError for a family without a budget: zero would be a lie.
    """
    module = (engine or "").partition(":")[0].rpartition(".")[0]
    name = f"{module}.demand"
    try:
        ask: Any = importlib.import_module(name).demand
    except (ImportError, AttributeError) as error:
        if isinstance(error, ImportError) and error.name != name:
            raise
        raise FamilyError(
            source,
            f"the family {family} has no budget, so nothing is planned for it",
            observed=f"no function `demand` in {name}",
            fix="`coli run` works without a plan; the family's author can add demand.py (docs/plan.md)",
            code="family.no-budget",
        ) from None
    found: Demand = ask(text, tensor_bytes, source)
    return found
