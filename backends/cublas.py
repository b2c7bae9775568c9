"""Where the cuBLASLt lies that the fast products of a CUDA library ask for. Nothing is opened while it is looked for.

A CUDA library asks the system's loader for `libcublasLt.so.<major>`. A library of that name which is open already is
found without a search, so a copy in a toolkit or a wheel serves once it was opened by its path. That costs 150 MB of
memory, so it is left to the first call of a fast product: an exact run never opens it.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from coli.backends.containers import ContainerError, read_container
from coli.backends.dependencies import cached_names, mapped_names, system_folders
from coli.backends.devices import Fact
from coli.backends.gates import check_file
from coli.backends.probe import Answer
from coli.backends.targets import Capability
from coli.backends.toolkit_places import (
    Places,
    conda_root,
    library_folders,
    named_roots,
    usual_roots,
    wheel_folders,
)
from coli.backends.trace import CublasLt, Looked

__all__ = ["BLOCK_SCALING", "decide_opening", "decide_wheel", "probe_cublaslt", "render_cublaslt"]

BLOCK_SCALING = Capability(10, 0)
"""The first devices whose tensor cores take block scales; on others the fast products decline without the library."""

_MAX_ENTRIES = 20_000  # of one folder
_MAX_SHOWN = 4


def probe_cublaslt(major: int, places: Places, library_path: Sequence[Path] = ()) -> CublasLt:
    """Look for `libcublasLt.so.<major>`: the system loader's own places, toolkits, wheels. Never raises.

    ``library_path``: folders of LD_LIBRARY_PATH. The first file that fits, and that nobody else may write, is taken.
    """
    name = f"libcublasLt.so.{major}"
    rows: list[Looked] = []
    taken: Path | None = None
    seen: set[Path] = set()
    for origin, file in _files(name, places, library_path, rows):
        try:
            if not file.is_absolute():  # what it names depends on where one stands
                rows.append(Looked(origin, str(file), "refused", "a relative folder is not searched"))
                continue
            real = file.resolve()
            if real in seen:
                continue
            seen.add(real)
            row = _look(origin, file, real, name, places.machine)
        except (OSError, ValueError, RuntimeError) as error:  # no permission, a loop of links, a name that is none
            rows.append(Looked(origin, str(file), "unreadable", str(error)))
            continue
        if row.state == "found" and taken is None:
            taken, row = real, dataclasses.replace(row, state="taken")
        rows.append(row)
    return CublasLt(name, major, tuple(rows), taken, _version(taken))


def _files(name: str, places: Places, library_path: Sequence[Path], rows: list[Looked]) -> Iterator[tuple[str, Path]]:
    """Yield the files to look at; a place without any folder becomes a row at once."""
    root = places.root
    if root == Path("/") and sys.platform == "linux":
        for known, path in mapped_names().items():
            if known == name or known.startswith(f"{name}."):
                yield "open in this process", Path(path)
    for folder in library_path:
        yield "LD_LIBRARY_PATH", places.locate(str(folder)) / name
    yield from _system_files(name, places, rows)
    for origin, toolkit in _toolkits(places, rows):
        folders = _listed(rows, origin, library_folders, toolkit, places.machine)
        if not folders:
            rows.append(Looked(origin, str(toolkit), "absent"))
        for folder in folders:
            yield origin, folder / name
    # Wheels of CUDA 13 share a folder, those of CUDA 12 have one each.
    wheels = [
        *_listed(rows, "wheel", wheel_folders, places, "cu[0-9]*"),
        *_listed(rows, "wheel", wheel_folders, places, "cublas"),
    ]
    if not wheels:
        rows += [Looked("wheel", str(site / "nvidia"), "absent") for site in places.site_folders]
    for folder in wheels:
        yield "wheel", folder / "lib" / name


def _system_files(name: str, places: Places, rows: list[Looked]) -> Iterator[tuple[str, Path]]:
    """Yield what the loader finds by itself: its cache, then its folders; one row when neither has it."""
    cached = cached_names(places.root)
    folders = system_folders(places.root, places.machine)
    files = [places.locate(cached[name])] if name in cached else []
    files += [folder / name for folder in folders if os.path.lexists(folder / name)]
    for file in files:
        yield "system", file
    if not files:
        others = sorted(known for known in cached if known.startswith("libcublasLt.so."))[:_MAX_SHOWN]
        where = ", ".join(["ld.so.cache", *map(str, folders)])
        rows.append(
            Looked("system", where, "unfit" if others else "absent", f"has {', '.join(others)}" if others else "")
        )


def _toolkits(places: Places, rows: list[Looked]) -> Iterator[tuple[str, Path]]:
    yield from named_roots(places)
    for folder in _listed(rows, "toolkit", usual_roots, places):
        yield "toolkit", folder
    if (conda := conda_root(places)) is not None:
        yield "CONDA_PREFIX", conda


def _listed(
    rows: list[Looked], origin: str, find: Callable[..., Iterable[Path]], *arguments: Places | Path | str
) -> list[Path]:
    """Return what ``find`` lists; a folder that cannot be read becomes a row."""
    try:
        return list(find(*arguments))
    except (OSError, ValueError, RuntimeError) as error:
        rows.append(Looked(origin, "", "unreadable", str(error)))
        return []


def _look(origin: str, file: Path, real: Path, name: str, machine: str) -> Looked:
    """Judge one file. Raises OSError."""
    where = str(file)
    if not real.is_file():
        if os.path.lexists(file):
            return Looked(origin, where, "unfit", "no regular file")
        others = _others(file.parent)
        return Looked(origin, where, "unfit" if others else "absent", f"there is {', '.join(others)}" if others else "")
    try:
        container = read_container(real)
    except ContainerError as error:
        return Looked(origin, where, "unfit", str(error))
    if (container.kind, container.machine, container.bits) != ("elf", machine, 64):
        return Looked(origin, where, "unfit", f"{container.kind.upper()}, {container.machine}, {container.bits}-bit")
    if container.soname != name:
        return Looked(origin, where, "unfit", f"its own name is {container.soname or 'not in it'}")
    gate = check_file(real)
    if gate.verdict != "ok":
        return Looked(origin, where, "refused", gate.evidence)
    return Looked(origin, where, "found", "" if real == file else f"leads to {real}")


def _others(folder: Path) -> list[str]:
    """Return the names of other majors in a folder. Raises OSError."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, _MAX_ENTRIES)]
    return sorted(name for name in names if re.fullmatch(r"libcublasLt\.so\.\d+", name))[:_MAX_SHOWN]


