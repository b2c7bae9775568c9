"""The programs that a build starts: CMake, Ninja, ccache where there is one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coli.errors import ColiError

__all__ = ["Tools", "find_tools", "missing_tools"]


@dataclass(frozen=True)
class Tools:
    """Absolute paths. ``ccache`` is None where there is none: builds are then slower, not different."""

    cmake: Path
    ninja: Path
    python: Path
    ccache: Path | None


def find_tools(environment: Mapping[str, str]) -> Tools:
    """Find the tools beside this Python (where pip puts them), then on PATH. Raises ColiError for a missing one."""
    found = _look(environment)
    if missing := missing_tools(environment):
        raise ColiError(
            " and ".join(missing),
            "a build needs CMake and Ninja",
            observed=f"not beside {sys.executable}, not on PATH",
            fix=f"{sys.executable} -m pip install {' '.join(missing)}",
            code="build.tools",
        )
    ccache = found["ccache"]
    return Tools(
        Path(str(found["cmake"])), Path(str(found["ninja"])), Path(sys.executable), Path(ccache) if ccache else None
    )


def missing_tools(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return which of cmake and ninja a build would not find."""
    found = _look(environment)
    return tuple(name for name in ("cmake", "ninja") if found[name] is None)


def _look(environment: Mapping[str, str]) -> dict[str, str | None]:
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join(part for part in (beside, environment.get("PATH", "")) if part)
    return {name: shutil.which(name, path=path) for name in ("cmake", "ninja", "ccache")}
