"""What a plan is made of: the model from its headers, the process as it would run it, the memory of the machine."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coli.backends.abi.structs import workspace_bytes
from coli.backends.candidates import Search
from coli.backends.loader import Loaded, load
from coli.engine.budget import Demand, basis_items, driver_item
from coli.engine.checkpoint import Checkpoint
from coli.engine.direct import decide_io
from coli.engine.host_memory import resident_bytes
from coli.engine.ledger import Item
from coli.engine.location import child, find_snapshot
from coli.engine.model import open_tokenizer, vocabulary_of
from coli.engine.store import READERS
from coli.errors import FamilyError
from coli.families.config_file import read_config
from coli.families.probe import load_engine
from coli.families.registry import Registry, Resolution
from coli.families.roles import RoleTable
from coli.paths import cache_folder

__all__ = ["Subject", "demand_of", "read_subject"]


@dataclass(frozen=True)
class Subject:
    """A model that is going to run in this process, with everything imported that a run imports.

    ``resident_bytes``: the resident set with that. ``file_bytes``: of all tensors.
    """

    path: Path
    resolution: Resolution
    demand: Demand
    resident_bytes: int
    loaded: Loaded
    tensors: int
    file_bytes: int

    def basis(
        self, threads: int, io: str, available_bytes: int | None, limit_bytes: int, driver_bytes: int | None = None
    ) -> list[Item]:
        """Return what is held before the family asks for anything; how weights are read depends on the memory.

        ``driver_bytes``: what a device's driver takes of the RAM, None without a device.
        """
        direct = decide_io(io, self.file_bytes, available_bytes, limit_bytes) == "direct"
        vocabulary = vocabulary_of(self.resolution)
        items = basis_items(self.resident_bytes, workspace_bytes(threads), vocabulary, READERS if direct else None)
        return items if driver_bytes is None else [*items, driver_item(driver_bytes)]

    def page_cached(self, io: str, available_bytes: int | None, limit_bytes: int) -> bool:
        """Tell whether the system may keep the files in memory beside what the engine fills."""
        if io == "direct" or available_bytes is None:
            return False
        return decide_io("auto", self.file_bytes, available_bytes, limit_bytes) == "buffered"


def read_subject(path: Path, *, search: Search, plugins: Sequence[str] | None) -> Subject:
    """Open what a run would open, up to the first weight; nothing stays open. Raises what opening the model raises."""
    folder = find_snapshot(path)
    config = read_config(child(folder, "config.json"))
    resolution = Registry.load(None if plugins is None else tuple(plugins)).resolve(config.data, str(config.path))
    resolution.require_engine(str(config.path))
    load_engine(resolution.family, cache_folder())
    open_tokenizer(folder)
    with Checkpoint.open(folder) as checkpoint:
        checkpoint.rename(RoleTable(resolution.descriptor).canonical)
        loaded = load(None, search)
        resident = resident_bytes()
        sizes = {name: info.nbytes for name, info in checkpoint.tensors.items()}
    demand = demand_of(resolution, sizes, str(config.path))
    return Subject(folder.resolve(), resolution, demand, resident, loaded, len(sizes), sum(sizes.values()))


def demand_of(resolution: Resolution, tensor_bytes: Mapping[str, int], source: str) -> Demand:
    """Return what the family asks for. Raises FamilyError for a family without a budget: zero would be a lie."""
    module = (resolution.descriptor.engine or "").partition(":")[0].rpartition(".")[0]
    name = f"{module}.demand"
    try:
        ask: Any = importlib.import_module(name).demand
    except (ImportError, AttributeError) as error:
        if isinstance(error, ImportError) and error.name != name:
            raise
        raise FamilyError(
            source,
            f"the family {resolution.descriptor.id} has no budget, so nothing is planned for it",
            observed=f"no function `demand` in {name}",
            fix="`coli run` works without a plan; the family's author can add demand.py (docs/plan.md)",
            code="family.no-budget",
        ) from None
    found: Demand = ask(resolution.text, tensor_bytes, source)
    return found
