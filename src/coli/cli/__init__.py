"""The command line. Each command lives in its own module and is imported only when it is chosen."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `coli` with ``arguments`` (default: those of the process) and return its exit code."""
    try:
        from coli.cli.failure import guarded
        from coli.cli.group import run_group
    except KeyboardInterrupt:  # while the modules load nobody else is there to catch it
        sys.stderr.write("\ninterrupted\n")
        return 130
    given = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: run_group(given), given)
