"""Machines of real-world failure reports, rewritten: the detector and the decisions on each."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

CASES = Path(__file__).parents[2] / "cases"


def load_kinds() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kinds_driver", CASES / "kinds_driver.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


KINDS = load_kinds()


@pytest.mark.skipif(sys.platform != "linux", reason="not run: the stand-in for nvidia-smi is a script")
@pytest.mark.parametrize(
    "case",
    [path.parent for path in sorted(CASES.glob("*/expected.json")) if KINDS.read(path).get("kind") in KINDS.KINDS],
    ids=lambda path: path.name,
)
def test_case(case: Path, tmp_path: Path) -> None:
    observed = KINDS.observe(case, tmp_path)
    assert KINDS.differences(case, observed) == []
    advice = str(observed.get("advice", "")).lower()
    if observed.get("platform") == "wsl2" or observed.get("container"):
        assert "apt" not in advice and "install nvidia" not in advice
