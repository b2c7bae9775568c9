"""Where the system would find the libraries that a backend links to, without opening any of them."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from coli.backends.containers import Container, ContainerError, read_container
from coli.backends.files import is_file

__all__ = ["Closure", "cached_names", "mapped_names", "resolve_closure", "system_folders"]

_MAX_LIBRARIES = 128
_MAX_ENTRIES = 20_000  # of one folder: System32 has about 5000
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_DEFAULT_FOLDERS = ("lib", "usr/lib", "lib64", "usr/lib64", "usr/local/lib")


@dataclass(frozen=True)
class Closure:
    """The resolved libraries by name, and those that are missing with the library that needs them."""

    found: dict[str, str]
    missing: tuple[tuple[str, str], ...]  # (library, needed by)
    searched: tuple[str, ...]


def cached_names(root: Path) -> dict[str, str]:
    """Read name -> path from ``/etc/ld.so.cache``; an absent, foreign or damaged cache is an empty one."""
    try:
        data = (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return {}
    start = data.find(_CACHE_MAGIC)  # an old-format cache may come first
    if start < 0 or len(data) < start + 48:
        return {}
    count = struct.unpack_from("=I", data, start + 20)[0]
    if count > (len(data) - start - 48) // 24:
        return {}
    names: dict[str, str] = {}
    for at in range(count):
        _, key, value = struct.unpack_from("=iII", data, start + 48 + at * 24)
        if max(key, value) >= len(data) - start:
            return {}
        texts = []
        for offset in (start + key, start + value):
            end = data.find(b"\0", offset)
            texts.append(data[offset : end if end >= 0 else offset].decode("utf-8", "replace"))
        names.setdefault(*texts)
    return names


def mapped_names() -> dict[str, str]:
    """Return the libraries that this process has mapped: the system finds those again, wherever they are."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    paths = {line.split(None, 5)[5] for line in text.splitlines() if line.count(" ") >= 5 and "/" in line}
    return {Path(path).name: path for path in paths if ".so" in path}


def system_folders(root: Path, machine: str) -> list[Path]:
    """Return the folders that the system's loader looks through by itself, behind its cache."""
    folders = [root / name for name in _DEFAULT_FOLDERS]
    folders += [root / name / f"{machine}-linux-gnu" for name in ("lib", "usr/lib")]
    return folders


class _System32:
    """The folder of Windows' own libraries below a root. Names have no case, also where a replayed root has one."""

    def __init__(self, root: Path) -> None:
        self._names: dict[str, Path] | None = None
        if sys.platform == "win32" and root == Path("/"):
            buffer = ctypes.create_unicode_buffer(260)
            ctypes.WinDLL("kernel32").GetSystemDirectoryW(buffer, len(buffer))
            self.folder = Path(buffer.value)
        else:
            windows = _entries(root).get("windows", root / "Windows")
            self.folder = _entries(windows).get("system32", windows / "System32")

    def find(self, name: str) -> Path | None:
        if sys.platform == "win32":
            return self.folder / name if is_file(self.folder / name) else None
        if self._names is None:
            self._names = _entries(self.folder)
        return self._names.get(name.lower())


def _entries(folder: Path) -> dict[str, Path]:
    try:
        return {entry.name.lower(): entry for _, entry in zip(range(_MAX_ENTRIES), folder.iterdir(), strict=False)}
    except OSError:
        return {}


def _loaded_module(name: str, root: Path) -> Path | None:
    """Return where a library lies that this process has open under this name: Windows takes it before it searches."""
    if sys.platform != "win32" or root != Path("/"):
        return None
    kernel = ctypes.WinDLL("kernel32")
    kernel.GetModuleHandleW.restype = ctypes.c_void_p
    kernel.GetModuleHandleW.argtypes = [ctypes.c_wchar_p]
    kernel.GetModuleFileNameW.argtypes = [ctypes.c_void_p, ctypes.c_wchar_p, ctypes.c_uint32]
    handle = kernel.GetModuleHandleW(name)
    buffer = ctypes.create_unicode_buffer(32768)
    if not handle or not kernel.GetModuleFileNameW(handle, buffer, len(buffer)):
        return None
    return Path(buffer.value)


