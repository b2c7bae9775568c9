"""Machines made of files: a root with stand-ins for tools, and the facts that the doctor finds there."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[1] / "cases"
sys.path.insert(0, str(CASES))

from prepared import TOOLS, prepare  # noqa: E402

from coli.backends.candidates import Search  # noqa: E402
from coli.doctor.facts.machine import FIELDS, MachineFacts, Request, probe_machine  # noqa: E402
from coli.settings import Environment, resolve  # noqa: E402

MEMINFO = (
    "MemTotal:       32768000 kB\nMemFree:        20000000 kB\nMemAvailable:   24576000 kB\n"
    "SwapTotal:             0 kB\nSwapFree:              0 kB\n"
)
CPUINFO = (
    "processor\t: 0\nmodel name\t: Test Processor\nphysical id\t: 0\ncore id\t: 0\ncpu cores\t: 1\n"
    "flags\t\t: fpu avx avx2 bmi1 bmi2 f16c fma abm movbe xsave\n\n"
)
OS_RELEASE = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n'


class Machine:
    """A machine below ``root``: files and tools are added, then it is examined."""

    def __init__(self, root: Path, environment: Mapping[str, str] | None = None, *, bare: bool = False) -> None:
        self.root = root
        self.environment = {"PATH": "/usr/bin", **(environment or {})}
        root.mkdir(parents=True, exist_ok=True)
        if bare:
            return
        self.file("proc/meminfo", MEMINFO)
        self.file("proc/cpuinfo", CPUINFO)
        self.file("proc/version", "Linux version 6.1.0-test (build@test)\n")
        self.file("proc/sys/kernel/osrelease", "6.1.0-test\n")
        self.file("etc/os-release", OS_RELEASE)
        self.file("proc/self/mountinfo", "22 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw\n")

    def file(self, path: str, text: str) -> Machine:
        """Write a file of the machine."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return self

    def tool(self, path: str, output: str, status: int = 0, errors: str = "") -> Machine:
        """Put a program there that prints ``output`` (and ``errors``), whatever it is asked."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        said = f"printf %s {shlex.quote(output)}\n" + (f"printf %s {shlex.quote(errors)} >&2\n" if errors else "")
        place.write_text(f"#!/bin/sh\n{said}exit {status}\n", encoding="utf-8")
        place.chmod(0o755)
        return self

    def smi(self, said: Mapping[str, Any], path: str = "/usr/bin/nvidia-smi") -> Machine:
        """Put an nvidia-smi there that answers from a description (as in smi.json of the cases)."""
        described = self.root / "smi.json"
        described.write_text(json.dumps(said), encoding="utf-8")
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        command = shlex.join([sys.executable, "-IS", str(TOOLS / "fake_nvidia_smi.py")])
        place.write_text(f'#!/bin/sh\nFAKE_SMI={shlex.quote(str(described))} exec {command} "$@"\n', encoding="utf-8")
        place.chmod(0o755)
        return self

    def facts(self, model: Path | None = None, fields: Iterable[str] = FIELDS) -> MachineFacts:
        """Examine it."""
        return facts_of(self.root, self.environment, model, fields)


def facts_of(
    root: Path, environment: Mapping[str, str], model: Path | None = None, fields: Iterable[str] = FIELDS
) -> MachineFacts:
    """Examine the machine below ``root``."""
    settings = resolve({}, Environment({}))
    request = Request(settings, environment, Search(), root=root, system="linux", machine="x86_64", model=model)
    return probe_machine(request, fields)


def case_facts(id: str, out: Path) -> MachineFacts:
    """Examine the machine of a case."""
    prepared = prepare(CASES / id, out)
    return facts_of(prepared.root, prepared.environment)
