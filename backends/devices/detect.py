"""The one detector of driver and devices: asks nvidia-smi, the driver's libraries and the file system, then decides."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coli.backends.child import Ended, run_child
from coli.backends.devices.facts import UNKNOWN, DeviceFacts, Driver, DriverState, Fact, Gpu, Platform
from coli.backends.devices.libraries import LibraryReport, ask_library
from coli.backends.devices.locate import DriverParts, Located, locate_driver
from coli.backends.devices.merge import merge_gpus, with_memory_kind, with_tegra
from coli.backends.devices.proc import (
    probe_container,
    probe_module_version,
    probe_pci_cards,
    probe_platform,
    probe_proc_gpus,
    probe_system_memory,
    probe_tegra,
)
from coli.backends.devices.smi import (
    QUERY_FIELDS,
    SmiReport,
    classify_failure,
    lost_devices,
    parse_csv,
    parse_list,
    parse_table,
    parse_version,
    parse_xml,
    rejected_field,
)

__all__ = ["DEADLINE_S", "SmiAnswer", "decide_driver_state", "probe_devices", "probe_smi"]

DEADLINE_S = 20.0  # for everything together; without a driver it takes a few milliseconds
_CALL_S = 10.0  # a machine without persistence mode starts every card anew for each call: about 1 s a card
_MAX_OUTPUT_BYTES = 8 << 20
_NOT_ASKED = LibraryReport(False)


@dataclass(frozen=True)
class SmiAnswer:
    """What all calls of nvidia-smi told together. ``state`` None: nothing speaks against the driver."""

    state: DriverState | None = None
    evidence: str = ""
    report: SmiReport = field(default_factory=SmiReport)
    library_version: Fact[str] = UNKNOWN


class _Clock:
    """The time that is left of a deadline for everything."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._end = time.monotonic() + deadline_s

    def left_s(self) -> float:
        return max(0.05, min(_CALL_S, self._end - time.monotonic()))

    def half_left_s(self) -> float:
        """Return what is left of the first half: a tool that hangs leaves the libraries their time."""
        return max(0.05, min(_CALL_S, self._end - self._deadline_s / 2 - time.monotonic()))


def probe_devices(
    environment: Mapping[str, str],
    path: Sequence[Path] = (),
    root: Path = Path("/"),
    system: str = sys.platform,
    deadline_s: float = DEADLINE_S,
) -> DeviceFacts:
    """Find out what driver and devices the machine below ``root`` has. Never raises for what it finds.

    ``path``: the folders of PATH. ``environment``: what the tools and libraries are run with; CUDA_VISIBLE_DEVICES is
    not applied here, see `coli.backends.devices.visible`.
    """
    clock = _Clock(deadline_s)
    platform = probe_platform(root, system)
    parts = locate_driver(root, path, environment, system)
    smi = probe_smi(parts.nvidia_smi, environment, clock.half_left_s) if parts.nvidia_smi else None
    nvml = _NOT_ASKED
    # It tells what nvidia-smi tells: asked where that is missing or did not run.
    if parts.libnvml and (smi is None or smi.state in ("timeout", "failed")):
        nvml = ask_library("nvml", parts.libnvml.path, environment, clock.left_s())
    cuda = _NOT_ASKED
    if parts.libcuda:
        cuda = ask_library("cuda", parts.libcuda.path, environment, clock.left_s())
    module = probe_module_version(root)
    state, evidence = decide_driver_state(platform, parts, smi, nvml, cuda, module)
    tegra = probe_tegra(root)
    total_bytes, available_bytes = probe_system_memory(root)
    gpus: tuple[Gpu, ...] = ()
    if state == "ok" or (smi and smi.report.gpus):
        gpus = merge_gpus(smi.report.gpus if smi else (), nvml.gpus)
        gpus = merge_gpus(gpus, cuda.gpus)
        gpus = tuple(_fill_from(probe_proc_gpus(root), gpu) for gpu in gpus)
        gpus = with_memory_kind(with_tegra(gpus, tegra), tegra is not None, total_bytes, available_bytes)
    report = smi.report if smi else SmiReport()
    driver = Driver(
        state,
        evidence,
        version=report.driver_version.otherwise(nvml.version).otherwise(module),
        # libcuda is what will compile PTX: its own word is the best, and differs with a compatibility package.
        max_cuda=cuda.max_cuda.otherwise(report.max_cuda).otherwise(nvml.max_cuda),
        module_version=module,
        library_version=smi.library_version if smi else UNKNOWN,
        libcuda=_place(parts.libcuda, parts.searched),
        nvidia_smi=_place(parts.nvidia_smi, parts.searched),
        cuda_error=cuda.error,
    )
    notes = [*parts.notes, *(f"nvidia-smi also says: {line}" for line in report.problems)]
    notes += [answer.evidence for answer in (nvml, cuda) if answer.evidence and not answer.asked]
    pci_cards = probe_pci_cards(root)
    return DeviceFacts(
        platform,
        probe_container(root, environment),
        driver,
        gpus,
        pci_cards,
        total_bytes,
        available_bytes,
        tuple(notes),
    )


def _place(located: Located | None, searched: str) -> Fact[str]:
    return Fact.of(located.shown, "file system") if located else Fact.absent(f"not in {searched}")


