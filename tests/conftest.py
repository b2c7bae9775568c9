"""Fixtures shared by the whole suite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TESTS = Path(__file__).parent
ORACLE = TESTS / "oracle"
ODD_ORACLE = TESTS / "oracle_odd"
DEMO_REFERENCE = TESTS / "demo"


@pytest.fixture(scope="session")
def oracle_path() -> Path:
    """The tiny random checkpoint."""
    return ORACLE / "model"


@pytest.fixture(scope="session")
def oracle() -> dict[str, Any]:
    """Transformers' answers: reference.json with the arrays of reference.npz under "arrays"."""
    return _reference(ORACLE)


@pytest.fixture(scope="session")
def odd_oracle_path() -> Path:
    """A tiny random checkpoint whose sizes fill no block of 128."""
    return ODD_ORACLE / "model"


@pytest.fixture(scope="session")
def odd_oracle() -> dict[str, Any]:
    """Transformers' answers for it."""
    return _reference(ODD_ORACLE)


@pytest.fixture(scope="session")
def demo_path() -> Path:
    """The trained checkpoint inside the installed package."""
    import coli

    return Path(coli.__file__).parent / "data" / "demo" / "model"


@pytest.fixture(scope="session")
def demo_reference() -> dict[str, Any]:
    """Transformers' answers for the demo model."""
    return _reference(DEMO_REFERENCE)


@pytest.fixture(scope="module")
def oracle_model(oracle_path: Path) -> Iterator[Any]:
    """The tiny model, opened once a module."""
    import coli

    with coli.open(oracle_path, threads=2, context=512) as model:
        yield model


def _reference(folder: Path) -> dict[str, Any]:
    reference: dict[str, Any] = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    with np.load(folder / "reference.npz", allow_pickle=False) as arrays:
        reference["arrays"] = {name: arrays[name] for name in arrays.files}
    return reference
