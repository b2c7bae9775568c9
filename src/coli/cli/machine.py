"""The machine that a command asks about: this one, or one in a file, with what `--set` changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coli.settings import Environment, Resolved

if TYPE_CHECKING:
    from coli.doctor.facts.machine import MachineFacts, Request

__all__ = ["machine_request", "recorded_facts"]


def machine_request(settings: Resolved, progress: Callable[[int, int], None] | None = None) -> Request:
    """Return what to look at on this machine, or below `--root`. ``progress``: told of bytes done and to do."""
    from coli.backends.cpu_level import machine_below
    from coli.build_matrix.machine import this_machine
    from coli.cli.session import backend_search
    from coli.doctor.facts.machine import Request
    from coli.paths import cache_folder, data_folder

    plugins = settings["plugins"]
    root = Path(settings["root"] or "/").absolute()
    tree = machine_below(root) if root != Path("/") else None
    return Request(
        settings,
        Environment().for_tools(),
        backend_search(settings),
        root=root,
        machine=tree or this_machine(),
        model=None if settings["model"] is None else Path(settings["model"]).absolute(),
        folders=(("cache", cache_folder()), ("data", data_folder())),
        cache=cache_folder(),
        plugins=None if plugins is None else tuple(plugins),
        deep=settings["deep"],
        measure=settings["measure"],
        progress=progress,
    )


def recorded_facts(settings: Resolved) -> MachineFacts:
    """Return the facts in the file of `--machine`, with the changes of `--set`.

    How a model would be run there is this command's to say, not the record's. Raises UsageError.
    """
    from coli.doctor.facts.settings import SettingsFacts, run_options
    from coli.doctor.record.changes import change_facts
    from coli.doctor.record.machine_file import read_machine

    path = Path(settings["machine"])
    facts = read_machine(path)
    described = replace(facts.settings or SettingsFacts(), run=run_options(settings))
    facts = replace(facts, here=False, name=facts.name or path.stem, settings=described)
    return change_facts(facts, settings["changes"])
