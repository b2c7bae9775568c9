"""The versions of coli, of Python and of the packages that coli stands on."""

from __future__ import annotations

import importlib.util
import platform
import re
from dataclasses import dataclass
from importlib import metadata

from coli.backends.devices.facts import Fact

__all__ = ["Package", "VersionFacts", "probe_versions"]


@dataclass(frozen=True)
class Package:
    """A distribution that coli needs. ``requirement`` as coli's metadata has it."""

    name: str
    requirement: str
    version: Fact[str]


@dataclass(frozen=True)
class VersionFacts:
    """``extension``: file of the compiled module, absent when this installation has none."""

    coli: Fact[str]
    python: str
    implementation: str
    machine: str
    packages: tuple[Package, ...]
    extension: Fact[str]


def probe_versions() -> VersionFacts:
    """Read the metadata of what is installed. Nothing is imported."""
    try:
        own = metadata.distribution("coli")
        coli, requirements = Fact.of(own.version, "metadata of coli"), own.requires or []
    except metadata.PackageNotFoundError:
        coli, requirements = Fact.absent("no metadata of coli: it runs from its sources"), []
    spec = importlib.util.find_spec("coli.backends._host")
    source = "coli.backends._host"
    extension = Fact.of(str(spec.origin), source) if spec is not None else Fact[str].absent(f"no module {source}")
    return VersionFacts(
        coli,
        platform.python_version(),
        platform.python_implementation(),
        platform.machine(),
        tuple(_package(line) for line in requirements if "extra ==" not in line and _applies(line)),
        extension,
    )


def _applies(requirement: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        marker = Requirement(requirement).marker
    except InvalidRequirement:
        return False
    return marker is None or marker.evaluate()


def _package(requirement: str) -> Package:
    found = re.match(r"[\w.-]+", requirement)
    name = found[0] if found else requirement
    try:
        version = Fact.of(metadata.version(name), f"metadata of {name}")
    except metadata.PackageNotFoundError:
        version = Fact.absent(f"no metadata of {name}")
    return Package(name, requirement.partition(";")[0].strip(), version)