def _fill_from(known: Sequence[Gpu], gpu: Gpu) -> Gpu:
    """Fill a device from a list without adding what only the list has: the kernel also has cards that do not start."""
    same = [k for k in known if gpu.uuid.known and k.uuid.value == gpu.uuid.value]
    same = same or [k for k in known if gpu.bus_id.known and k.bus_id.value == gpu.bus_id.value]
    return merge_gpus((gpu,), same[:1])[0] if same else gpu


def decide_driver_state(
    platform: Platform,
    parts: DriverParts,
    smi: SmiAnswer | None,
    nvml: LibraryReport,
    cuda: LibraryReport,
    module: Fact[str],
) -> tuple[DriverState, str]:
    """Say whether the driver can be used, and the evidence. Pure.

    What cuInit returned counts before what the tools say: it is what a backend will call.
    """
    if cuda.state is not None:
        return cuda.state, cuda.evidence
    if smi is not None and smi.state is not None and smi.state not in ("timeout", "failed") and not cuda.gpus:
        return smi.state, smi.evidence
    if nvml.state is not None and not cuda.gpus:
        return nvml.state, nvml.evidence
    found = [
        name
        for name, gpus in (("nvidia-smi", smi.report.gpus if smi else ()), ("NVML", nvml.gpus), ("libcuda", cuda.gpus))
        if gpus
    ]
    if found:
        return "ok", f"devices told by {', '.join(found)}"
    if cuda.asked or nvml.asked:
        return "no-usable-device", "the driver starts and has no device"
    if smi is not None:
        return smi.state or "failed", smi.evidence or "nvidia-smi tells of no device"
    if parts.libcuda or parts.libnvml:
        located = parts.libcuda or parts.libnvml
        assert located is not None  # noqa: S101  one of them is there
        return "driver-present-tool-missing", f"{located.shown} is there; no nvidia-smi was found"
    if module.known:
        return "library-missing", f"the kernel module {module.value} is loaded; libcuda was not found"
    return "absent", "no nvidia-smi, no libcuda, no kernel module"


def _run(tool: Path, arguments: Sequence[str], environment: Mapping[str, str], left_s: float) -> Ended:
    # Numbers and sentences in English, whatever the user's language is.
    plain = {**environment, "LC_ALL": "C"}
    return run_child([tool, *arguments], deadline_s=left_s, max_bytes=_MAX_OUTPUT_BYTES, environment=plain)


def _said(ended: Ended) -> str:
    return ended.output.decode("utf-8", "replace") + "\n" + ended.errors


def probe_smi(tool: Located, environment: Mapping[str, str], left_s: Callable[[], float]) -> SmiAnswer:
    """Run nvidia-smi: a query of fields, without those that it does not know, then its XML, or its table without.

    A call that fails as a whole ends it: the next would say the same, as slowly.
    """
    fields = list(QUERY_FIELDS)
    for _ in QUERY_FIELDS:
        arguments = (f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        ended = _run(tool.path, arguments, environment, left_s())
        said = _said(ended)
        unknown = rejected_field(said)
        if unknown is None or unknown not in fields[:-1]:
            break
        fields.remove(unknown)
    if ended.end != "exit":
        return _did_not_end(tool, ended)
    rows = parse_csv(ended.output.decode("utf-8", "replace"), fields)
    failure = classify_failure(ended.code, said)
    if not rows.gpus and failure is not None:
        library = next(
            (line.split(":")[1] for line in said.splitlines() if line.startswith("NVML library version:")), ""
        )
        return SmiAnswer(*failure, SmiReport(problems=()), parse_version(library, "nvidia-smi"))
    ended = _run(tool.path, ("-q", "-x"), environment, left_s())
    details = parse_xml(ended.output.decode("utf-8", "replace"))
    if ended.end != "exit" or not details.max_cuda.known or not (rows.gpus or details.gpus):
        table = parse_table(_run(tool.path, (), environment, left_s()).output.decode("utf-8", "replace"))
        details = _joined(details, table)
    gpus = merge_gpus(rows.gpus, details.gpus)
    lost = lost_devices(rows.problems)
    if any(gpu.mig_enabled.value or gpu.mig for gpu in gpus) or not gpus:
        listed = parse_list(_run(tool.path, ("-L",), environment, left_s()).output.decode("utf-8", "replace"))
        gpus = merge_gpus(gpus, listed.gpus)
    if lost:  # an error stood in place of a row: what only the other outputs have is that device, as it once was
        gpus = gpus[: len(rows.gpus)]
    report = SmiReport(
        gpus,
        rows.driver_version.otherwise(details.driver_version),
        details.max_cuda,
        tuple(dict.fromkeys((*rows.problems, *(p for p in details.problems if rows.gpus == ())))),
    )
    if gpus:
        return SmiAnswer(report=report)
    said = said.strip()
    return SmiAnswer("failed", f"nvidia-smi tells of no device: {said[:200]!r}" if said else "it says nothing", report)


def _did_not_end(tool: Located, ended: Ended) -> SmiAnswer:
    if ended.end == "timeout":
        return SmiAnswer("timeout", f"{tool.shown} did not answer in time")
    if ended.end == "signal":
        return SmiAnswer("failed", f"{tool.shown} crashed (signal {ended.code})")
    return SmiAnswer("failed", f"{tool.shown} does not start: {ended.errors[:200]}")


def _joined(first: SmiReport, second: SmiReport) -> SmiReport:
    return SmiReport(
        merge_gpus(first.gpus, second.gpus),
        first.driver_version.otherwise(second.driver_version),
        first.max_cuda.otherwise(second.max_cuda),
        (*first.problems, *second.problems),
    )
