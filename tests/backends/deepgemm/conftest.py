"""The DeepGEMM flavour with the CPU as its device, and as it is shipped where its toolkit and headers can be had."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cuda"))
import native
from deepgemm_building import build_stand_in


@pytest.fixture(scope="session")
def flavour(tmp_path_factory: pytest.TempPathFactory) -> native.Library:
    """The flavour with a stand-in for DeepGEMM's kernel."""
    return native.Library(build_stand_in(tmp_path_factory.mktemp("stand-in")))
