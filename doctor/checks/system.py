"""Checks of the system and of this installation."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from coli.doctor.checks.finding import Check, Evidence, Finding, not_known, seen
from coli.doctor.facts.machine import MachineFacts

__all__ = ["CHECKS"]

_MACHINES = ("x86_64", "aarch64")


def _platform(facts: MachineFacts) -> Iterator[Finding]:
    system = facts.system
    if system is None:
        yield not_known("system", "the system", "nothing looked at it")
        return
    machine = system.machine.value
    words = [system.name.value or system.platform, system.kernel.value, machine, system.libc.value]
    if system.wsl.value:
        words.append(f"WSL{system.wsl.value}")
    if system.container.value:
        words.append(f"in a container ({system.container.value})")
    shown = ", ".join(word for word in words if word)
    evidence = tuple(
        seen(str(fact.value), fact) for fact in (system.name, system.kernel, system.libc) if fact.value is not None
    )
    if machine is not None and machine not in _MACHINES:
        yield Finding(
            "system.machine",
            "warn",
            f"{shown}: no backend of coli is made for {machine}",
            evidence,
            fix="use a machine of x86-64 or aarch64, or build the portable level from its sources",
            cost="nothing faster than portable code can run",
        )
        return
    yield Finding("system.platform", "ok", shown, evidence)
    if system.wsl.value == 1:
        yield Finding(
            "system.wsl1",
            "warn",
            "WSL1 has no access to a GPU and slow files",
            (seen(f"WSL{system.wsl.value}", system.wsl),),
            fix="turn this distribution into WSL2, in a Windows terminal",
            commands=('wsl.exe --set-version "$WSL_DISTRO_NAME" 2',),
            cost="no GPU, and reading experts is several times slower",
        )


def _installation(facts: MachineFacts) -> Iterator[Finding]:
    versions = facts.versions
    if versions is None:
        yield not_known("system", "the versions", "nothing looked at them")
        return
    wrong: list[Evidence] = []
    for package in versions.packages:
        if package.version.value is None:
            wrong.append(Evidence(f"{package.name} is not installed", package.version.source))
        elif not _fits(package.requirement, package.version.value):
            text = f"{package.name} {package.version.value} is installed, coli needs {package.requirement}"
            wrong.append(Evidence(text, package.version.source))
    python = f"{sys.executable} -m pip" if facts.here else "python -m pip"
    if versions.extension.value is None:
        yield Finding(
            "system.extension",
            "fail",
            "coli's compiled module is missing",
            (Evidence(versions.extension.source, "import path"),),
            fix="install coli again",
            commands=(f"{python} install --force-reinstall coli",),
            cost="no model can run",
        )
    if wrong:
        yield Finding(
            "system.packages",
            "fail",
            f"{len(wrong)} of the packages that coli needs "
            + ("does" if len(wrong) == 1 else "do")
            + " not fit: "
            + "; ".join(evidence.text for evidence in wrong),
            tuple(wrong),
            fix="install coli again, with what it needs",
            commands=(f"{python} install --upgrade coli",),
            cost="parts of coli cannot start",
        )
    elif versions.extension.value is not None:
        shown = f"coli {versions.coli.value or 'from its sources'}, {versions.implementation} {versions.python}"
        yield Finding("system.installation", "ok", f"{shown}, {len(versions.packages)} packages as needed")


def _fits(requirement: str, version: str) -> bool:
    try:
        return Requirement(requirement).specifier.contains(version, prereleases=True)
    except (InvalidRequirement, InvalidVersion):
        return True


CHECKS = (
    Check("system.platform", (), ("system",), "which system this is, and whether coli is made for it", _platform),
    Check("system.installation", (), ("versions",), "whether coli's own installation is complete", _installation),
)
