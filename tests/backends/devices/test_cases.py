"""Machines of real-world failure reports, rewritten: the detector and the decisions on each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[2] / "cases"


@pytest.mark.skipif(sys.platform != "linux", reason="not run: the stand-in for nvidia-smi is a script")
def test_cases_of_drivers_devices_and_loader() -> None:
    folders = sorted([*CASES.glob("A-D*"), *CASES.glob("A-L*")])
    assert len(folders) >= 20
    command = [sys.executable, str(CASES / "adapter.py"), *map(str, folders)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == f"{len(folders)} cases: {len(folders)} ok, 0 failed, 0 not run"
