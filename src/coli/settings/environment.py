"""The process environment. This is the only module of coli that reads `os.environ`."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["Environment", "export_variables"]


def export_variables(variables: Mapping[str, str]) -> None:
    """Set variables of this process, for libraries of the system that read their own when they start (CUDA)."""
    os.environ.update(variables)


class Environment:
    """Hold a snapshot of the variables that coli looks at.

    ``variables``: another mapping in place of the process environment, for tests and replays.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        source = os.environ if variables is None else variables
        self._all = dict(source)
        self._library_path = source.get("LD_LIBRARY_PATH", "")
        wanted = ("COLI_", "DSV4_")
        self._variables = {
            name: value for name, value in source.items() if name.startswith(wanted) or name == "NO_COLOR"
        }

    def get(self, name: str) -> str | None:
        """Return the value of ``name``, None when it is not set."""
        return self._variables.get(name)

    def library_path(self) -> list[str]:
        """Return the folders where the system's loader looks first."""
        return [entry for entry in self._library_path.split(os.pathsep) if entry]

    def for_tools(self) -> dict[str, str]:
        """Return every variable: for the tools and libraries of the system, which read their own."""
        return dict(self._all)

    def names(self) -> list[str]:
        """Return the names of all set COLI_* and DSV4_* variables, sorted."""
        return sorted(name for name in self._variables if name != "NO_COLOR")
