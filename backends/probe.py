"""Run the child process that opens a library, with a deadline, and keep its answer by content of the file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coli.atomic_file import write_atomically
from coli.backends.child import Ended, run_child

__all__ = ["LOADER_VERSION", "Answer", "cache_key", "decide_answer", "probe_library", "read_cached", "write_cached"]

# Raised when gates or canary change their meaning: older cached answers are then not asked for.
LOADER_VERSION = 3

DEADLINE_S = 30.0  # a cold disk and a busy machine; a sound library answers in 0.2 s
_MAX_ANSWER_BYTES = 1 << 20
_CLEAN_EXIT = "exit code 0"

# A process that an exception ends on Windows has its code for an exit code.
_FIRST_EXCEPTION = 0xC0000000
_EXCEPTIONS = {
    0xC0000005: "access violation",
    0xC000001D: "illegal instruction",
    0xC0000094: "integer division by zero",
    0xC0000096: "privileged instruction",
    0xC00000FD: "stack overflow",
    0xC0000374: "damaged heap",
    0xC0000409: "fail-fast exception",
}

# -I keeps the current folder, PYTHONPATH and user site out; the parent's own search path is handed over instead.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from coli.backends._probe import main; raise SystemExit(main(sys.argv[2:]))"
)


@dataclass(frozen=True)
class Answer:
    """What the child said (step -> facts), and how it ended: ``exit``, ``signal``, ``timeout`` or ``not started``."""

    steps: dict[str, dict[str, Any]]
    end: str
    detail: str = ""

    @property
    def last(self) -> str:
        """Return the last step that it told."""
        return next(reversed(self.steps), "")


def probe_library(
    path: Path,
    canary: Path,
    deadline_s: float = DEADLINE_S,
    kind: str = "cpu",
    environment: Mapping[str, str] | None = None,
    cublaslt: Path | None = None,
) -> Answer:
    """Open ``path`` in a child process. Never raises for what the library does.

    ``kind`` as in its manifest. ``environment`` None: that of this process. ``cublaslt``: opened last, if given.
    """
    search = [entry for entry in sys.path if entry and Path(entry).is_absolute()]
    command = [sys.executable, "-I", "-c", _START, json.dumps(search), str(path), str(canary), kind]
    if cublaslt is not None:
        command.append(str(cublaslt))
    ended = run_child(
        command,
        deadline_s=deadline_s,
        max_bytes=_MAX_ANSWER_BYTES,
        environment=environment,
        folder=path.anchor,
    )
    return decide_answer(ended, deadline_s)


def decide_answer(ended: Ended, deadline_s: float) -> Answer:
    """Return what a child's output and its end say together. Pure."""
    if ended.end == "not started":
        return Answer({}, "not started", ended.errors)
    steps = _parse_steps(ended.output)
    crash = steps.pop("crash", None)
    if ended.end == "timeout":
        return Answer(steps, "timeout", f"no answer within {deadline_s:g} s")
    if ended.end == "signal":
        return Answer(steps, "signal", _signal_name(ended.code))
    if crash is not None:
        return Answer(steps, "signal", _EXCEPTIONS.get(crash.get("code", 0)) or str(crash.get("text")))
    if ended.code >= _FIRST_EXCEPTION:
        return Answer(steps, "signal", _EXCEPTIONS.get(ended.code, f"exception {ended.code:#010x}"))
    last = ended.errors.splitlines()[-1] if ended.errors else ""
    if ended.code == 0:
        return Answer(steps, "exit", _CLEAN_EXIT)
    return Answer(steps, "exit", f"exit code {ended.code}" + (f": {last}" if last else ""))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _parse_steps(data: bytes) -> dict[str, dict[str, Any]]:
    steps: dict[str, dict[str, Any]] = {}
    for line in data.splitlines():
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError):  # the library may write where the child does
            break
        if not isinstance(facts, dict) or not isinstance(facts.get("step"), str):
            break
        steps[facts["step"]] = facts
    return steps


def cache_key(sha256: str, canary: Path, slot_list: Path, machine: Sequence[str]) -> str:
    """Return the name under which an answer is kept.

    It changes with the library, the canary, the slots, the loader, the machine.
    """
    digest = hashlib.sha256()
    for part in (sha256, str(LOADER_VERSION), *machine, sys.platform, sys.implementation.cache_tag or ""):
        digest.update(part.encode() + b"\0")
    for file in (canary, slot_list):
        digest.update(hashlib.sha256(file.read_bytes() if file.is_file() else b"").digest())
    return digest.hexdigest()


def read_cached(folder: Path | None, key: str) -> Answer | None:
    """Return a kept answer; None when there is none, or one that cannot be read."""
    if folder is None:
        return None
    try:
        with (folder / f"{key}.json").open("rb") as file:
            document = json.loads(file.read(_MAX_ANSWER_BYTES))
        steps, end, detail = document["steps"], document["end"], document["detail"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(steps, dict) or not all(isinstance(facts, dict) for facts in steps.values()):
        return None
    return Answer(steps, str(end), str(detail))


def write_cached(folder: Path | None, key: str, answer: Answer) -> None:
    """Keep an answer that is about the library alone and would come out the same again.

    Not a time-out, a crash or a child that did not start; not a fault of this installation (its code or canary), nor a
    cuBLASLt that did not open: what it needs may be installed meanwhile.
    """
    if folder is None or answer.end != "exit" or answer.detail != _CLEAN_EXIT:
        return
    if "unreadable" in answer.steps.get("canary", {}) or answer.steps.get("cublaslt", {}).get("error") is not None:
        return
    document = {"steps": answer.steps, "end": answer.end, "detail": answer.detail}
    with contextlib.suppress(OSError):  # a full or read-only home only costs the next start 0.2 s
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{key}.json", json.dumps(document))
