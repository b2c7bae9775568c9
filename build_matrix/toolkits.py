"""Find the CUDA toolkits of a machine: each with version, root, and what is missing. decide.py chooses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coli.backends.files import globbed, is_file, is_folder, is_there, real_path
from coli.backends.toolkit_places import (
    Places,
    conda_root,
    include_folders,
    library_folders,
    named_roots,
    usual_roots,
    wheel_folders,
)
from coli.build_matrix.headers import cublas_version, cuda_version, newest_compilers, newest_glibc, read_text
from coli.build_matrix.tool import ask, first_line
from coli.build_matrix.version import Version, parse_version

__all__ = ["Finding", "Places", "Toolkit", "find_toolkits", "probe_toolkit"]

_RELEASE = re.compile(r"release (\d+\.\d+), V(\d+\.\d+\.\d+)")
_FLAGS = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")
_DISTRIBUTION = ("/usr/lib/nvidia-cuda-toolkit", "/usr/lib/cuda")


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a toolkit. ``blocking``: it cannot compile. ``missing``: path below its root."""

    code: str
    text: str
    fix: str
    blocking: bool
    missing: str | None = None


@dataclass(frozen=True)
class Toolkit:
    """One root. Folders and files are absolute; ``origin`` says who named it, ``also`` who else did."""

    root: Path
    origin: str
    also: tuple[str, ...]
    layout: str
    nvcc: Path | None
    version: Version | None
    version_source: str | None
    include: Path | None
    libdir: Path | None
    cudart_runtime: str | None
    cudart_link_name: bool
    cudart_static: bool
    stub: Path | None
    cublas: Version | None
    newest_gcc: int | None
    newest_clang: int | None
    newest_glibc: Version | None
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Say whether it can compile."""
        return self.version is not None and not any(finding.blocking for finding in self.findings)

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the paths below the root that should be there."""
        return tuple(finding.missing for finding in self.findings if finding.missing is not None)

    @property
    def label(self) -> str:
        """Return `CUDA 12.8 in /usr/local/cuda-12.8`."""
        return f"CUDA {self.version.short if self.version else '(version not known)'} in {self.root}"


def find_toolkits(places: Places) -> tuple[Toolkit, ...]:
    """Find all toolkits, in the order they count: variables, PATH, usual folders, conda, wheels, made ones."""
    found: dict[Path, tuple[Path, list[str]]] = {}
    for origin, folder in _candidates(places):
        named = origin in ("CUDA_HOME", "CUDA_PATH", "--toolkit")
        if not named and not is_file(folder / "bin" / "nvcc"):
            continue
        real = real_path(folder)
        found.setdefault(real, (folder if named else _shown(folder, real), []))[1].append(origin)
    return tuple(
        probe_toolkit(root, origins[0], places, also=tuple(dict.fromkeys(o for o in origins[1:] if o != origins[0])))
        for root, origins in found.values()
    )


def probe_toolkit(root: Path, origin: str, places: Places, *, also: tuple[str, ...] = ()) -> Toolkit:
    """Look at one root."""
    findings: list[Finding] = []
    nvcc = root / "bin" / "nvcc"
    include, headers = _include(root, places.machine)
    libdir = _libdir(root, places.machine)
    layout = _layout(root, origin, libdir)
    if not is_file(nvcc):
        findings.append(_no_nvcc(root, origin))
        version, source = _version_of_files(root, include)
        return _toolkit(root, origin, also, layout, None, version, source, include, libdir, findings)
    version, source, problem = _version(nvcc, root, include, places)
    if problem:
        findings.append(
            Finding("nvcc-does-not-run", f"{nvcc}: {problem}", "install that toolkit again, or choose another", True)
        )
    elif version is None:
        findings.append(Finding("version-unknown", f"{nvcc}: no version to be read", "choose another toolkit", True))
    if include is None or not headers:
        findings.append(
            Finding(
                "headers-missing",
                f"{root}: cuda_runtime.h is in none of include, targets/*/include",
                "install the headers of the same release (conda: cuda-cudart-dev; pip: nvidia-cuda-runtime)",
                True,
                "include/cuda_runtime.h",
            )
        )
    elif (header := cuda_version(include)) and version and source == "nvcc --version":
        findings += _mixed(root, version, header)
    findings += _libraries(root, libdir)
    return _toolkit(root, origin, also, layout, nvcc, version, source, include, libdir, findings)


