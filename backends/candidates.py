"""Where backends are looked for, in which order, and what a selection means."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coli.backends.cpu_level import LEVELS
from coli.backends.toolkit_places import site_folders
from coli.backends.trace import Candidate, Place
from coli.errors import UsageError
from coli.paths import user_path

__all__ = ["PACKAGE_LIB", "Search", "default_search", "find_candidates", "is_file_selection", "level_of", "matches"]

PACKAGE_LIB = Path(__file__).with_name("lib")
_LIBRARY = re.compile(r"(?:lib)?coli_(\w+)\.(?:so|dll|dylib)")
_GPU = re.compile(r"none|[0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]{1,120}")
_MAX_ENTRIES = 1_000_000  # of one folder


@dataclass(frozen=True)
class Search:
    """What decides the search: the selection (None: automatic) and where it was made, then the folders in order.

    ``path``: folders of COLI_BACKEND_PATH. ``data_folder``: holds one folder a build cell. ``cache_folder``: kept
    answers of child processes, None: none are kept. ``library_path``: folders where the system's loader looks first
    (LD_LIBRARY_PATH). ``environment``: what the driver's tools are run with; PATH and CUDA_VISIBLE_DEVICES count.
    ``root``: below it driver and devices are looked for. ``gpu``: the one that was asked for, as CUDA_VISIBLE_DEVICES
    names it, or ``none``; it replaces that variable. ``keeps``: new answers are kept; a doctor only reads them.
    ``site_folders``: where pip installs, for the libraries in NVIDIA's wheels.
    """

    selection: str | None = None
    selection_origin: str = "--backend"
    path: tuple[Path, ...] = ()
    data_folder: Path | None = None
    package_folder: Path = PACKAGE_LIB
    cache_folder: Path | None = None
    library_path: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    root: Path = Path("/")
    gpu: str | None = None
    keeps: bool = True
    site_folders: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.gpu is not None:
            visible = "" if self.gpu == "none" else self.gpu
            object.__setattr__(self, "environment", {**self.environment, "CUDA_VISIBLE_DEVICES": visible})


def default_search(
    selection: str | None = None,
    selection_origin: str = "--backend",
    path: Sequence[str] = (),
    library_path: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    gpu: str | None = None,
) -> Search:
    """Return the search of this user: data and cache folders as platformdirs has them.

    Raises UsageError for a relative folder, or a ``gpu`` that names none.
    """
    import platformdirs

    if gpu is not None and not _GPU.fullmatch(gpu):
        raise UsageError(
            "--gpu",
            "it must name one GPU",
            observed=repr(gpu[:80]),
            expected="its number in nvidia-smi, its UUID (GPU-..., MIG-...), or none",
            code="usage.gpu",
        )

    folders: list[Path] = []
    for entry in path:
        if not Path(entry).is_absolute():
            raise UsageError(
                "COLI_BACKEND_PATH",
                "every folder must be absolute: backends are never taken from the current folder",
                observed=repr(entry),
                fix="write the whole path",
                code="usage.backend-path",
            )
        folders.append(Path(entry))
    return Search(
        selection=selection or None,
        selection_origin=selection_origin,
        path=tuple(folders),
        data_folder=platformdirs.user_data_path("coli", appauthor=False) / "backends",
        cache_folder=platformdirs.user_cache_path("coli", appauthor=False) / "backends",
        library_path=tuple(Path(entry) for entry in library_path if Path(entry).is_absolute()),
        environment=dict(environment or {}),
        gpu=gpu,
        site_folders=site_folders(),
    )


def is_file_selection(selection: str) -> bool:
    """Say whether a selection is a file: it has a folder in it.

    A bare name is looked up, never in the current folder.
    """
    return "/" in selection or (sys.platform == "win32" and "\\" in selection)


def library_name(file_name: str) -> str | None:
    """Return the name that selects a library file, None for other files.

    ``libcoli_cpu_x86_64_v4.so`` is ``cpu-x86-64-v4``.
    """
    found = _LIBRARY.fullmatch(file_name)
    return found[1].replace("_", "-") if found else None


def level_of(candidate: Candidate) -> str:
    """Return the CPU level in a candidate's name."""
    return candidate.name.removeprefix("cpu-")


def matches(candidate: Candidate, selection: str) -> bool:
    """Say whether a name selects a candidate: ``cpu-x86-64-v4``, ``x86-64-v4`` or the file's name.

    ``_`` and ``-`` are the same.
    """
    wanted = selection.lower()
    return wanted == candidate.path.name.lower() or wanted.replace("_", "-") in (
        candidate.name,
        level_of(candidate),
    )


def _scan(folder: Path, origin: str) -> tuple[Place, list[Candidate]]:
    try:
        listed = (entry.name for _, entry in zip(range(_MAX_ENTRIES), folder.iterdir(), strict=False))
        names = sorted(name for name in listed if _LIBRARY.fullmatch(name))
    except (FileNotFoundError, NotADirectoryError):
        return Place(origin, folder, "absent"), []
    except OSError:
        return Place(origin, folder, "unreadable"), []
    found = [
        Candidate(folder.resolve() / name, known, origin) for name in names if (known := library_name(name)) is not None
    ]
    found.sort(key=_preference)
    return Place(origin, folder, "searched", len(found)), found


def _preference(candidate: Candidate) -> int:
    """Return the rank of a name: the flavour for one device, CUDA, the CPU's levels; names that nobody knows last."""
    names = ["cuda-dg", "cuda", *(f"cpu-{level}" for level in LEVELS)]
    return names.index(candidate.name) if candidate.name in names else len(names)


def find_candidates(search: Search) -> tuple[tuple[Place, ...], tuple[Candidate, ...]]:
    """Return the places that were looked at and the libraries found: preferred levels first, then by place.

    A selection that is a file comes first, whether it exists or not: the gates say what is wrong with it.
    """
    places: list[Place] = []
    found: list[Candidate] = []
    chosen: list[Candidate] = []
    if search.selection and is_file_selection(search.selection):
        path = user_path(search.selection).absolute()
        chosen.append(Candidate(path, library_name(path.name) or path.stem, search.selection_origin))
    folders: list[tuple[str, Path]] = [("COLI_BACKEND_PATH", folder) for folder in search.path]
    if search.data_folder is not None:
        try:
            cells = sorted(entry for entry in search.data_folder.iterdir() if entry.is_dir())
        except OSError:
            cells = []
        folders += [("user data", cell) for cell in cells] or [("user data", search.data_folder)]
    folders.append(("package", search.package_folder))
    for origin, folder in folders:
        place, libraries = _scan(folder, origin)
        places.append(place)
        found += [library for library in libraries if all(library.path != other.path for other in (*chosen, *found))]
    found.sort(key=_preference)  # stable: equal levels stay in the order of the places
    return tuple(places), (*chosen, *found)
