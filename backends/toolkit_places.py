"""Where CUDA toolkits and NVIDIA's wheels lie on a machine: one list for the build, the loader and the doctor."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from coli.backends.files import globbed, is_folder

__all__ = [
    "Places",
    "conda_root",
    "include_folders",
    "library_folders",
    "named_roots",
    "site_folders",
    "usual_roots",
    "wheel_folders",
]

_TRIPLES = {"x86_64": ("x86_64-linux",), "aarch64": ("sbsa-linux", "aarch64-linux")}


@dataclass(frozen=True)
class Places:
    """Where to look. Everything lies below ``root``, so that another machine's files can be replayed.

    ``environment``: variables of the machine, PATH among them. ``site_folders``: where pip installs. ``made``: roots of
    toolkits that were made from wheels, by id (`pypi:13.0`). ``machine``: x86_64 or aarch64. ``asked``: a folder that
    --toolkit names.
    """

    environment: Mapping[str, str]
    machine: str
    root: Path = Path("/")
    site_folders: tuple[Path, ...] = ()
    made: Mapping[str, Path] | None = None
    asked: Path | None = None

    def locate(self, path: str) -> Path:
        """Return where an absolute path of the machine lies here."""
        if self.root == Path("/") or Path(path).is_relative_to(self.root):
            return Path(path)
        return self.root / path.lstrip("/")

    def path_folders(self) -> list[Path]:
        """Return the folders of PATH. Relative ones are left out: what they name depends on where one stands."""
        entries = self.environment.get("PATH", "").split(":")
        return [self.locate(entry) for entry in dict.fromkeys(entries) if entry.startswith("/")]


def site_folders() -> tuple[Path, ...]:
    """Return where pip installs for this Python."""
    paths = sysconfig.get_paths()
    return tuple(dict.fromkeys(Path(paths[name]) for name in ("purelib", "platlib")))


def named_roots(places: Places) -> Iterator[tuple[str, Path]]:
    """Yield the roots that variables name, whether they are there or not."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if value := places.environment.get(name, "").strip():
            yield name, places.locate(value.rstrip("/") or "/")


def usual_roots(places: Places) -> Iterator[Path]:
    """Yield where installers put toolkits: the one that the link names, then the newest first."""
    local = places.locate("/usr/local")
    yield local / "cuda"
    yield from sorted(globbed(local, "cuda-*"), key=_release, reverse=True)
    yield places.locate("/opt/cuda")


def conda_root(places: Places) -> Path | None:
    """Return the conda environment that is active."""
    value = places.environment.get("CONDA_PREFIX", "").strip()
    return places.locate(value.rstrip("/")) if value else None


def wheel_folders(places: Places, pattern: str) -> Iterator[Path]:
    """Yield what matches ``pattern`` in `nvidia/`, the folder of NVIDIA's wheels, the newest release first."""
    sites = list(places.site_folders)
    if value := places.environment.get("VIRTUAL_ENV", "").strip():
        sites += globbed(places.locate(value.rstrip("/")), "lib/python3.*/site-packages")
    for site in dict.fromkeys(sites):
        yield from reversed(globbed(site, f"nvidia/{pattern}"))


def library_folders(root: Path, machine: str) -> tuple[Path, ...]:
    """Return the folders of a toolkit's root that may hold its libraries, those that are there."""
    names = ["lib64", *(f"targets/{triple}/lib" for triple in _TRIPLES.get(machine, ())), "lib", "lib/x64"]
    if root.name == "usr":
        names = [f"lib/{machine}-linux-gnu", *names]
    return tuple(root / name for name in names if is_folder(root / name))


def include_folders(root: Path, machine: str) -> tuple[Path, ...]:
    """Return the folders of a toolkit's root that may hold its headers."""
    return (root / "include", *(root / "targets" / triple / "include" for triple in _TRIPLES.get(machine, ())))


def _release(folder: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d{1,4}", folder.name.removeprefix("cuda-")))
