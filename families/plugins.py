"""Plugins: installed packages that provide families, found and judged without running their code in this process.

An entry point of the group `coli.families` names a top-level package; `family.toml` lies in that package's folder and
is found through its import spec, which imports nothing. The engine is imported first in a child process with a deadline
(`coli.families.probe`), so a plugin that raises, hangs or crashes is a row in `coli families` and nothing else.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

from coli.errors import FamilyError
from coli.families.descriptor import API_VERSION, MAX_BYTES, Descriptor, parse_descriptor

__all__ = ["GROUP", "Plugin", "Provider", "Refusal", "discover"]

GROUP = "coli.families"

_PACKAGE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


class Provider(NamedTuple):
    """Who provides a family: `built in` or `plugin`, distribution and version, and the folder of the package."""

    source: str
    distribution: str
    version: str
    path: str

    def text(self) -> str:
        """Return `built in` or `plugin name version`."""
        return self.source if self.source != "plugin" else f"plugin {self.distribution} {self.version}"


class Refusal(NamedTuple):
    """A plugin that is installed but not used: a stable code, the reason, the model types it would have provided."""

    provider: Provider
    code: str
    reason: str
    model_types: tuple[str, ...] = ()


class Plugin(NamedTuple):
    """A plugin whose descriptor is good. Its engine has not been imported."""

    descriptor: Descriptor
    provider: Provider


class _Entry(NamedTuple):
    package: str
    distribution: str
    version: str


def discover(allowed: tuple[str, ...] | None) -> tuple[list[Plugin], list[Refusal]]:
    """Read the descriptors of installed plugins: usable ones, and refusals with reasons.

    ``allowed``: distribution or package names; None: all, empty: none. Never raises for what a plugin did.
    """
    plugins: list[Plugin] = []
    refused: list[Refusal] = []
    names = None if allowed is None else {_normal(name) for name in allowed}
    seen: set[tuple[str, str]] = set()
    for entry in _entries(refused):
        identity = (_normal(entry.distribution), entry.package)
        if identity in seen:
            continue
        seen.add(identity)
        provider = Provider("plugin", entry.distribution, entry.version, "")
        result = _read(entry, provider)
        if isinstance(result, Plugin) and names is not None and names.isdisjoint(map(_normal, identity)):
            result = Refusal(
                result.provider,
                "plugin.not-allowed",
                f"COLI_PLUGINS does not name {entry.distribution}",
                result.descriptor.types(),
            )
        if isinstance(result, Plugin):
            plugins.append(result)
        else:
            refused.append(result)
    return plugins, refused


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _entries(refused: list[Refusal]) -> list[_Entry]:
    """Return entry points of our group, sorted. A distribution with unreadable metadata cannot hide the others."""
    found: list[_Entry] = []
    for distribution in importlib.metadata.distributions():
        try:
            ours = [e for e in distribution.entry_points if e.group == GROUP]
            if not ours:
                continue
            name, version = distribution.metadata["Name"], str(distribution.version)
            if not name:
                raise ValueError("no Name")
        except Exception as error:  # metadata of strangers: any failure is theirs, and is said
            path = str(getattr(distribution, "_path", "unknown"))
            if GROUP in _entry_text(path):
                provider = Provider("plugin", Path(path).name, "", path)
                refused.append(Refusal(provider, "plugin.metadata", f"its metadata cannot be read: {_short(error)}"))
            continue
        found += [_Entry(str(e.value).strip(), name, version) for e in ours]
    return sorted(found)


def _entry_text(path: str) -> str:
    try:
        with (Path(path) / "entry_points.txt").open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _read(entry: _Entry, provider: Provider) -> Plugin | Refusal:
    if not _PACKAGE.match(entry.package):
        reason = f"the entry point must name a top-level package without dots, not {entry.package[:80]!r}"
        return Refusal(provider, "plugin.entry-point", reason)
    try:
        spec = importlib.util.find_spec(entry.package)
        folders = list(spec.submodule_search_locations or ()) if spec else []
    except Exception as error:  # import hooks of strangers
        return Refusal(provider, "plugin.package", f"package {entry.package} cannot be located: {_short(error)}")
    if not folders:
        return Refusal(provider, "plugin.package", f"package {entry.package} is not there, or is not a package")
    provider = provider._replace(path=str(folders[0]))
    file = Path(folders[0]) / "family.toml"
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1).decode("utf-8")
        descriptor = parse_descriptor(text, f"{entry.distribution}: {file.name}")
    except (OSError, UnicodeDecodeError) as error:
        return Refusal(provider, "plugin.descriptor", f"{file} cannot be read: {_short(error)}")
    except FamilyError as error:
        return Refusal(provider, "plugin.descriptor", f"{file}: {error.observed}")
    return _fitting(entry, descriptor, provider)


def _fitting(entry: _Entry, descriptor: Descriptor, provider: Provider) -> Plugin | Refusal:
    from packaging.specifiers import SpecifierSet

    types = descriptor.types()
    if not SpecifierSet(descriptor.api).contains(API_VERSION, prereleases=True):
        reason = f"it wants family API {descriptor.api}, this is {API_VERSION}"
        return Refusal(provider, "plugin.api", reason, types)
    module = (descriptor.engine or "").partition(":")[0]
    if module and module.partition(".")[0] != entry.package:
        reason = f"its engine {descriptor.engine} is not in its package {entry.package}"
        return Refusal(provider, "plugin.engine", reason, types)
    return Plugin(descriptor, provider)


def _short(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 200 else text[:197] + "..."
