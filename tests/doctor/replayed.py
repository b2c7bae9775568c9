"""The machines of tests/machines: laid out as a tree, and examined by `coli doctor --root` in this process.

``machine.txt`` holds all raw inputs of one. A line that begins with `== ` says what follows: `file PATH`, `words PATH`
(lines become words that end in a null byte, as in the device tree), `link PATH -> TARGET`, `folder PATH`, `tool PATH
[status=N] [stderr]` (a program and what it prints, whatever it is asked), `variable NAME=VALUE`, `model PATH`. Lines
before the first are remarks. ``smi.json`` describes nvidia-smi, which then lies in /usr/bin (or where `smi PATH` says).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from coli.backends.device_gates import check_architecture, check_devices, check_driver, check_memory
from coli.backends.devices import Fact, Selection, select_devices
from coli.backends.manifest import Manifest
from coli.backends.targets import DriverLimits, parse_target
from coli.cli import main
from coli.doctor.facts.machine import MachineFacts

from .machines import Machine

MACHINES = Path(__file__).parents[1] / "machines"


@dataclass
class Laid:
    """A machine as a tree below ``root``. ``environment`` is complete; ``model`` is a path of the machine."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    model: str | None = None


def names() -> list[str]:
    """Return the names of all machines."""
    return sorted(path.parent.name for path in MACHINES.glob("*/machine.txt"))


def expected(name: str) -> dict[str, Any]:
    """Return what was written down for a machine."""
    data: dict[str, Any] = json.loads((MACHINES / name / "expected.json").read_text("utf-8"))
    return data