def _resolve_dll(path: Path, container: Container, root: Path) -> Closure:
    """Resolve as LoadLibraryExW does with the flags of `_probe.open_library`.

    Open libraries by name, sets that Windows maps by itself, the folder of ``path``, System32; for the dependencies of
    dependencies too. Neither PATH nor the current folder.
    """
    system = _System32(root)
    searched = (str(path.parent), str(system.folder))
    found: dict[str, str] = {}
    missing: list[tuple[str, str]] = []
    seen: set[str] = set()
    queue: list[tuple[Path, Container]] = [(path, container)]
    while queue:
        owner, content = queue.pop(0)
        for name in content.needed:
            if name.lower() in seen:
                continue
            seen.add(name.lower())
            if len(seen) > _MAX_LIBRARIES:
                return Closure(found, tuple(missing), searched)
            if PureWindowsPath(name).name != name:  # a path: no linker writes one, and none is followed
                missing.append((name, owner.name))
            elif name.lower().startswith(("api-ms-win-", "ext-ms-")):
                found[name] = "system"
            elif (module := _loaded_module(name, root)) is not None:
                found[name] = str(module)
            elif _fits(path.parent / name, content):
                found[name] = str(path.parent / name)
                try:
                    queue.append((path.parent / name, read_container(path.parent / name)))
                except (ContainerError, OSError):
                    continue  # it was there a moment ago; whether it is sound shows when it is opened
            elif system.find(name) is not None:
                found[name] = "system"
            else:
                missing.append((name, owner.name))
    return Closure(found, tuple(missing), searched)


def resolve_closure(
    path: Path, container: Container, library_path: Sequence[Path] = (), root: Path = Path("/")
) -> Closure:
    """Resolve what ``path`` needs, and what those need. ``library_path``: folders of LD_LIBRARY_PATH."""
    if container.kind == "pe":
        return _resolve_dll(path, container, root)
    cached = cached_names(root)
    mapped = mapped_names() if root == Path("/") and sys.platform == "linux" else {}
    system = system_folders(root, container.machine)
    found: dict[str, str] = {}
    missing: list[tuple[str, str]] = []
    queue: list[tuple[Path, Container]] = [(path, container)]
    searched = [*library_path, *system]
    while queue:
        owner, content = queue.pop(0)
        origin = str(owner.parent)
        own = [Path(p.replace("$ORIGIN", origin).replace("${ORIGIN}", origin)) for p in content.run_path]
        for name in content.needed:
            if name in found or any(name == gone for gone, _ in missing):
                continue
            if len(found) >= _MAX_LIBRARIES:
                return Closure(found, tuple(missing), tuple(str(folder) for folder in searched))
            target = _locate(name, content, own, library_path, system, cached, mapped, root)
            if target is None:
                missing.append((name, owner.name))
                searched += [folder for folder in own if folder not in searched]
                continue
            found[name] = str(target)
            try:
                queue.append((target, read_container(target)))
            except (ContainerError, OSError):
                continue  # it is there; whether it is sound shows when it is opened, in the child process
    return Closure(found, tuple(missing), tuple(str(folder) for folder in searched))


def _locate(
    name: str,
    content: Container,
    own: Sequence[Path],
    library_path: Sequence[Path],
    system: Sequence[Path],
    cached: dict[str, str],
    mapped: dict[str, str],
    root: Path,
) -> Path | None:
    if "/" in name:  # the link editor recorded a path
        return Path(name) if Path(name).is_absolute() and is_file(Path(name)) else None
    for folder in (*own, *library_path):
        if _fits(folder / name, content):
            return folder / name
    for table in (cached, mapped):
        if name in table:
            path = root / table[name].lstrip("/") if table is cached else Path(table[name])
            if _fits(path, content):
                return path
    for folder in system:
        if _fits(folder / name, content):
            return folder / name
    return None


def _fits(path: Path, content: Container) -> bool:
    """Say whether there is a library of the same machine: the system passes over others."""
    try:
        if not is_file(path):
            return False
        other = read_container(path)
    except (ContainerError, OSError):
        return False
    return other.machine == content.machine and other.bits == content.bits
