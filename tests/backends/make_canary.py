"""Write backends/canary.bin from the portable library: ``python tests/backends/make_canary.py LIBRARY``."""

from __future__ import annotations

import sys
from pathlib import Path

import cases
import native

from coli.backends import vectors

SEED = 20251129


def canary(library: Path) -> bytes:
    """Return the vector file that ``library`` gives for the small calls."""
    made = []
    for call in cases.all_calls(SEED, small=True):
        with native.Context(native.Library(library)) as context:
            made.append(cases.to_case(call, cases.run_native(context, call)))
    return vectors.write_vectors(made)


if __name__ == "__main__":
    Path(__file__).resolve().parents[2].joinpath("backends", "canary.bin").write_bytes(canary(Path(sys.argv[1])))
