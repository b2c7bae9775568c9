"""The products of the fast mode on a card that has them: the installed library, the real cuBLASLt or DeepGEMM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import cases
import native
import numpy as np
import pytest
import reference
from test_fast import NAMES, SHAPES, rounded

from coli.backends._probe import open_library
from coli.backends.candidates import default_search
from coli.backends.cublas import BLOCK_SCALING, render_cublaslt
from coli.backends.devices import engine_environment, probe_devices, select_devices
from coli.backends.loader import survey
from coli.settings.environment import Environment


@pytest.fixture(scope="module")
def card() -> Iterator[native.Context]:
    """A context of the installed CUDA library with tensor cores, on the first device that it serves."""
    environment = Environment()
    search = default_search(library_path=environment.library_path(), environment=environment.for_tools())
    folders = tuple(Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry.startswith("/"))
    devices = probe_devices(search.environment, folders)
    usable = [device.capability.value for device in select_devices(devices, search.environment).usable]
    if not any(capability is not None and capability >= BLOCK_SCALING for capability in usable):
        pytest.skip(f"not run: no device of {BLOCK_SCALING} or later")
    trace = survey(search, devices=devices)
    rows = [row for row in trace.candidates if row.accepted and row.cublaslt is not None and row.cublaslt.needed]
    if not rows or rows[0].cublaslt is None:
        pytest.skip("not run: no CUDA library with tensor cores is installed that serves it (NO_TC=0 coli build)")
    row, found = rows[0], rows[0].cublaslt
    if found.path is None or not found.opens:
        pytest.skip(f"not run: {render_cublaslt(found)}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in engine_environment(row.devices, search.environment).items():
            patch.setenv(name, value)
        open_library(found.path)
        with native.Context(native.Library(row.candidate.path)) as context:
            yield context


@pytest.mark.parametrize(("format", "rows", "cols", "tokens", "groups"), SHAPES)
def test_products_of_the_rounded_operands(
    card: native.Context, format: int, rows: int, cols: int, tokens: int, groups: int
) -> None:
    """Exact products added in float32, in any order: within cols rounding steps of the sum of their magnitudes."""
    make = cases.Maker(rows + cols)
    spec, x = make.weight(format, rows, cols), make.floats(tokens, groups * cols)
    y = np.full((tokens, rows), 7, np.float32)
    weight = card.weight(format, rows, cols, spec.codes, spec.scales)
    card.stage(NAMES[format], weight, x, groups, y)
    values = rounded(x, groups)[2].reshape(tokens, groups, cols)
    exact = reference.decode_weight(format, rows, cols, spec.codes, spec.scales).reshape(groups, rows // groups, cols)
    want = np.einsum("gro,tgo->tgr", exact, values).reshape(tokens, rows)
    magnitude = np.einsum("gro,tgo->tgr", np.abs(exact), np.abs(values)).reshape(tokens, rows)
    assert (np.abs(y - want) <= cols * 2.0**-23 * magnitude).all()
