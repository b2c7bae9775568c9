"""Checks of the compute backends: which one runs, whether the GPU is used, and what was refused."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from coli.backends.cublas import decide_wheel, render_cublaslt
from coli.backends.devices import Selection, VisibleDevice, select_devices
from coli.backends.trace import CandidateTrace, CublasLt, Trace
from coli.backends.trace import Finding as GateFinding
from coli.doctor.checks.commands import PROFILE
from coli.doctor.checks.finding import Check, Evidence, Finding, not_known
from coli.doctor.facts.machine import MachineFacts

__all__ = ["CHECKS", "why_not"]


def _evidence(row: CandidateTrace, gate: GateFinding) -> Evidence:
    expected = f"; expected {gate.expected}" if gate.expected else ""
    return Evidence(f"{row.candidate.name}: {gate.evidence}{expected}", f"gate {gate.gate}, {row.candidate.path}")


def _usable(facts: MachineFacts) -> Iterator[Finding]:
    trace = facts.backends
    if trace is None:
        yield not_known("backends", "the backends", _not_looked(facts))
        return
    if trace.chosen is None:
        refused = [(row, row.refusal) for row in trace.candidates if row.refusal is not None]
        forced = trace.selection is not None
        searched = tuple(Evidence(f"{place.path}: {place.state}", place.origin) for place in trace.places)
        gate = next((gate for row, gate in refused if gate is not None), None)
        yield Finding(
            f"backend.{gate.code}" if gate is not None else "backend.none",
            "fail",
            f"the backend {trace.selection} that was asked for is refused" if forced else "no backend can be used",
            tuple(_evidence(row, gate) for row, gate in refused if gate is not None) or searched,
            fix=f"let coli choose, or name another one (`coli backends` lists them); {PROFILE}"
            if forced
            else "install coli again",
            commands=("unset COLI_BACKEND", "coli backends")
            if forced
            else ("pip install --force-reinstall coli", "coli backends"),
            cost="no model can run",
        )
        return
    chosen = trace.candidates[trace.chosen]
    yield Finding("backend.chosen", "ok", f"{chosen.candidate.name}: {trace.why}", (_place(chosen),))


def _place(row: CandidateTrace) -> Evidence:
    return Evidence(str(row.candidate.path), row.candidate.origin)


def _not_looked(facts: MachineFacts) -> str:
    return "the backends of another machine are not opened on this one" if not facts.here else "nothing looked for them"


def _refused(facts: MachineFacts) -> Iterator[Finding]:
    trace = facts.backends
    if trace is None:
        yield not_known("backends", "the backends", _not_looked(facts))
        return
    broken = 0
    for row in trace.candidates:
        gate = row.refusal
        # A level above this processor and a missing GPU are no faults of a library.
        if gate is None or gate.gate in ("cpu", "driver", "devices", "architecture", "memory"):
            continue
        broken += 1
        commands = ["coli backends explain " + shlex.quote(str(row.candidate.path))]
        if gate.code in ("file.writable",):
            commands.insert(0, f"chmod go-w {shlex.quote(str(row.candidate.path))}")
        elif row.candidate.origin != "package":
            commands.insert(0, "coli build")
        yield Finding(
            f"backend.{gate.code}",
            "warn",
            f"{row.candidate.path.name} is refused by the gate {gate.gate}: {gate.evidence}",
            (_evidence(row, gate), _place(row)),
            fix=gate.fix or "build it again, or remove the file",
            commands=tuple(commands),
            cost="that library is not used",
        )
    if not broken:
        usable = dict.fromkeys(row.candidate.name for row in trace.candidates if row.accepted)  # copies of a level
        yield Finding("backend.sound", "ok", f"every library is whole; usable: {', '.join(usable) or 'none'}")


def _gpu(facts: MachineFacts) -> Iterator[Finding]:
    trace, devices = facts.backends, facts.devices
    if trace is None or devices is None:
        yield not_known("backends", "whether a GPU is used", _not_looked(facts))
        return
    selection = select_devices(devices, facts.environment)
    if not selection.usable:
        yield Finding("devices.none", "skip", "no GPU that could be used")
        return
    if trace.chosen is not None and trace.candidates[trace.chosen].kind == "cuda":
        row = trace.candidates[trace.chosen]
        shown = ", ".join(device.name for device in row.devices)
        yield Finding("backend.gpu", "ok", f"{shown}: served by {row.candidate.name}", (_place(row),))
        if row.cublaslt is not None and row.cublaslt.needed and not row.cublaslt.opens:
            yield _no_cublaslt(row.cublaslt)
        return
    yield why_not(trace, selection)


def _no_cublaslt(found: CublasLt) -> Finding:
    """Return the note that products in tensor cores will decline, and which wheel brings their library."""
    looked = tuple(
        Evidence(f"{place.where}: {place.state}{f', {place.evidence}' if place.evidence else ''}", place.origin)
        for place in found.places
    )
    return Finding(
        "backend.cublaslt",
        "note",
        f"products in tensor cores have no library: {render_cublaslt(found)}",
        looked,
        fix="install NVIDIA's wheel beside coli (about 500 MB), or put the folder that has it on LD_LIBRARY_PATH",
        commands=(f"pip install {shlex.quote(decide_wheel(found.major))}",),
        cost="the products of the fast mode are declined; exact results do not need it",
    )


def why_not(trace: Trace, selection: Selection, device: VisibleDevice | None = None) -> Finding:
    """Return why no CUDA library serves the usable devices, or ``device``: the one reason, and what to do. Pure."""
    name = device.name if device is not None else ", ".join(one.name for one in selection.usable)
    cuda = [row for row in trace.candidates if row.kind == "cuda" or row.candidate.name.startswith("cuda")]
    cost = f"{name or 'the GPU'} is idle: every stage runs on the CPU"
    if not cuda:
        return Finding(
            "backend.no-cuda",
            "warn",
            f"{name} could be used, and no CUDA backend is installed",
            tuple(Evidence(f"{place.path}: {place.state}, no CUDA library", place.origin) for place in trace.places),
            fix="build one for this machine; a toolkit is made from pinned wheels where none is installed",
            commands=("coli build",),
            cost=cost,
        )
    accepted = next((row for row in cuda if row.accepted), None)
    if accepted is not None:
        return Finding(
            "backend.not-chosen",
            "warn",
            f"{accepted.candidate.name} would serve {name}, and another backend was asked for ({trace.selection})",
            (_place(accepted), Evidence(trace.why, "loader")),
            fix=f"let coli choose: leave --backend out and COLI_BACKEND unset; {PROFILE}",
            commands=("unset COLI_BACKEND",),
            cost=cost,
        )
    refusals = [(row, row.refusal) for row in cuda if row.refusal is not None]
    if not refusals:
        return not_known("backends", "why the CUDA library is not used", "it has gates that were not run")
    row, gate = refusals[0]
    return Finding(
        f"backend.{gate.code}",
        "warn",
        f"{name} is not used: the gate {gate.gate} refuses {row.candidate.name}: {gate.evidence}",
        tuple(_evidence(one, refusal) for one, refusal in refusals),
        fix=gate.fix or "build it again",
        commands=(*_rebuild(gate), "coli backends explain " + shlex.quote(str(row.candidate.path))),
        cost=cost,
    )


def _rebuild(gate: GateFinding) -> tuple[str, ...]:
    if gate.gate == "architecture":
        return ("CUDA_ARCH=native coli build",)
    return ("coli build",) if gate.gate in ("container", "manifest", "handshake", "slots", "canary", "open") else ()


CHECKS = (
    Check("backends.usable", (), ("backends",), "which backend runs", _usable),
    Check("backends.sound", (), ("backends",), "whether a library is refused though it should be usable", _refused),
    Check(
        "backends.gpu",
        ("driver.state", "driver.release", "devices.visible"),
        ("backends", "devices", "settings"),
        "whether the GPU is used, and if not, why",
        _gpu,
    ),
)
