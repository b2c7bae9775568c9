"""The loader's trace as data: what was looked at, what every gate found, what was chosen and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coli.backends.devices.facts import DeviceFacts, Fact
from coli.backends.devices.visible import VisibleDevice

__all__ = [
    "GATES",
    "Candidate",
    "CandidateTrace",
    "CublasLt",
    "Finding",
    "Looked",
    "Place",
    "Trace",
    "Verdict",
    "not_run",
    "ok",
    "refused",
]

Verdict = Literal["ok", "refused", "not run"]

# In the order in which they run; every candidate has one finding for each.
GATES = (
    "file",
    "container",
    "dependencies",
    "manifest",
    "cpu",
    "driver",
    "devices",
    "architecture",
    "memory",
    "open",
    "handshake",
    "slots",
    "canary",
)


@dataclass(frozen=True)
class Finding:
    """What one gate found for one candidate. ``code`` is stable; evidence, expected and fix are for people."""

    gate: str
    verdict: Verdict
    code: str
    evidence: str
    expected: str | None = None
    fix: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for `--json`."""
        return {
            "gate": self.gate,
            "verdict": self.verdict,
            "code": self.code,
            "evidence": self.evidence,
            "expected": self.expected,
            "fix": self.fix,
        }


def ok(gate: str, evidence: str) -> Finding:
    """Return a passed gate."""
    return Finding(gate, "ok", f"{gate}.ok", evidence)


def refused(gate: str, code: str, evidence: str, *, expected: str | None = None, fix: str | None = None) -> Finding:
    """Return a refusal; ``code`` is completed to ``gate.code``."""
    return Finding(gate, "refused", f"{gate}.{code}", evidence, expected, fix)


def not_run(gate: str, needs: str) -> Finding:
    """Return a gate that could not run because of an earlier one."""
    return Finding(gate, "not run", f"{gate}.not-run", f"needs {needs}")


@dataclass(frozen=True)
class Candidate:
    """One library file: absolute path, the name that selects it, and where it was found."""

    path: Path
    name: str
    origin: str


@dataclass(frozen=True)
class Looked:
    """A place where cuBLASLt was looked for: who names it, the folder or file, and what was there.

    ``taken``: the file that is used. ``found``: one that would do, behind the taken one. ``unfit``: another major,
    machine or name, or damaged. ``refused``: others may write it, or the folder is relative.
    """

    origin: str
    where: str
    state: Literal["taken", "found", "absent", "unfit", "refused", "unreadable"]
    evidence: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for `--json`."""
        return {"origin": self.origin, "where": self.where, "state": self.state, "evidence": self.evidence or None}


@dataclass(frozen=True)
class CublasLt:
    """The library that the fast products of a CUDA library ask the system for, by ``name``.

    ``places`` in the order that counts; ``path``: the file that was taken, behind its links. ``needed``: a device here
    has block scaling. ``opens``: it did in the child process; ``problem``: what was said when it did not.
    """

    name: str
    major: int
    places: tuple[Looked, ...]
    path: Path | None
    version: Fact[str]
    needed: bool = False
    opens: bool = False
    problem: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for `--json`."""
        return {
            "name": self.name,
            "path": None if self.path is None else str(self.path),
            "version": self.version.value,
            "needed": self.needed,
            "opens": self.opens,
            "problem": self.problem,
            "places": [place.as_dict() for place in self.places],
        }


@dataclass(frozen=True)
class CandidateTrace:
    """A candidate with the finding of every gate. ``stages``: what an accepted one serves on this machine.

    ``cublaslt``: of a library with products in tensor cores. It is no gate: all exact stages do without.
    """

    candidate: Candidate
    findings: tuple[Finding, ...]
    cached: bool = False
    kind: str = ""  # of the manifest: cpu or cuda
    devices: tuple[VisibleDevice, ...] = ()  # those that a CUDA library serves
    stages: tuple[str, ...] = ()
    cublaslt: CublasLt | None = None
    sha256: str = ""  # of the file, once it was opened in the child process

    @property
    def refusal(self) -> Finding | None:
        """Return the first gate that refused, or None."""
        return next((finding for finding in self.findings if finding.verdict == "refused"), None)

    @property
    def accepted(self) -> bool:
        """Say whether every gate passed."""
        return bool(self.findings) and all(finding.verdict == "ok" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for `--json`."""
        return {
            "name": self.candidate.name,
            "path": str(self.candidate.path),
            "origin": self.candidate.origin,
            "kind": self.kind or None,
            "devices": [device.name for device in self.devices],
            "stages": list(self.stages),
            "verdict": "ok" if self.accepted else "refused",
            "cached": self.cached,
            "cublaslt": None if self.cublaslt is None else self.cublaslt.as_dict(),
            "gates": [finding.as_dict() for finding in self.findings],
        }


@dataclass(frozen=True)
class Place:
    """A place that was searched: where its name comes from, the folder, and what was there."""

    origin: str
    path: Path
    state: Literal["searched", "absent", "unreadable", "refused"]
    libraries: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for `--json`."""
        return {"origin": self.origin, "path": str(self.path), "state": self.state, "libraries": self.libraries}


@dataclass(frozen=True)
class Trace:
    """Everything that the loader saw. ``chosen`` is an index into ``candidates`` or None; ``why`` says the reason.

    ``chain``: the chosen one and those that serve what it declines, in order; the last is of kind cpu. ``devices``:
    None when no candidate asked for a device, so that nothing looked.
    """

    machine: str
    selection: str | None
    places: tuple[Place, ...]
    candidates: tuple[CandidateTrace, ...]
    chosen: int | None = None
    why: str = ""
    chain: tuple[int, ...] = ()
    devices: DeviceFacts | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the document ``coli.backends/1``."""
        return {
            "schema": "coli.backends/1",
            "machine": self.machine,
            "selection": self.selection,
            "chosen": None if self.chosen is None else str(self.candidates[self.chosen].candidate.path),
            "why": self.why,
            "chain": [str(self.candidates[index].candidate.path) for index in self.chain],
            "devices": None if self.devices is None else self.devices.as_dict(),
            "places": [place.as_dict() for place in self.places],
            "candidates": [candidate.as_dict() for candidate in self.candidates],
        }