def _candidates(places: Places) -> Iterator[tuple[str, Path]]:
    for name, named in named_roots(places):
        yield name, named.absolute()  # CMake runs in another folder
    for folder in places.path_folders():
        if root := _root_of(folder / "nvcc", places):
            yield "PATH", root
    for folder in usual_roots(places):
        yield str(folder), folder
    if root := _root_of(places.locate("/usr/bin/nvcc"), places):
        yield "distribution", root
    if (conda := conda_root(places)) is not None:
        yield "CONDA_PREFIX", conda
    for folder in wheel_folders(places, "cu[0-9]*"):
        yield "wheel", folder
    for identifier, folder in (places.made or {}).items():
        yield identifier, folder
    if places.asked is not None:  # last: where it is one that counts anyway, that is how it is known
        yield "--toolkit", places.asked


def _root_of(nvcc: Path, places: Places) -> Path | None:
    """Return the toolkit of an nvcc on PATH. A link is followed; a compiler cache's link is no toolkit."""
    if not is_file(nvcc):
        return None
    real = real_path(nvcc)
    if "cache" in real.name:
        return None
    if wrapped := _wrapped(real):
        real = real_path(places.locate(wrapped))
    if any(real.is_relative_to(real_path(places.locate(folder))) for folder in _DISTRIBUTION):
        return places.locate("/usr")
    if real.name == "nvcc" and real.parent.name == "bin":
        return real.parent.parent
    return nvcc.parent.parent if nvcc.parent.name == "bin" else None


def _wrapped(nvcc: Path) -> str | None:
    """Return the nvcc that a script stands before: distributions and images put one on PATH."""
    try:
        with nvcc.open("rb") as file:
            script = file.read(1 << 16)
    except OSError:
        return None
    if not script.startswith(b"#!"):
        return None
    found = re.search(rb"(/[^\s'\"$`;|&<>]+/bin/nvcc)\b", script)
    return found[1].decode("utf-8", "replace") if found and found[1] != str(nvcc).encode() else None


def _shown(folder: Path, real: Path) -> Path:
    """Prefer the name with the version: /usr/local/cuda moves when another toolkit is installed."""
    return real if real.name.startswith("cuda-") else folder


def _no_nvcc(root: Path, origin: str) -> Finding:
    fix = "name the folder that has bin/nvcc"
    if not origin.startswith("-"):
        fix = f"unset {origin}, or let it {fix}"
    if not is_folder(root):
        text = f"{origin}={root}: no such folder"
    else:
        text = f"{origin}={root}: bin/nvcc is missing"
        if is_file(root / "nvcc"):
            fix = f"set {origin}={root.parent}: the folder above bin"
    if root.name == "nvcc" and is_file(root):
        text, fix = f"{origin}={root}: a file, expected a folder", f"set {origin}={root.parent.parent}"
    return Finding("nvcc-missing", text, fix, True, "bin/nvcc")


def _include(root: Path, machine: str) -> tuple[Path | None, bool]:
    folders = include_folders(root, machine)
    for folder in folders:
        if is_file(folder / "cuda_runtime.h"):
            return folder, True
    return next((folder for folder in folders if is_folder(folder)), None), False


def _libdir(root: Path, machine: str) -> Path | None:
    folders = library_folders(root, machine)
    for patterns in (("libcudart.so", "libcudart_static.a"), ("libcudart.so.*",)):
        for folder in folders:
            if any(_first(folder, pattern) for pattern in patterns):
                return folder
    return folders[0] if folders else None


def _layout(root: Path, origin: str, libdir: Path | None) -> str:
    if root.parent.name == "nvidia" and root.name.startswith("cu"):
        return "wheel"
    if root.name == "usr":
        return "distribution"
    if libdir is not None and "targets" in libdir.relative_to(root).parts:
        return "targets"
    return "made" if origin.startswith("pypi:") else "plain"