def parts(text: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield kind, words and content of every part of a ``machine.txt``."""
    for part in ("\n" + text).split("\n== ")[1:]:
        head, _, content = part.partition("\n")
        kind, _, rest = head.partition(" ")
        # The line feed before the next head belongs to the content.
        yield kind, rest.split(" "), content + "\n" if content and not content.endswith("\n") else content


def lay_out(name: str, root: Path) -> Laid:
    """Lay a machine out below ``root``, which is made."""
    laid = Laid(root, {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/user"})
    machine = Machine(root, bare=True)
    smi = "/usr/bin/nvidia-smi"
    for kind, words, content in parts((MACHINES / name / "machine.txt").read_text("utf-8")):
        path = " ".join(words)
        if kind == "file":
            machine.file(path, content)
        elif kind == "words":
            machine.file(path, content.replace("\n", "\0"))
        elif kind == "link":
            link, _, target = path.partition(" -> ")
            place = root / link.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(target)
        elif kind == "folder":
            (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif kind == "tool":
            status = next((int(word[7:]) for word in words if word.startswith("status=")), 0)
            said = ("", content) if "stderr" in words else (content, "")
            machine.tool(words[0], said[0], status, said[1])
        elif kind == "variable":
            variable, _, value = path.partition("=")
            laid.environment[variable] = value
        elif kind == "model":
            laid.model = path
        elif kind == "smi":
            smi = path
        else:
            raise ValueError(f"{name}: {kind!r} is no part of a machine")
    if (MACHINES / name / "smi.json").exists():
        machine.smi(json.loads((MACHINES / name / "smi.json").read_text("utf-8")), smi)
    return laid


def doctor(laid: Laid, *arguments: str) -> tuple[int, str, str]:
    """Run `coli doctor` on it in this process; return exit code, standard output and standard error."""
    given = [laid.model, "--skip", "checkpoint"] if laid.model is not None else []
    out, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, laid.environment, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        code = main(["doctor", *given, "--root", str(laid.root), *arguments])
    return code, out.getvalue(), errors.getvalue()


def flat(document: dict[str, Any], facts: MachineFacts, laid: Laid) -> dict[str, Any]:
    """Return what a report says of a machine under the short names that expectations use."""
    system, cpu, memory, devices = facts.system, facts.cpu, facts.memory, facts.devices
    assert system is not None
    assert cpu is not None
    assert memory is not None
    assert devices is not None
    assert facts.toolkits is not None
    assert facts.compilers is not None
    host, driver = memory.host, devices.driver
    selection = select_devices(devices, laid.environment)
    told = {finding["code"]: finding for row in document["checks"] for finding in row["findings"]}
    compiler = told.get("compiler.accepted", told.get("compiler.found"))
    found: dict[str, Any] = {
        "system.platform": system.platform,
        "system.name": system.name.value,
        "system.kernel": system.kernel.value,
        "system.machine": system.machine.value,
        "system.libc": system.libc.value,
        "container": system.container.value,
        "wsl": system.wsl.value,
        "cpu.model": cpu.model.value,
        "cpu.level": cpu.level,
        "cpu.physical": cpu.physical_cores.value,
        "cpu.logical": cpu.logical_cores.value,
        "cpu.affinity": cpu.affinity.value,
        "cpu.quota": cpu.quota_cores.value,
        "cpu.threads": cpu.threads.value,
        "ram.total_kib": kib(host.total_bytes),
        "ram.available_kib": kib(host.available_bytes),
        "ram.limit_at": host.limit_at.value,
        "ram.swap_kib": kib(host.swap_total_bytes),
        "ram.zram": host.zram.value,
        "ram.commit_left_kib": kib(host.commit_left_bytes),
        "driver.state": driver.state,
        "driver.version": driver.version.value,
        "driver.max_cuda": None if driver.max_cuda.value is None else "{}.{}".format(*driver.max_cuda.value),
        "driver.module": driver.module_version.value,
        "driver.library": driver.library_version.value,
        "libcuda": driver.libcuda.value,
        "nvidia_smi": driver.nvidia_smi.value,
        "pci_cards": devices.pci_cards.value,
        "gpus": [
            f"{gpu.name.value}, {gpu.capability.value or '?'}, {gpu.memory.kind.value or '?'} "
            f"{mib(gpu.memory.total_bytes)}/{mib(gpu.memory.free_bytes)} MiB"
            for gpu in devices.gpus
        ],
        "slices": [
            f"{part.profile.value} {mib(part.memory.total_bytes)}/{mib(part.memory.free_bytes)} MiB"
            for gpu in devices.gpus
            for part in gpu.mig
        ],
        "visible": [_shown(device) for device in selection.usable],
        "skipped": [f"{skip.device.gpu.index}: {skip.reason}" for skip in selection.skipped],
        "backend": backend(facts, selection),
        "toolkits": [
            f"{one.version.short if one.version else '?'} {str(one.root)[1:]}" + ("" if one.usable else " unusable")
            for one in facts.toolkits
        ],
        "compilers": sorted(compiler.label for compiler in facts.compilers.compilers),
        "compiler": compiler and compiler["summary"].partition(" for ")[0],
        "build_toolkit": told["toolkit.fitting"]["summary"][14:23] if "toolkit.fitting" in told else None,
        "offers_cuda_13": any(
            "pypi:13.0" in f"{finding['fix']} {finding['commands']}"
            for row in document["checks"]
            for finding in row["findings"]
        ),
        "findings": sorted(
            f"{finding['status']} {finding['code']}"
            for row in document["checks"]
            for finding in row["findings"]
            if finding["status"] not in ("ok", "skip")
        ),
        "hidden": sorted(row["id"] for row in document["checks"] if row["needs_first"] is not None),
        "exit": document["exit_code"],
    }
    for storage in facts.storage or ():
        if storage.role == "model":
            disks = [f"{disk.name} {disk.kind.value or '?'}" for disk in storage.disks]
            found |= {
                "model.mount": storage.mount_point.value,
                "model.fs": storage.fs_type.value,
                "model.class": storage.fs_class.value,
                "model.disks": disks,
                "model.kind": storage.kind.value,
                "model.read_only": storage.read_only.value,
            }
    return found


def kib(fact: Fact[int]) -> int | None:
    """Return KiB, as /proc/meminfo counts."""
    return None if fact.value is None else fact.value // 1024


def mib(fact: Fact[int]) -> int | str:
    """Return MiB, as nvidia-smi counts."""
    return "?" if fact.value is None else fact.value >> 20


def _shown(device: Any) -> str:
    return str(device.gpu.index) if device.mig is None else f"{device.gpu.index}/{device.mig.uuid.value[:8]}"


def backend(facts: MachineFacts, selection: Selection) -> dict[str, str]:
    """Return, for the portable CUDA library of two toolkits, `ok` or the first refusal of the loader's own gates.

    A tree holds no libcuda that could be started; where there is one, it counts as sound.
    """
    devices = facts.devices
    assert devices is not None
    if devices.driver.libcuda.value is not None and devices.driver.cuda_error.value is None:
        driver = replace(devices.driver, cuda_error=Fact.of(0, "a tree"))
        devices = replace(devices, driver=driver)
    targets = tuple(map(parse_target, PORTABLE))
    verdicts = {}
    for toolkit in ((12, 8), (13, 0)):
        manifest = Manifest("f", "0", "cuda", "cuda", "", "nvcc", "unverified", toolkit, targets, None)
        limits = DriverLimits(devices.driver.max_cuda.value)
        architecture, served = check_architecture(targets, "the matrix", manifest, selection, limits)
        gates = [check_driver(devices, toolkit), check_devices(selection), architecture]
        gates += [check_memory(served)] if served else []
        refusal = next((gate for gate in gates if gate.verdict != "ok"), None)
        verdicts["{}.{}".format(*toolkit)] = "ok" if refusal is None else refusal.code
    return verdicts


PORTABLE = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120", "compute_80", "compute_120")
"""What the cell `portable` holds, from docs/build.md."""
