"""Choose a backend: every candidate goes through every gate, the best that passed is opened, and the trace says why."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from pathlib import Path

from coli.backends import gates
from coli.backends.abi import SLOT_LIST
from coli.backends.candidates import Search, default_search, find_candidates, is_file_selection, level_of, matches
from coli.backends.cpu_level import Cpu, cpu_level
from coli.backends.probe import DEADLINE_S, Answer, cache_key, probe_library, read_cached, write_cached
from coli.backends.trace import Candidate, CandidateTrace, Finding, Trace, not_run
from coli.errors import BackendRefused, ColiError

__all__ = [
    "CANARY",
    "Loaded",
    "decide",
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
class Loaded:
    """A backend that passed every gate, opened.

    ``address`` is that of its table, which stays valid as long as the process.
    """

    name: str
    path: Path
    address: int
    trace: Trace


def examine(
    candidate: Candidate, cpu: Cpu, search: Search, canary: Path = CANARY, deadline_s: float = DEADLINE_S
) -> CandidateTrace:
    """Run every gate on one candidate. Those that open the library run only when all before them passed."""
    path = candidate.path
    file = gates.check_file(path)
    findings = [file]
    if file.code in ("file.missing", "file.not-regular", "file.unreadable"):
        rest = ("container", "dependencies", "manifest", "cpu", "open", "handshake", "slots", "canary")
        return CandidateTrace(candidate, (file, *(not_run(gate, "file") for gate in rest)))
    container_finding, container = gates.check_container(path, cpu)
    findings.append(container_finding)
    if container is None or container_finding.verdict != "ok":
        findings.append(not_run("dependencies", "container"))
    else:
        findings.append(gates.check_dependencies(path, container, search.library_path))
    manifest_finding, manifest, sha256 = gates.check_manifest(path)
    findings.append(manifest_finding)
    if manifest is None or manifest.kind != "cpu":
        findings.append(not_run("cpu", "manifest"))
    else:
        findings.append(gates.check_cpu(manifest.level, cpu))
    broken = next((finding.gate for finding in findings if finding.verdict != "ok"), None)
    if broken is not None or sha256 is None:
        late = (not_run(gate, broken or "manifest") for gate in ("open", "handshake", "slots", "canary"))
        return CandidateTrace(candidate, (*findings, *late))
    judged, cached = _answer(path, sha256, cpu, search, canary, deadline_s)
    return CandidateTrace(candidate, (*findings, *judged), cached)


def _answer(
    path: Path, sha256: str, cpu: Cpu, search: Search, canary: Path, deadline_s: float
) -> tuple[tuple[Finding, ...], bool]:
    key = cache_key(sha256, canary, SLOT_LIST, (cpu.machine, *sorted(cpu.flags or ())))
    kept: Answer | None = read_cached(search.cache_folder, key)
    if kept is not None:
        try:
            return gates.judge_answer(kept), True
        except (KeyError, TypeError, ValueError, AttributeError):
            kept = None  # damaged: ask again and replace it
    answer = probe_library(path, canary, deadline_s)
    write_cached(search.cache_folder, key, answer)
    return gates.judge_answer(answer), False


def survey(search: Search, cpu: Cpu | None = None, canary: Path = CANARY, deadline_s: float = DEADLINE_S) -> Trace:
    """Examine all candidates and decide. Never raises for what it finds; the trace has it."""
    cpu = cpu or cpu_level()
    places, candidates = find_candidates(search)
    traces = tuple(examine(candidate, cpu, search, canary, deadline_s) for candidate in candidates)
    trace = Trace(f"{cpu.machine}, {cpu.best}", search.selection, places, traces)
    chosen, why = decide(trace, search, cpu)
    return dataclasses.replace(trace, chosen=chosen, why=why)


def explain_selection(
    selection: str, search: Search, cpu: Cpu | None = None, canary: Path = CANARY, deadline_s: float = DEADLINE_S
) -> Trace:
    """Examine only what ``selection`` means: a file, or every library of that name.

    Raises BackendRefused for an unknown name.
    """
    cpu = cpu or cpu_level()
    # Here a bare file name is what somebody typed to have that file looked at; it selects nothing.
    if not is_file_selection(selection) and Path(selection).is_file():
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
    traces = tuple(examine(candidate, cpu, search, canary, deadline_s) for candidate in asked)
    return dataclasses.replace(trace, candidates=traces, why="examined only")


def decide(trace: Trace, search: Search, cpu: Cpu) -> tuple[int | None, str]:
    """Return the index of the chosen candidate and the reason; None when none can be used. Pure."""
    selection = search.selection
    if selection is None:
        for index, candidate in enumerate(trace.candidates):
            if candidate.accepted:
                level = level_of(candidate.candidate)
                better = [c.candidate.name for c in trace.candidates[:index]]
                why = f"best level of this CPU ({cpu.best})" if level == cpu.best else f"{cpu.best} is this CPU's level"
                return index, why + (f"; refused: {', '.join(better)}" if better and level != cpu.best else "")
        return None, "every candidate was refused" if trace.candidates else "no backend was found"
    if is_file_selection(selection):
        return (0, f"asked for by {search.selection_origin}") if trace.candidates[0].accepted else (None, "refused")
    named = [index for index, c in enumerate(trace.candidates) if matches(c.candidate, selection)]
    for index in named:
        if trace.candidates[index].accepted:
            return index, f"asked for by {search.selection_origin}"
    return None, "refused" if named else "no backend has this name"


def load(
    selection: str | None = None, search: Search | None = None, canary: Path = CANARY, deadline_s: float = DEADLINE_S
) -> Loaded:
    """Choose, open and return a backend. ``selection`` is a name or a file and wins over the one in ``search``.

    Raises BackendRefused when what was asked for is refused or unknown, ColiError when no backend can be used at all.
    """
    search = search or default_search()
    if selection:
        search = dataclasses.replace(search, selection=selection)
    trace = survey(search, canary=canary, deadline_s=deadline_s)
    if trace.chosen is None:
        raise refusal_of(trace, search)
    candidate = trace.candidates[trace.chosen].candidate
    return Loaded(candidate.name, candidate.path, open_verified(candidate.path), trace)


def open_verified(path: Path) -> int:
    """Open a library that passed every gate in this process and return the address of its table.

    Raises BackendRefused.
    """
    from coli.backends._probe import open_library, query_table

    try:
        address = query_table(open_library(path))
    except (OSError, AttributeError) as error:
        address, reason = None, str(error)
    else:
        reason = "its query returned null"
    if not address:
        raise BackendRefused(
            str(path),
            "it opened in the child process and does not in this one",
            observed=reason,
            fix="run `coli backends explain` on it, and look for a library that was replaced meanwhile",
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
    reasons = "; ".join(
        f"{c.candidate.name}: {c.refusal.gate}: {c.refusal.evidence}" for c in trace.candidates if c.refusal is not None
    )
    return ColiError(
        "backends",
        "no backend can be used on this machine",
        observed=reasons or f"no library in {_render_places(trace)}",
        fix="install coli again (`pip install --force-reinstall coli`), then look at `coli backends`",
        code="backend.none",
    )


def _render_places(trace: Trace) -> str:
    return ", ".join(f"{place.path} ({place.state})" for place in trace.places)


def render_banner(loaded: Loaded) -> str:
    """Return the one line that says on start which backend runs and why."""
    return f"[coli] backend={loaded.path.name} ({loaded.name}) device=cpu why={loaded.trace.why}"