def _version(file: Path | None) -> Fact[str]:
    if file is None:
        return Fact.absent("no file was taken")
    found = re.fullmatch(r"libcublasLt\.so\.(\d+(?:\.\d+)+)", file.name)
    return Fact.of(found[1], f"name of {file}") if found else Fact.unknown(f"{file.name} names the major only")


def decide_opening(found: CublasLt, answer: Answer) -> CublasLt:
    """Return ``found`` with what the child process saw when it opened it. Pure."""
    step = answer.steps.get("cublaslt")
    if step is None:
        return found
    if step.get("state") == "opening":  # the last word of the child
        return dataclasses.replace(found, problem=answer.detail)
    problem = step.get("error")
    return dataclasses.replace(found, opens=problem is None, problem=None if problem is None else str(problem))


def decide_wheel(major: int) -> str:
    """Return what `pip install` is asked for to have that library. Pure."""
    if major <= 12:
        return f"nvidia-cublas-cu{major}>=12.8"
    return f"nvidia-cublas>={major},<{major + 1}"


def render_cublaslt(found: CublasLt) -> str:
    """Return in one line which file serves the fast products, or why none does."""
    if found.path is None:
        refused = next((row for row in found.places if row.state == "refused"), None)
        return f"{found.name} is not found" + (f"; {refused.evidence}" if refused else "")
    label = f"{found.path}" + (f", {found.version.value}" if found.version.value else "")
    if found.problem is not None:
        return f"{label} does not open: {found.problem}"
    if found.opens:
        return f"{label}, opened before the first fast product"
    return label if found.needed else f"{label}, not used: no device of {BLOCK_SCALING} or later is served"
