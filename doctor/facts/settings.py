"""The settings in force that are not defaults, where each comes from, and the variables that other programs read."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coli.settings import SETTINGS, Resolved, find
from coli.settings.table import Setting

__all__ = ["RunOptions", "SettingValue", "SettingsFacts", "Variable", "probe_settings", "run_options"]

_MAX_CHARACTERS = 4096
_WORDS = ("system", "stop")

# What changes how CUDA, the compilers and the loader of the system behave. PATH is long and says little.
_FOREIGN = (
    "CC",
    "CONDA_PREFIX",
    "CUDA_ARCH",
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CXX",
    "DEEPGEMM",
    "DEEPGEMM_HOME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NO_TC",
    "NVCC_APPEND_FLAGS",
    "NVCC_CCBIN",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "VIRTUAL_ENV",
)


@dataclass(frozen=True)
class SettingValue:
    """A setting that somebody set: its value as text, and where: ``option``, ``variable`` or ``file``, and its name."""

    name: str
    value: str
    kind: str
    origin: str


def _shown(setting: Setting, value: Any) -> str:
    text = setting.kind.show(value)
    # What somebody says to a model tells nothing about a machine, and a report is shown to others.
    return f"{len(text)} characters" if setting.name in _WORDS else text[:_MAX_CHARACTERS]


@dataclass(frozen=True)
class Variable:
    """A variable of the environment."""

    name: str
    value: str


@dataclass(frozen=True)
class RunOptions:
    """What a run would be given, for its plan. None: nobody set it."""

    context: int | None = None
    prefill_chunk: int = find("prefill_chunk").default
    ram_bytes: int | None = None
    vram_bytes: int | None = None
    gpu: str | None = None
    threads: int | None = None
    io: str = find("io").default


def run_options(settings: Resolved) -> RunOptions:
    """Return what ``settings`` say of a run."""
    return RunOptions(
        settings["context"] if settings.origin("context").kind != "default" else None,
        settings["prefill_chunk"],
        settings["ram"],
        settings["vram"],
        settings["gpu"],
        settings["threads"],
        settings["io"],
    )


@dataclass(frozen=True)
class SettingsFacts:
    """``run``: what a run would be given. ``notes``: what the settings say about names that are not ours.

    ``superuser``: this is root; None: not known.
    """

    values: tuple[SettingValue, ...] = ()
    notes: tuple[str, ...] = ()
    variables: tuple[Variable, ...] = ()
    superuser: bool | None = None
    run: RunOptions = RunOptions()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables as a mapping."""
        return {variable.name: variable.value for variable in self.variables}


def probe_settings(settings: Resolved, environment: Mapping[str, str], *, here: bool = True) -> SettingsFacts:
    """Return what of ``settings`` is not a default, and the variables of ``environment`` that others read.

    ``here`` False: the settings are for another machine, on which this process has no user.
    """
    values = [
        SettingValue(
            setting.name,
            _shown(setting, settings[setting.name]),
            settings.origin(setting.name).kind,
            settings.origin(setting.name).text,
        )
        for setting in SETTINGS
        if (setting.variable or setting.toml_key) and settings.origin(setting.name).kind != "default"
    ]
    variables = [Variable(name, environment[name][:_MAX_CHARACTERS]) for name in _FOREIGN if name in environment]
    superuser = None if sys.platform == "win32" or not here else os.geteuid() == 0
    return SettingsFacts(tuple(values), settings.notes, tuple(variables), superuser, run_options(settings))
