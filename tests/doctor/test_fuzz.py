"""Whatever tools print and files hold, no probe and no check crashes: a crash row is a failing test."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coli.doctor.checks.graph import choose_checks, run_checks
from coli.doctor.checks.table import CHECKS
from coli.doctor.report.document import Report, to_document
from coli.doctor.report.html import render_html
from coli.doctor.report.text import render_text

from .checks.test_broken_machines import SMI
from .machines import CPUINFO, MEMINFO, Machine

TABLE = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.14              Driver Version: 550.54.14      CUDA Version: 12.4     |
|   0  NVIDIA GeForce RTX 3080        Off |   00000000:01:00.0  On |                  N/A |
| 30%   40C    P8             25W /  320W |     300MiB /  10240MiB |      0%      Default |
"""
CSV = "0, NVIDIA GeForce RTX 3080, GPU-8f21a6f4-3b2d-4c11-9b6e-1d2c3b4a5f60, 00000000:01:00.0, 8.6, 10240, 300, 9700\n"
SAID = [TABLE, CSV, "No devices were found\n", "Failed to initialize NVML: Driver/library version mismatch\n", ""]
FILES = {
    "proc/meminfo": MEMINFO,
    "proc/cpuinfo": CPUINFO,
    "proc/swaps": "Filename Type Size Used Priority\n/dev/zram0 partition 8388604 0 100\n",
    "proc/self/cgroup": "0::/user.slice/session.scope\n",
    "proc/self/mountinfo": "22 1 259:1 / / rw - ext4 /dev/sda1 rw\n25 22 0:23 / /sys/fs/cgroup rw - cgroup2 c rw\n",
    "proc/self/status": "Cpus_allowed_list:\t0-3\n",
    "sys/fs/cgroup/user.slice/session.scope/memory.max": "2147483648\n",
    "sys/fs/cgroup/user.slice/session.scope/cpu.max": "200000 100000\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 2024\n",
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA RTX\nGPU UUID: \t GPU-????\n",
    "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n",
    "etc/os-release": 'PRETTY_NAME="Ubuntu 24.04"\n',
    "proc/sys/kernel/osrelease": "6.1.0\n",
    "proc/sys/vm/overcommit_memory": "2\n",
    "proc/device-tree/compatible": "nvidia,tegra234\0",
}
TOOLS = {
    "usr/bin/nvidia-smi": CSV,
    "usr/bin/g++": "g++ (Debian 12.2.0-14) 12.2.0\nFree Software Foundation\n",
    "usr/bin/ldd": "ldd (GNU libc) 2.41\n",
    "usr/local/cuda/bin/nvcc": "Cuda compilation tools, release 12.4, V12.4.131\n",
}


def damaged(text: str, draw: random.Random) -> str:
    """Return ``text`` cut off, with letters replaced, lines repeated or removed, or numbers of another size."""
    for _ in range(draw.randrange(1, 4)):
        way = draw.randrange(6)
        at = draw.randrange(len(text) + 1)
        if way == 0:
            text = text[:at]
        elif way == 1:
            text = text[:at] + chr(draw.choice([0, 7, 27, 10, 44, 58, 255, 0x2028, 0xFFFD])) + text[at + 1 :]
        elif way == 2:
            lines = text.splitlines(keepends=True)
            text = "".join(line for line in lines if draw.random() < 0.7)
        elif way == 3:
            text = text + text
        elif way == 4:
            text = text.replace(draw.choice("0123456789"), draw.choice(["", "-1", "99999999999999999999", "nan", "."]))
        else:
            text = "".join(chr(draw.randrange(1, 0x250)) for _ in range(draw.randrange(200)))
    return text.replace("\0", "") if way != 1 else text


def examine(machine: Machine, places: tuple[str, ...] = ()) -> None:
    facts = machine.facts()
    assert facts.problems == ()
    rows = run_checks(choose_checks(CHECKS, model=False), facts)
    assert [row for row in rows if row.status in ("crash", "timeout")] == []
    report = Report(rows, facts)
    to_document(report)
    render_text(report, 80)
    render_html(report)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_damaged_files_and_tools(seed: int) -> None:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(
            Path(folder), {"CUDA_VISIBLE_DEVICES": draw.choice(["0", "GPU-8f", "-1", "9,\x01", ",,,", "MIG-1"])}
        )
        for path, text in FILES.items():
            machine.file(path, damaged(text, draw) if draw.random() < 0.6 else text)
        for path, text in TOOLS.items():
            said = draw.choice(SAID) if path.endswith("smi") else text
            machine.tool(path, damaged(said, draw).replace("\0", ""), draw.choice([0, 0, 2, 6, 9, 18, 255]))
        examine(machine)


@pytest.mark.full
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_many_damaged_machines(seed: int) -> None:
    test_damaged_files_and_tools.hypothesis.inner_test(seed)  # type: ignore[attr-defined]


def test_files_that_are_folders_and_folders_that_are_files(tmp_path: Path) -> None:
    machine = Machine(tmp_path).smi(SMI)
    for path in ("proc/meminfo", "proc/cpuinfo", "proc/self/mountinfo", "etc/os-release"):
        (tmp_path / path).unlink()
        (tmp_path / path).mkdir()
    machine.file("sys/bus", "").file("usr/local/cuda", "").file("proc/driver", "")
    examine(machine)


def test_an_empty_tree(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "x")
    machine.root = tmp_path / "nothing"
    examine(machine)


def test_links_in_a_circle(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "usr/local").mkdir(parents=True)
    for path in ("usr/local/cuda", "proc/swaps", "usr/bin"):
        (tmp_path / path).symlink_to(tmp_path / path)
    examine(machine)
