"""Where the parts of the driver lie: libcuda, libnvidia-ml, nvidia-smi. Nothing is opened or run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from coli.backends.dependencies import cached_names
from coli.backends.files import is_file

__all__ = ["DriverParts", "Located", "locate_driver"]

# Where drivers put their libraries besides what the system's loader looks through by itself.
_LINUX_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib64",
    "usr/lib",
    "lib",
    "usr/lib/wsl/lib",  # WSL: the only place, and ldconfig does not always know it
    "usr/lib/aarch64-linux-gnu/nvidia",  # Jetson
    "usr/lib/aarch64-linux-gnu/tegra",
    "usr/lib/nvidia",
    "run/opengl-driver/lib",  # NixOS
)
_LINUX_TOOLS = ("usr/bin", "usr/local/bin", "usr/lib/wsl/lib", "usr/sbin", "opt/bin")
_MAX_DRIVER_STORES = 200


@dataclass(frozen=True)
class Located:
    """A file of the driver: the path as that machine has it, and where to open it here (another root: a replay)."""

    shown: str
    path: Path


@dataclass(frozen=True)
class DriverParts:
    """The three parts (None: not found), the places that were searched for each, and what is odd."""

    libcuda: Located | None
    libnvml: Located | None
    nvidia_smi: Located | None
    searched: str
    notes: tuple[str, ...] = ()


def locate_driver(root: Path, path: Sequence[Path], environment: Mapping[str, str], system: str) -> DriverParts:
    """Find the driver's parts on the machine below ``root``. ``path``: the folders of PATH, taken as they are."""
    if system == "win32":
        return _locate_windows(root, path, environment)
    return _locate_linux(root, path, environment)


def _below(root: Path, text: str) -> Path:
    """Return where a path of that machine lies here; one that is below the root already stays."""
    path = Path(text)
    return path if path == root or root in path.parents else root / text.lstrip("/")


def _shown(root: Path, path: Path) -> str:
    return "/" + path.relative_to(root).as_posix() if root in path.parents else str(path)


def _is_stub(path: Path) -> bool:
    """Say whether a library is the toolkit's stand-in for linking: it answers every call with error 34."""
    return "stubs" in path.parts


def _locate_linux(root: Path, path: Sequence[Path], environment: Mapping[str, str]) -> DriverParts:
    notes: list[str] = []
    library_path = [_below(root, e) for e in environment.get("LD_LIBRARY_PATH", "").split(":") if e.startswith("/")]
    stubs = [folder for folder in library_path if _is_stub(folder)]
    if stubs:
        notes.append(
            f"stubs in LD_LIBRARY_PATH: {', '.join(_shown(root, folder) for folder in stubs)} is for linking only and "
            "is passed over; take it out"
        )
    cached = cached_names(root)

    def library(name: str) -> Located | None:
        places = [folder / name for folder in library_path]
        if name in cached:
            places.append(_below(root, cached[name]))
        places += [root / folder / name for folder in _LINUX_FOLDERS]
        for place in places:
            if is_file(place):
                # What is behind a link counts: libcuda.so.1 may lead to a stub.
                if _is_stub(place.resolve()):
                    notes.append(f"{_shown(root, place)} is a stub and is passed over")
                    continue
                return Located(_shown(root, place), place)
        return None

    tools = [folder / "nvidia-smi" for folder in (*path, *(root / folder for folder in _LINUX_TOOLS))]
    tool = next((place for place in tools if is_file(place)), None)
    searched = "LD_LIBRARY_PATH, ld.so.cache, /" + ", /".join(_LINUX_FOLDERS)
    return DriverParts(
        library("libcuda.so.1"),
        library("libnvidia-ml.so.1"),
        Located(_shown(root, tool), tool) if tool else None,
        searched,
        tuple(dict.fromkeys(notes)),
    )


def _locate_windows(root: Path, path: Sequence[Path], environment: Mapping[str, str]) -> DriverParts:
    def below(text: str) -> Path:
        windows = PureWindowsPath(text)
        return root.joinpath(*windows.relative_to(windows.anchor).parts)

    def shown(place: Path) -> str:
        return "C:/" + place.relative_to(root).as_posix() if root in place.parents else str(place)

    system = below(environment.get("SystemRoot", r"C:\Windows")) / "System32"
    programs = below(environment.get("ProgramFiles", r"C:\Program Files"))
    nvsmi = programs / "NVIDIA Corporation" / "NVSMI"
    repository = system / "DriverStore" / "FileRepository"
    try:
        stores = sorted(entry for _, entry in zip(range(_MAX_DRIVER_STORES), repository.glob("nv*"), strict=False))
    except OSError:
        stores = []

    def find(name: str, folders: Sequence[Path]) -> Located | None:
        place = next((folder / name for folder in folders if is_file(folder / name)), None)
        return Located(shown(place), place) if place else None

    return DriverParts(
        find("nvcuda.dll", (system, *stores)),
        find("nvml.dll", (system, nvsmi, *stores)),
        find("nvidia-smi.exe", (*path, system, nvsmi, *stores)),
        f"PATH, {shown(system)}, {shown(nvsmi)}, {shown(repository)}/nv*",
    )
