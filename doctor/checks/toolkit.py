"""Checks of CUDA toolkits: building a CUDA backend needs one, running does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from coli.backends.devices import driver_floor, select_devices
from coli.backends.targets import Target
from coli.build_matrix.arch import supports
from coli.build_matrix.choose import ChosenToolkit, choose_toolkit
from coli.build_matrix.matrix import load_matrix
from coli.build_matrix.recipe import Refusal
from coli.build_matrix.toolkits import Toolkit
from coli.build_matrix.version import Version
from coli.doctor.checks.commands import PROFILE, install_driver
from coli.doctor.checks.finding import Check, Evidence, Finding, not_known
from coli.doctor.facts.machine import MachineFacts

__all__ = ["CHECKS", "Way", "newer_toolkit", "take_toolkit"]

_MADE = "coli build --toolkit pypi:13.0"
_MADE_MAJOR = 13


class Way(NamedTuple):
    """What to do, in words, and the commands that do it."""

    text: str
    commands: tuple[str, ...]


def newer_toolkit(facts: MachineFacts) -> Way:
    """Return the way to a newer toolkit: the one that coli makes, where the driver runs what it builds. Pure."""
    devices = facts.devices
    newest = devices.driver.max_cuda.value if devices is not None else None
    if devices is None or newest is None or newest[0] >= _MADE_MAJOR:
        return Way("use a newer toolkit; coli makes one from pinned wheels", (_MADE,))
    own = devices.platform == "linux" and not devices.container  # elsewhere the driver comes from outside
    return Way(
        f"install driver {driver_floor(_MADE_MAJOR)} or later: this one runs CUDA up to {newest[0]}.{newest[1]} and "
        f"refuses what the toolkit makes that coli can provide (CUDA {_MADE_MAJOR})",
        install_driver(facts) if own else (),
    )


def take_toolkit(facts: MachineFacts) -> ChosenToolkit | Refusal | None:
    """Return the toolkit that `coli build` would take without options; None where none is usable. Pure."""
    matrix, toolkits = load_matrix(), facts.toolkits or ()
    if not any(toolkit.usable for toolkit in toolkits):
        return None
    newest = facts.devices.driver.max_cuda.value if facts.devices is not None else None
    wanted = tuple(Target(number) for number in matrix.portable_machine_code)
    return choose_toolkit(None, toolkits, wanted, None if newest is None else Version(*newest), matrix)


def _toolkits(facts: MachineFacts) -> Iterator[Finding]:
    toolkits = facts.toolkits
    if toolkits is None:
        yield not_known("toolkit", "the CUDA toolkits", "nothing looked for them")
        return
    usable = [toolkit for toolkit in toolkits if toolkit.usable]
    for toolkit in toolkits:
        if toolkit.origin in ("CUDA_HOME", "CUDA_PATH") and not toolkit.usable:
            finding = next(finding for finding in toolkit.findings if finding.blocking)
            yield Finding(
                "toolkit.stale-variable",
                "warn",
                f"{toolkit.origin}={toolkit.root} is no usable toolkit: {_short(finding.text, toolkit)}",
                (Evidence(f"{toolkit.origin}={toolkit.root}", "environment"),),
                fix=f"{finding.fix}; {PROFILE}" if finding.fix else PROFILE,
                commands=(f"unset {toolkit.origin}",),
                cost="other programs may mix two toolkits; coli does not use this one",
            )
    if not usable:
        way = newer_toolkit(facts)
        made = way.commands == (_MADE,)
        yield Finding(
            "toolkit.absent",
            "note",
            "no usable CUDA toolkit is installed; only building a CUDA backend needs one",
            tuple(Evidence(f"{toolkit.label}: not usable", toolkit.origin) for toolkit in toolkits),
            fix="`coli build` makes one from pinned wheels when it is needed; nothing has to be installed"
            if made
            else f"nothing has to be done to run; for a build install a toolkit that this driver runs, or {way.text}",
            commands=way.commands if made and _wants_cuda(facts) else (),
        )
        return
    listed = tuple(Evidence(toolkit.label, toolkit.origin) for toolkit in toolkits)
    yield Finding("toolkit.found", "ok", "; ".join(toolkit.label for toolkit in usable), listed)


def _short(text: str, toolkit: Toolkit) -> str:
    """Return what is wrong with a toolkit that a variable names, without the variable and its value."""
    return text.removeprefix(f"{toolkit.origin}={toolkit.root}").lstrip(": ")


def _wants_cuda(facts: MachineFacts) -> bool:
    return facts.devices is not None and bool(select_devices(facts.devices, facts.environment).usable)


def _complete(facts: MachineFacts) -> Iterator[Finding]:
    usable = [toolkit for toolkit in facts.toolkits or () if toolkit.usable]
    if not usable:
        yield Finding("toolkit.none", "skip", "no usable toolkit")
        return
    found = False
    for toolkit in usable:
        for finding in toolkit.findings:
            if finding.code == "driver-stub-missing":  # our libraries never link the driver
                continue
            found = True
            yield Finding(
                f"toolkit.{finding.code}",
                "note",
                finding.text,
                (Evidence(toolkit.label, toolkit.origin),),
                fix=finding.fix,
                cost="building with this toolkit may stop",
            )
    if not found:
        yield Finding("toolkit.complete", "ok", "compiler, headers and libraries are there")


def _fitting(facts: MachineFacts) -> Iterator[Finding]:
    usable = [toolkit for toolkit in facts.toolkits or () if toolkit.usable]
    if not usable:
        yield Finding("toolkit.none", "skip", "no usable toolkit")
        return
    if facts.devices is None or not facts.devices.gpus:
        yield Finding("devices.none", "skip", "no GPU to build for")
        return
    selection = select_devices(facts.devices, facts.environment)
    capabilities = [device.capability.value for device in selection.usable if device.capability.value is not None]
    newest = facts.devices.driver.max_cuda.value
    wanted = tuple(dict.fromkeys(Target(capability.number) for capability in capabilities))
    if not wanted:
        yield Finding("devices.none", "skip", "no GPU to build for")
        return
    chosen = take_toolkit(facts)
    assert chosen is not None  # noqa: S101  one is usable
    if isinstance(chosen, Refusal):
        yield Finding(
            f"build.{chosen.rule}",
            "warn",
            f"{chosen.subject}: {chosen.observed}",
            fix=chosen.fix,
            commands=newer_toolkit(facts).commands,
            cost="a backend for this card cannot be built with what is installed",
        )
        return
    unable = [target.name for target in wanted if not supports(chosen.version, target, load_matrix())]
    if newest is not None and chosen.version.major > newest[0]:
        yield Finding(
            "toolkit.newer-than-driver",
            "warn",
            f"{chosen.toolkit.label} is newer than the driver, which runs CUDA up to {newest[0]}.{newest[1]}",
            (Evidence(chosen.why, chosen.toolkit.origin),),
            fix=f"only a build needs it: install driver {floor} or later, or a toolkit of CUDA {newest[0]}"
            if (floor := driver_floor(chosen.version.major, facts.devices.platform == "windows"))
            else f"only a build needs it: install a newer driver, or a toolkit of CUDA {newest[0]}",
            cost="the driver refuses what is built with it",
        )
    elif unable:
        known = load_matrix().architectures
        first = [known[one.number].forms[""] for one in wanted if one.name in unable and one.number in known]
        yield Finding(
            "toolkit.cannot-target",
            "warn",
            f"{chosen.toolkit.label} cannot make code for {', '.join(unable)}",
            (Evidence(chosen.toolkit.label, chosen.toolkit.origin),),
            fix=f"use CUDA {max(first).short} or later" if first else "use a newer toolkit",
            commands=(_MADE,) if newest is None or newest[0] >= _MADE_MAJOR else (),
            cost="the backend has no machine code for this card",
        )
    else:
        yield Finding("toolkit.fitting", "ok", f"a build takes {chosen.toolkit.label}: {chosen.why}")


CHECKS = (
    Check("toolkit.found", (), ("toolkits", "devices", "settings"), "which CUDA toolkits are installed", _toolkits),
    Check("toolkit.complete", ("toolkit.found",), ("toolkits",), "whether anything is missing in them", _complete),
    Check(
        "toolkit.fitting",
        ("toolkit.found", "driver.state"),
        ("toolkits", "devices", "settings"),
        "whether they can build for these GPUs and this driver",
        _fitting,
    ),
)