def _libraries(root: Path, libdir: Path | None) -> Iterator[Finding]:
    if libdir is None:
        yield Finding(
            "libraries-missing",
            f"{root}: no folder lib64, lib or targets/*/lib",
            "install the runtime of the same release (conda: cuda-cudart-dev; pip: nvidia-cuda-runtime)",
            True,
            "lib64",
        )
        return
    static = _first(libdir, "libcudart_static.a")
    runtime, link_name = _first(libdir, "libcudart.so.*"), is_there(libdir / "libcudart.so")
    if not static:
        yield Finding(
            "cudart-static-missing",
            f"{libdir}: libcudart_static.a is missing; the backend holds it, so that it loads without a toolkit",
            "install the development files of cudart (conda: cuda-cudart-static; pip: nvidia-cuda-runtime)",
            False,
            "libcudart_static.a",
        )
    if not link_name:
        yield Finding(
            "cudart-link-name-missing",
            f"{libdir}: "
            + (f"runtime library {runtime} present, link name absent" if runtime else "libcudart.so is missing"),
            f"ln -s {runtime} {libdir / 'libcudart.so'}, or --toolkit pypi:13.0, which makes a complete one"
            if runtime
            else "install the development files of cudart",
            False,
            "libcudart.so",
        )
    if _stub(libdir) is None:
        yield Finding(
            "driver-stub-missing",
            f"{libdir}: no driver stub (stubs/libcuda.so)",
            "nothing to do for our own libraries: libcuda is opened at run time and never linked",
            False,
            "stubs/libcuda.so",
        )


def _mixed(root: Path, nvcc: Version, header: Version) -> Iterator[Finding]:
    if nvcc.release == header.release:
        return
    yield Finding(
        "headers-of-another-release",
        f"{root}: nvcc is {nvcc.short}, cuda.h is of {header.short}",
        "install compiler and headers of one release",
        nvcc.major != header.major,
    )


def _toolkit(
    root: Path,
    origin: str,
    also: tuple[str, ...],
    layout: str,
    nvcc: Path | None,
    version: Version | None,
    source: str | None,
    include: Path | None,
    libdir: Path | None,
    findings: Iterable[Finding],
) -> Toolkit:
    gcc, clang = newest_compilers(read_text(include / "crt" / "host_config.h")) if include else (None, None)
    return Toolkit(
        root=root,
        origin=origin,
        also=also,
        layout=layout,
        nvcc=nvcc,
        version=version,
        version_source=source,
        include=include,
        libdir=libdir,
        cudart_runtime=_first(libdir, "libcudart.so.*") if libdir else None,
        cudart_link_name=libdir is not None and is_there(libdir / "libcudart.so"),
        cudart_static=libdir is not None and _first(libdir, "libcudart_static.a") is not None,
        stub=_stub(libdir) if libdir else None,
        cublas=cublas_version(include) if include else None,
        newest_gcc=gcc,
        newest_clang=clang,
        newest_glibc=newest_glibc(read_text(include / "crt" / "math_functions.h")) if include else None,
        findings=tuple(findings),
    )


def _first(folder: Path, pattern: str) -> str | None:
    """Return the name that matches; of several the shortest, so that libcudart.so.13 counts before .13.0.96."""
    names = sorted((path.name for path in globbed(folder, pattern)), key=lambda name: (len(name), name))
    return names[0] if names else None


def _stub(libdir: Path) -> Path | None:
    stub = libdir / "stubs" / "libcuda.so"
    return stub if is_there(stub) else None


def _version(
    nvcc: Path, root: Path, include: Path | None, places: Places
) -> tuple[Version | None, str | None, str | None]:
    # nvcc reads flags from these even here: one that it does not know would look like a broken toolkit.
    plain = {name: value for name, value in places.environment.items() if name not in _FLAGS}
    answer = ask([nvcc, "--version"], plain)
    if answer.ok and (found := _RELEASE.search(answer.output)) and (version := parse_version(found[2])):
        return version, "nvcc --version", None
    version, source = _version_of_files(root, include)
    if answer.ok:
        return version, source, None
    return version, source, answer.problem or f"ends with {answer.status}: {first_line(answer.errors)}"


def _version_of_files(root: Path, include: Path | None) -> tuple[Version | None, str | None]:
    text = read_text(root / "version.json")
    if (found := re.search(r'"cuda"\s*:\s*\{[^{}]*"version"\s*:\s*"([\d.]+)"', text)) and (
        version := parse_version(".".join(found[1].split(".")[:3]))
    ):
        return version, "version.json"
    header = cuda_version(include) if include else None
    return header, "cuda.h" if header else None
