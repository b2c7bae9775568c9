"""Machines made of files: folders with an nvcc, g++ or ldd that print what the real ones print."""

from __future__ import annotations

import shlex
from pathlib import Path

from coli.build_matrix.toolkits import Places

# As NVIDIA's headers write it, 12.4 and 13.0.
HOST_CONFIG = """
#if defined(__GNUC__)
#if __GNUC__ > {gcc}
#error -- unsupported GNU version! gcc versions later than {gcc} are not supported! The nvcc flag ...
#endif /* __GNUC__ > {gcc} */
#if defined(__HORIZON__)
#if (__clang_major__ >= 99) || (__clang_major__ < 3)
#error -- unsupported HOS clang version! The version must be must be less than 99
#endif
#endif
#if (__clang_major__ >= {clang}) || (__clang_major__ < 3) || ((__clang_major__ == 3) &&  (__clang_minor__ < 3))
#error -- unsupported clang version! clang version must be less than {clang} and greater than 3.2 . The nvcc flag
#endif
#endif
"""


def program(path: Path, output: str = "", *, errors: str = "", status: int = 0, before: str = "") -> Path:
    """Write a program that prints and ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["#!/bin/sh", before, f"printf %s {shlex.quote(output)}", f"printf %s {shlex.quote(errors)} >&2"]
    path.write_text("\n".join([*lines, f"exit {status}"]) + "\n")
    path.chmod(0o755)
    return path


def nvcc(path: Path, version: str) -> Path:
    """Write an nvcc that says its version as NVIDIA's does (12.4.131)."""
    short = ".".join(version.split(".")[:2])
    return program(
        path,
        "nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2024 NVIDIA Corporation\n"
        f"Built on Thu_Mar_28_02:18:24_PDT_2024\nCuda compilation tools, release {short}, V{version}\n"
        f"Build cuda_{short}.r{short}/compiler.34097967_0\n",
    )


def toolkit(root: Path, version: str, *, gcc: int | None = None, clang: int = 18, cublas: str | None = None) -> Path:
    """Make a toolkit as NVIDIA's installer lays it out."""
    nvcc(root / "bin" / "nvcc", version)
    (root / "include" / "crt").mkdir(parents=True)
    major, minor = version.split(".")[:2]
    (root / "include" / "cuda_runtime.h").touch()
    (root / "include" / "cuda.h").write_text(f"#define CUDA_VERSION {int(major) * 1000 + int(minor) * 10}\n")
    if gcc is not None:
        (root / "include" / "crt" / "host_config.h").write_text(HOST_CONFIG.format(gcc=gcc, clang=clang))
    if cublas is not None:
        (root / "include" / "cublasLt.h").touch()
        numbers = zip(("MAJOR", "MINOR", "PATCH"), cublas.split("."), strict=False)
        text = "".join(f"#define CUBLAS_VER_{name} {number}\n" for name, number in numbers)
        (root / "include" / "cublas_api.h").write_text(text)
    library = root / "lib64"
    (library / "stubs").mkdir(parents=True)
    for name in ("libcudart.so", f"libcudart.so.{major}", "libcudart_static.a", "stubs/libcuda.so"):
        (library / name).touch()
    return root


def gcc(path: Path, version: str) -> Path:
    """Write a g++ as Debian's says its version."""
    return program(
        path,
        f"{path.name} (Debian {version}-14+deb12u1) {version}\nCopyright (C) 2022 Free Software Foundation, Inc.\n"
        "This is free software; see the source for copying conditions.  There is NO\n",
    )


def places(root: Path, path: str = "/usr/bin:/bin", **variables: str) -> Places:
    """Return where to look on the machine below ``root``."""
    return Places({"PATH": path, **variables}, "x86_64", root)
