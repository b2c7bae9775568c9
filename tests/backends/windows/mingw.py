"""The cross compiler for Windows."""

from __future__ import annotations

import shutil

import pytest

PREFIX = "x86_64-w64-mingw32-"
# The pool of the CPU backends is written on pthreads, and so is the whole runtime of this flavour; the other one
# (-win32) would bring a second model of threads into the same library.
COMPILER = f"{PREFIX}g++-posix"
CROSS = ("-DCMAKE_SYSTEM_NAME=Windows", "-DCMAKE_SYSTEM_PROCESSOR=x86_64", f"-DCMAKE_CXX_COMPILER={COMPILER}")


def require(name: str) -> str:
    """Return the path of a tool, or skip with the reason."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"not run: {name} is not installed")
    return found
