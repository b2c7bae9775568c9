"""Write backends/canary.bin: ``python tests/backends/make_canary.py PORTABLE_LIBRARY``.

Stages whose definition needs only +, -, *, / and square roots are computed in exact rational arithmetic
(`canary_cases`); the rest (those with exp) come from the portable library, whose outputs a test holds against the
float64 reference.
"""

from __future__ import annotations

import sys
from pathlib import Path

import canary_cases
import cases
import native

from coli.backends import vectors

SEED = 20251129


def canary(library: Path) -> bytes:
    """Return the vector file: the exact cases, then what ``library`` gives for the stages that they leave out."""
    made = canary_cases.canary_cases()
    exact = {case.stage for case in made}
    for call in cases.all_calls(SEED, small=True):
        if call.stage in exact:
            continue
        with native.Context(native.Library(library)) as context:
            made.append(cases.to_case(call, cases.run_native(context, call)))
    return vectors.write_vectors(made)


if __name__ == "__main__":
    Path(__file__).resolve().parents[2].joinpath("backends", "canary.bin").write_bytes(canary(Path(sys.argv[1])))
