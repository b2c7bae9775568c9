"""Choose a backend: every candidate goes through every gate, the best that passed is opened, and the trace says why."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coli.backends import gates
from coli.backends.abi import SLOT_LIST
from coli.backends.candidates import Search, default_search, find_candidates, is_file_selection, level_of, matches
from coli.backends.cpu_level import Cpu, cpu_level
from coli.backends.cublas import BLOCK_SCALING, decide_opening, probe_cublaslt
from coli.backends.device_gates import (
    Served,
    check_architecture,
    check_devices,
    check_driver,
    check_memory,
    read_targets,
)
from coli.backends.devices import (
    DeviceFacts,
    Selection,
    decide_advice,
    engine_environment,
    probe_devices,
    select_devices,
)
from coli.backends.files import is_file
from coli.backends.manifest import Manifest, file_sha256
from coli.backends.probe import DEADLINE_S, Answer, cache_key, probe_library, read_cached, write_cached
from coli.backends.targets import DriverLimits
from coli.backends.toolkit_places import Places
from coli.backends.trace import GATES, Candidate, CandidateTrace, CublasLt, Finding, Trace, not_run, ok
from coli.errors import BackendRefused, ColiError
from coli.settings.environment import export_variables

__all__ = [
    "CANARY",
    "Loaded",
    "Machine",
    "Opened",
    "decide",
    "decide_chain",
    "examine",
    "explain_selection",
    "load",
    "open_verified",
    "refusal_of",
    "render_banner",
    "survey",
]

CANARY = Path(__file__).with_name("canary.bin")


@dataclass(frozen=True)
class Opened:
    """One library of the chain, open: the name that selects it, its file, the address of its table, what it serves."""

    name: str
    path: Path
    address: int
    stages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """A backend that passed every gate, opened, with those that serve what it declines.

    ``address`` is that of its table, which stays valid as long as the process. ``chain`` is for the dispatcher: this
    backend first, a CPU backend last. ``device``: where it computes, for people.
    """

    name: str
    path: Path
    address: int
    trace: Trace
    chain: tuple[Opened, ...]
    device: str = "cpu"
    fast_library: Path | None = None


class Machine:
    """What the gates judge against: the CPU, and driver and devices, looked for when the first CUDA library asks."""

    def __init__(self, cpu: Cpu, search: Search, devices: DeviceFacts | None = None) -> None:
        self.cpu = cpu
        self._search = search
        self._devices = devices

    @property
    def seen(self) -> DeviceFacts | None:
        """Return driver and devices if something has asked for them."""
        return self._devices

    @property
    def devices(self) -> DeviceFacts:
        """Return driver and devices."""
        if self._devices is None:
            environment = self._search.environment
            path = tuple(Path(p) for p in environment.get("PATH", "").split(os.pathsep) if Path(p).is_absolute())
            self._devices = probe_devices(environment, path, self._search.root)
        return self._devices

    @property
    def selection(self) -> Selection:
        """Return the devices that may be used."""
        return select_devices(self.devices, self._search.environment)


def examine(
    candidate: Candidate, machine: Machine, search: Search, canary: Path = CANARY, deadline_s: float = DEADLINE_S
) -> CandidateTrace:
    """Run every gate on one candidate. Those that open the library run only when all before them passed."""
    path, cpu = candidate.path, machine.cpu
    file = gates.check_file(path)
    findings = [file]
    if file.code in ("file.missing", "file.not-regular", "file.unreadable"):
        return CandidateTrace(candidate, (file, *(not_run(gate, "file") for gate in GATES[1:])))
    container_finding, container = gates.check_container(path, cpu)
    findings.append(container_finding)
    if container is None or container_finding.verdict != "ok":
        findings.append(not_run("dependencies", "container"))
    else:
        findings.append(gates.check_dependencies(path, container, search.library_path))
    manifest_finding, manifest, sha256 = gates.check_manifest(path)
    findings.append(manifest_finding)
    served: tuple[Served, ...] = ()
    if manifest is None or manifest.kind not in ("cpu", "cuda"):
        findings += [not_run(gate, "manifest") for gate in ("cpu", *_DEVICE_GATES)]
    elif manifest.kind == "cpu":
        findings.append(gates.check_cpu(manifest.level, cpu))
        findings += [ok(gate, "computes on the CPU") for gate in _DEVICE_GATES]
    else:
        findings.append(ok("cpu", "code for every CPU of this machine's kind"))
        device_findings, served = _judge_devices(path, manifest, machine)
        findings += device_findings
    cublaslt = _find_cublaslt(manifest, served, machine, search)
    kind = manifest.kind if manifest is not None else ""
    broken = next((finding.gate for finding in findings if finding.verdict == "refused"), None)
    broken = broken or next((finding.gate for finding in findings if finding.verdict != "ok"), None)
    if broken is not None or sha256 is None:
        late = (not_run(gate, broken or "manifest") for gate in GATES[len(findings) :])
        return CandidateTrace(candidate, (*findings, *late), kind=kind, cublaslt=cublaslt)
    answer, (judged, stages), cached = _ask(path, sha256, kind, served, cublaslt, machine, search, canary, deadline_s)
    return CandidateTrace(
        candidate,
        (*findings, *judged),
        cached,
        kind,
        tuple(s.device for s in served),
        stages,
        None if cublaslt is None else decide_opening(cublaslt, answer),
        sha256,
    )


_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
_DEVICE_GATES = ("driver", "devices", "architecture", "memory")


def _judge_devices(path: Path, manifest: Manifest, machine: Machine) -> tuple[list[Finding], tuple[Served, ...]]:
    facts = machine.devices
    driver = check_driver(facts, manifest.toolkit)
    if not facts.gpus:
        return [driver, *(not_run(gate, "driver") for gate in _DEVICE_GATES[1:])], ()
    selection = machine.selection
    devices = check_devices(selection)
    targets = read_targets(path, manifest)
    if isinstance(targets, Finding):
        return [driver, devices, targets, not_run("memory", "architecture")], ()
    if devices.verdict != "ok":
        return [driver, devices, *(not_run(gate, "devices") for gate in _DEVICE_GATES[2:])], ()
    limits = DriverLimits(facts.driver.max_cuda.value)
    architecture, served = check_architecture(*targets, manifest, selection, limits)
    memory = check_memory(served) if served else not_run("memory", "architecture")
    return [driver, devices, architecture, memory], served


def _find_cublaslt(
    manifest: Manifest | None, served: Sequence[Served], machine: Machine, search: Search
) -> CublasLt | None:
    """Return where the cuBLASLt of a library with products in tensor cores is; None for other libraries."""
    if manifest is None or manifest.cublaslt is None:
        return None
    places = Places(search.environment, machine.cpu.machine, search.root, search.site_folders)
    found = probe_cublaslt(manifest.cublaslt, places, search.library_path)
    capabilities = [s.device.capability.value for s in served]
    needed = any(capability is not None and capability >= BLOCK_SCALING for capability in capabilities)
    return dataclasses.replace(found, needed=needed)


def _ask(
    path: Path,
    sha256: str,
    kind: str,
    served: Sequence[Served],
    cublaslt: CublasLt | None,
    machine: Machine,
    search: Search,
    canary: Path,
    deadline_s: float,
) -> tuple[Answer, tuple[tuple[Finding, ...], tuple[str, ...]], bool]:
    """Return the answer of the child process, its findings and the stages it saw served, and whether it was kept.

    A cuBLASLt that a device needs is opened there too, last: what it does is then no fault of the library.
    """
    cpu = machine.cpu
    on: tuple[str, ...] = (kind, cpu.machine, *sorted(cpu.flags or ()))
    environment: dict[str, str] | None = None
    if kind == "cuda":
        added = engine_environment([s.device for s in served], search.environment)
        environment = {**search.environment, **added}
        driver = machine.devices.driver
        on += (str(driver.version.value), str(driver.max_cuda.value), *sorted(added.values()), *(s.why for s in served))
    opens = cublaslt.path if cublaslt is not None and cublaslt.needed else None
    if opens is not None:
        on += _identity(opens)
    key = cache_key(sha256, canary, SLOT_LIST, on)
    kept: Answer | None = read_cached(search.cache_folder, key)
    if kept is not None:
        try:
            return kept, _judge(kept, kind), True
        except _MALFORMED:
            kept = None  # damaged: ask again and replace it
    answer = probe_library(path, canary, deadline_s, kind, environment, opens)
    try:
        judged = _judge(answer, kind)
    except _MALFORMED:  # a library that writes where the child does is a broken one
        answer = Answer({}, "exit", "its answer is not that of the loader's child")
        judged = _judge(answer, kind)
    if search.keeps:
        write_cached(search.cache_folder, key, answer)
    return answer, judged, False


def _identity(path: Path) -> tuple[str, ...]:
    """Return what changes with a file of 500 MB that nobody wants to hash at each start."""
    try:
        status = path.stat()
    except OSError:
        return (str(path),)
    return (str(path), str(status.st_size), str(status.st_mtime_ns))


def _judge(answer: Answer, kind: str) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    findings = gates.judge_answer(answer, kind)
    return findings, gates.served_stages(answer) if all(finding.verdict == "ok" for finding in findings) else ()


def survey(
    search: Search,
    cpu: Cpu | None = None,
    canary: Path = CANARY,
    deadline_s: float = DEADLINE_S,
    with_devices: bool = False,
    devices: DeviceFacts | None = None,
) -> Trace:
    """Examine all candidates and decide. Never raises for what it finds; the trace has it.

    ``with_devices``: look for driver and devices even when no library asks for them. ``devices``: what was found
    already.
    """
    cpu = cpu or cpu_level()
    machine = Machine(cpu, search, devices)
    places, candidates = find_candidates(search)
    traces = tuple(examine(candidate, machine, search, canary, deadline_s) for candidate in candidates)
    trace = Trace(f"{cpu.machine}, {cpu.best}", search.selection, places, traces)
    trace = dataclasses.replace(trace, devices=machine.devices if with_devices else machine.seen)
    chosen, why = decide(trace, search, cpu)
    chain = decide_chain(trace, chosen) if chosen is not None else ()
    if chosen is not None and not chain:
        name = trace.candidates[chosen].candidate.name
        chosen, why = None, f"{name} needs a CPU backend for the stages that it does not serve"
    return dataclasses.replace(trace, chosen=chosen, why=why, chain=chain)


def explain_selection(
    selection: str, search: Search, cpu: Cpu | None = None, canary: Path = CANARY, deadline_s: float = DEADLINE_S
) -> Trace:
    """Examine only what ``selection`` means: a file, or every library of that name.

    Raises BackendRefused for an unknown name.
    """
    cpu = cpu or cpu_level()
    # Here a bare file name is what somebody typed to have that file looked at; it selects nothing.
    if not is_file_selection(selection) and is_file(Path(selection)):
        selection = str(Path(selection).absolute())
    search = dataclasses.replace(search, selection=selection, selection_origin="FILE")
    places, candidates = find_candidates(search)
    trace = Trace(f"{cpu.machine}, {cpu.best}", selection, places, tuple(CandidateTrace(c, ()) for c in candidates))
    if is_file_selection(selection):
        asked = candidates[:1]
    else:
        asked = tuple(candidate for candidate in candidates if matches(candidate, selection))
    if not asked:
        raise refusal_of(trace, search)
    machine = Machine(cpu, search)
    traces = tuple(examine(candidate, machine, search, canary, deadline_s) for candidate in asked)
    return dataclasses.replace(trace, candidates=traces, why="examined only", devices=machine.seen)


def decide(trace: Trace, search: Search, cpu: Cpu) -> tuple[int | None, str]:
    """Return the index of the chosen candidate and the reason; None when none can be used. Pure."""
    selection = search.selection
    if selection is None:
        for index, candidate in enumerate(trace.candidates):
            if candidate.accepted:
                return index, _why_first(trace, index, cpu, gpu_wanted=search.gpu != "none")
        return None, "every candidate was refused" if trace.candidates else "no backend was found"
    if is_file_selection(selection):
        return (0, f"asked for by {search.selection_origin}") if trace.candidates[0].accepted else (None, "refused")
    named = [index for index, c in enumerate(trace.candidates) if matches(c.candidate, selection)]
    for index in named:
        if trace.candidates[index].accepted:
            return index, f"asked for by {search.selection_origin}"
    return None, "refused" if named else "no backend has this name"


def _why_first(trace: Trace, index: int, cpu: Cpu, *, gpu_wanted: bool) -> str:
    """Say why a candidate is the best that can be used, and name what would have come before it.

    A CUDA library is no loss where there is no driver at all, or where nobody wants a GPU.
    """
    chosen = trace.candidates[index]
    lost = gpu_wanted and not (trace.devices is not None and trace.devices.driver.state == "absent")
    before = [c for c in trace.candidates[:index] if c.refusal is not None and (lost or c.kind != "cuda")]
    if chosen.kind == "cuda":
        gate = next(finding for finding in chosen.findings if finding.gate == "architecture")
        why, passed_over = gate.evidence, before
    elif level_of(chosen.candidate) == cpu.best:
        # Another copy of the same level is no loss; a GPU that is not used is.
        why, passed_over = f"best level of this CPU ({cpu.best})", [c for c in before if c.kind == "cuda"]
    else:
        why, passed_over = f"{cpu.best} is this CPU's level", before
    return why + (f"; refused: {', '.join(map(_render_refused, passed_over))}" if passed_over else "")


def _render_refused(trace: CandidateTrace) -> str:
    finding = trace.refusal
    if trace.kind != "cuda" or finding is None:
        return trace.candidate.name
    return f"{trace.candidate.name} ({finding.gate}: {finding.evidence})"


def decide_chain(trace: Trace, chosen: int) -> tuple[int, ...]:
    """Return the candidates that the dispatcher asks in turn; empty when no CPU backend can end it. Pure.

    A CUDA library serves some stages and declines the rest; the CPU serves all of them, with the same bits.
    """
    if trace.candidates[chosen].kind == "cpu":
        return (chosen,)
    for index, candidate in enumerate(trace.candidates):
        if candidate.accepted and candidate.kind == "cpu":
            return chosen, index
    return ()


def load(
    selection: str | None = None, search: Search | None = None, canary: Path = CANARY, deadline_s: float = DEADLINE_S
) -> Loaded:
    """Choose, open and return a backend. ``selection`` is a name or a file and wins over the one in ``search``.

    Raises BackendRefused when what was asked for is refused or unknown, ColiError when no backend can be used at all.
    """
    search = search or default_search()
    if selection:
        search = dataclasses.replace(search, selection=selection)
    asks_gpu = search.gpu not in (None, "none")
    trace = survey(search, canary=canary, deadline_s=deadline_s, with_devices=asks_gpu)
    if trace.chosen is None:
        raise refusal_of(trace, search)
    chosen = trace.candidates[trace.chosen]
    if asks_gpu and chosen.kind != "cuda":
        raise _gpu_refused(trace, search)
    # CUDA reads its variables when it starts; set before the library is opened, they number the served devices from 0.
    if chosen.kind == "cuda":
        export_variables(engine_environment(chosen.devices, search.environment))
    chain = tuple(
        Opened(c.candidate.name, c.candidate.path, open_verified(c.candidate.path, c.sha256), c.stages)
        for c in (trace.candidates[index] for index in trace.chain)
    )
    device = ", ".join(device.name for device in chosen.devices) or "cpu"
    found = chosen.cublaslt
    fast_library = found.path if found is not None and found.opens else None
    return Loaded(chain[0].name, chain[0].path, chain[0].address, trace, chain, device, fast_library)


_NO_DRIVER = "install NVIDIA's driver, if this machine has such a GPU"


def _gpu_refused(trace: Trace, search: Search) -> BackendRefused:
    """Return the error for a GPU that was asked for and would not be used."""
    refusals = [candidate.refusal for candidate in trace.candidates if candidate.kind == "cuda"]
    first = next((finding for finding in refusals if finding is not None), None)
    observed = f"{first.gate}: {first.evidence}" if first else "there is no CUDA library; looked in "
    if first is None:
        observed += _render_places(trace)
        if refusals:
            observed = f"{search.selection} was asked for too ({search.selection_origin})"
    build = "`coli build` makes a CUDA library; `--gpu none` computes on the CPU"
    fix = first.fix if first else None
    if trace.devices is not None and trace.devices.driver.state != "ok" and not fix:
        # A library that is built first would be refused for it.
        advice = decide_advice(trace.devices)
        observed = f"no driver that can be used ({trace.devices.driver.evidence}); {observed}"
        fix = f"first {advice.text if advice else _NO_DRIVER}; then {build}"
    return BackendRefused(
        f"--gpu {search.gpu}",
        "nothing can compute on this GPU",
        observed=observed,
        expected=first.expected if first else None,
        fix=fix or build,
        code="backend.gpu",
    )


def open_verified(path: Path, sha256: str) -> int:
    """Open a library that passed every gate in this process and return the address of its table.

    ``sha256``: of the bytes that passed. Raises BackendRefused, also when a build has put another library there since:
    nobody has compared its table with ours.
    """
    from coli.backends._probe import open_library, query_table

    try:
        library = open_library(path)
        same = file_sha256(path) == sha256
        address = query_table(library) if same else None
    except (OSError, AttributeError) as error:
        address, reason = None, str(error)
    else:
        reason = "its query returned null" if same else "it was replaced meanwhile"
    if not address:
        raise BackendRefused(
            str(path),
            "it opened in the child process and does not in this one",
            observed=reason,
            fix="start again: another build may have been installed meanwhile; `coli backends explain` looks at it",
            code="backend.open",
        )
    return address


def refusal_of(trace: Trace, search: Search) -> ColiError:
    """Return the error for a trace without a choice: the reason of the candidate that was asked for, or all of them."""
    selection = search.selection
    if selection is not None:
        asked = [
            candidate
            for index, candidate in enumerate(trace.candidates)
            if (index == 0 if is_file_selection(selection) else matches(candidate.candidate, selection))
        ]
        if any(candidate.accepted for candidate in asked):
            return BackendRefused(
                selection,
                "a CUDA library needs a CPU backend behind it for the stages that it does not serve",
                observed="; ".join(_refusals(trace)) or f"no CPU library in {_render_places(trace)}",
                fix="install coli again (`pip install --force-reinstall coli`), then look at `coli backends`",
                code="backend.no-cpu",
            )
        finding = asked[0].refusal if asked else None
        if finding is not None:
            return BackendRefused(
                str(asked[0].candidate.path),
                f"the backend that {search.selection_origin} asks for is refused by gate {finding.gate}",
                observed=finding.evidence,
                expected=finding.expected,
                fix=finding.fix or f"`coli backends explain {asked[0].candidate.path}` shows every gate",
                code=f"backend.{finding.code}",
            )
        known = sorted({candidate.candidate.name for candidate in trace.candidates})
        near = difflib.get_close_matches(selection, known, 1)
        hint = (
            f"did you mean {near[0]}?"
            if near
            else "use one of these names, or a path with a folder (./file) for a file"
        )
        return BackendRefused(
            selection,
            f"{search.selection_origin} names a backend that is not known",
            expected=", ".join(known) or f"nothing was found in {_render_places(trace)}",
            fix=hint,
            code="backend.unknown",
        )
    reasons = "; ".join(_refusals(trace))
    return ColiError(
        "backends",
        "no backend can be used on this machine",
        observed=reasons or f"no library in {_render_places(trace)}",
        fix="install coli again (`pip install --force-reinstall coli`), then look at `coli backends`",
        code="backend.none",
    )


def _refusals(trace: Trace) -> list[str]:
    return [
        f"{c.candidate.name}: {c.refusal.gate}: {c.refusal.evidence}" for c in trace.candidates if c.refusal is not None
    ]


def _render_places(trace: Trace) -> str:
    return ", ".join(f"{place.path} ({place.state})" for place in trace.places)


def render_banner(loaded: Loaded) -> str:
    """Return the one line that says on start which backend runs and why."""
    return f"[coli] backend={loaded.path.name} ({loaded.name}) device={loaded.device} why={loaded.trace.why}"
