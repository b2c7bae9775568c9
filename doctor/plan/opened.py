"""The model of `coli plan`: opened as a run opens it, up to the first weight, so that its process can be measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from coli.backends.candidates import Search
from coli.backends.loader import Loaded, load
from coli.doctor.plan.subject import Subject, demand_of
from coli.engine.budget import vocabulary_of
from coli.engine.checkpoint import Checkpoint
from coli.engine.host_memory import resident_bytes
from coli.engine.location import child, find_snapshot
from coli.engine.model import open_tokenizer
from coli.families.config_file import read_config
from coli.families.options import require_read
from coli.families.probe import load_engine
from coli.families.registry import Registry
from coli.families.roles import RoleTable
from coli.paths import cache_folder

__all__ = ["Opened", "open_subject"]


class Opened(NamedTuple):
    """A model, and the backend that would run it here."""

    subject: Subject
    loaded: Loaded


def open_subject(path: Path, *, search: Search, plugins: Sequence[str] | None, given: Iterable[str] = ()) -> Opened:
    """Open what a run would open; nothing stays open. ``given``: options that the family must read.

    Raises what opening the model raises.
    """
    folder = find_snapshot(path)
    config = read_config(child(folder, "config.json"))
    resolution = Registry.load(None if plugins is None else tuple(plugins)).resolve(config.data, str(config.path))
    resolution.require_engine(str(config.path))
    descriptor = resolution.descriptor
    require_read(descriptor, given)
    load_engine(resolution.family, cache_folder())
    open_tokenizer(folder)
    with Checkpoint.open(folder) as checkpoint:
        checkpoint.rename(RoleTable(descriptor).canonical)
        loaded = load(None, search)
        resident = resident_bytes()
        sizes = {name: info.nbytes for name, info in checkpoint.tensors.items()}
    subject = Subject(
        str(folder.resolve()),
        f"{descriptor.id} ({resolution.name})",
        demand_of(descriptor.id, descriptor.engine, resolution.text, sizes, str(config.path)),
        resolution.context,
        vocabulary_of(resolution.text),
        resident,
        sum(sizes.values()),
    )
    return Opened(subject, loaded)
