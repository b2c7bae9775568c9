"""The gates that a candidate passes: each looks at one thing and returns a finding. Nothing here opens a library."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from coli.backends import windows_access as access
from coli.backends.abi import QUERY_SYMBOL
from coli.backends.containers import Container, ContainerError, read_container
from coli.backends.cpu_level import LEVELS, Cpu, missing_flags
from coli.backends.dependencies import resolve_closure
from coli.backends.handshake import decide_handshake, decide_slots, present_stages
from coli.backends.manifest import SCHEMA, Manifest, ManifestError, file_sha256, manifest_path, read_manifest
from coli.backends.probe import Answer
from coli.backends.trace import Finding, not_run, ok, refused

__all__ = [
    "check_container",
    "check_cpu",
    "check_dependencies",
    "check_file",
    "check_manifest",
    "judge_answer",
    "served_stages",
]


def _is_private_group(uid: int, gid: int) -> bool:
    """Say whether the group is the owner's own.

    Systems with a umask of 002 give every user one, without other members.
    """
    if sys.platform == "win32":
        return True
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}


def _open_to_others(path: Path, what: str) -> str | None:
    """Say who may write ``path`` besides its owner; None: nobody."""
    status = path.stat()
    if status.st_mode & stat.S_IWOTH:
        return f"{what} {path} may be written by anyone (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_uid, status.st_gid):
        return f"{what} {path} may be written by group {status.st_gid} (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _folder_open_to_others(path: Path) -> str | None:
    """Look at the folders above ``path``, and at those above what its links lead to.

    In one with the sticky bit (/tmp) only the owner can replace what lies there.
    """
    for place in dict.fromkeys((path, path.resolve())):
        below = place
        for folder in place.parents:
            status = folder.stat()
            if status.st_mode & stat.S_IWOTH:
                sticky = bool(status.st_mode & stat.S_ISVTX)
                if not sticky or below.lstat().st_uid not in (0, os.geteuid()):
                    return f"anyone may replace files in {folder} (mode {stat.S_IMODE(status.st_mode):04o})"
            below = folder
    return None


def check_file(path: Path) -> Finding:
    """Gate file: it exists, is a regular file that can be read, and nobody else may write it or replace it."""
    gate = "file"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return refused(gate, "not-regular", f"{path} is not a regular file", expected="a shared library")
        with path.open("rb"):
            pass
        if sys.platform == "win32":
            return _check_access(path, status.st_size)
        writable = _open_to_others(path, "the file")
        if writable:
            return refused(
                gate, "writable", writable, expected="a file that only its owner may write", fix=f"chmod go-w {path}"
            )
        replaceable = _folder_open_to_others(path)
        if replaceable:
            return refused(
                gate,
                "folder-writable",
                replaceable,
                expected="folders that only their owners may write, or with the sticky bit",
                fix="move the backend, or take the write permission of others from the folder",
            )
    except FileNotFoundError:
        return refused(gate, "missing", f"{path} is not there", expected="a shared library")
    except OSError as error:
        return refused(gate, "unreadable", f"{path}: {error.strerror}", expected="a file that can be read")
    return ok(gate, f"{status.st_size} bytes, only its owner may write it")


def _check_access(path: Path, size_bytes: int) -> Finding:
    """Gate file on Windows: the access lists of the file, its folder and those above."""
    gate = "file"
    places = [(path, access.WRITE), (path.parent, access.FOLDER_WRITE)]
    places += [(folder, access.FOLDER_REPLACE) for folder in path.parent.parents]
    accounts: str | None = None
    for place, rights in places:
        grants = access.probe_grants(place)
        anyone = access.who_may(grants, rights, access.ANYONE)
        if anyone is not None:
            return refused(
                gate,
                "writable" if place == path else "folder-writable",
                f"{anyone} may write {place}" if place == path else f"{anyone} may replace files in {place}",
                expected="a file and folders that only accounts of this machine may change",
                fix=f'icacls "{place}" /remove:g *{_sid(anyone)}, or move the backend',
            )
        group = access.who_may(grants, rights, access.ACCOUNTS)
        if group is not None and accounts is None:
            accounts = f"{group} (every account of this machine) may change {place}"
    return ok(gate, f"{size_bytes} bytes; {accounts or 'no group of all accounts may change it'}")


def _sid(group: str) -> str:
    return next(sid for sid, name in access.ANYONE.items() if name == group)


def check_container(path: Path, cpu: Cpu) -> tuple[Finding, Container | None]:
    """Gate container: a complete ELF or PE library of this system, machine and word size."""
    gate = "container"
    try:
        container = read_container(path)
    except ContainerError as error:
        fix = "copy or build the library again" if error.code == "damaged" else "name a library that `coli` built"
        return refused(gate, error.code, str(error), expected="a complete shared library", fix=fix), None
    except OSError as error:
        return refused(gate, "unreadable", f"{path}: {error.strerror}", expected="a file that can be read"), None
    kind = "pe" if sys.platform == "win32" else "elf"
    bits = 64 if sys.maxsize > 2**32 else 32
    expected = f"{kind.upper()}, {cpu.machine}, {bits}-bit"
    found = f"{container.kind.upper()}, {container.machine}, {container.bits}-bit"
    if (container.kind, container.machine, container.bits) != (kind, cpu.machine, bits):
        return refused(gate, "machine", found, expected=expected, fix="use a library for this machine"), container
    return ok(gate, found), container


def check_dependencies(path: Path, container: Container, library_path: Sequence[Path] = ()) -> Finding:
    """Gate dependencies: every library that it links to, and those that they link to, can be found."""
    gate = "dependencies"
    closure = resolve_closure(path, container, library_path)
    if closure.missing:
        names = ", ".join(f"{name} (needed by {owner})" for name, owner in closure.missing)
        return refused(
            gate,
            "missing",
            f"missing: {names}",
            expected="every needed library in " + ", ".join(closure.searched),
            fix=_fix_of_missing(container.kind, tuple(name for name, _ in closure.missing)),
        )
    names = ", ".join(sorted(closure.found)) or "nothing"
    return ok(gate, f"needs {names}")


def _fix_of_missing(kind: str, names: tuple[str, ...]) -> str:
    if kind != "elf":
        if names[0].lower().startswith(("vcruntime", "msvcp", "concrt", "vcomp")):
            return "install the Microsoft Visual C++ Redistributable"
        return "put it beside the library; PATH is not searched"
    runtime = next((name for name in names if name.startswith("libcudart.so.")), None)
    if runtime is None:
        return "install the package that has it"
    return (
        f"put the folder that has {runtime} (the CUDA {runtime.rpartition('.')[2]} toolkit's, or its pip wheel's) on "
        "LD_LIBRARY_PATH, or build with a toolkit that has libcudart_static.a, which the library then holds"
    )


def check_manifest(path: Path) -> tuple[Finding, Manifest | None, str | None]:
    """Gate manifest: it names this file and the SHA-256 that the file has. Returns the file's hash too."""
    gate = "manifest"
    rebuild = "build or install the backend again, so that library and manifest fit"
    try:
        sha256 = file_sha256(path)
    except OSError as error:
        return refused(gate, "unreadable", f"{path}: {error.strerror}"), None, None
    try:
        manifest = read_manifest(path)
    except ManifestError as error:
        finding = refused(gate, error.code, str(error), expected=f"{manifest_path(path).name}, {SCHEMA}", fix=rebuild)
        return finding, None, sha256
    if manifest.sha256 != sha256:
        return refused(gate, "hash", f"sha256 {sha256}", expected=manifest.sha256, fix=rebuild), manifest, sha256
    if manifest.file != path.name:
        return refused(gate, "name", f"the file is {path.name}", expected=manifest.file, fix=rebuild), manifest, sha256
    if manifest.kind not in ("cpu", "cuda"):
        return refused(gate, "kind", f"kind {manifest.kind}", expected="kind cpu or cuda"), manifest, sha256
    return ok(gate, f"{manifest.name}, {manifest.compiler}, evidence: {manifest.evidence}"), manifest, sha256


def check_cpu(level: str, cpu: Cpu) -> Finding:
    """Gate cpu: this machine has every instruction set of the library's level."""
    gate = "cpu"
    if level not in LEVELS:
        return refused(gate, "unknown-level", f"level {level}", expected=", ".join(LEVELS))
    best = f"this CPU: {cpu.best}"
    if level in cpu.levels:
        return ok(gate, f"{level}; {best}")
    missing = missing_flags(cpu, level)
    if LEVELS[level][0] not in (None, cpu.machine):
        evidence = f"{level} is for {LEVELS[level][0]}, this machine is {cpu.machine}"
    elif missing is None:
        evidence = f"{level}: the flags of this CPU are not known"
    else:
        evidence = f"{level} needs {', '.join(missing)}, which this CPU lacks"
    return refused(gate, "level", evidence, expected=best, fix=f"use {' or '.join(cpu.levels)}")


_LATE_GATES = ("open", "handshake", "slots", "canary")


def _ended_early(answer: Answer, gate: str, doing: str) -> Finding:
    code = {"signal": "crash", "timeout": "hang", "not started": "not-started"}.get(answer.end, "exit")
    what = {
        "signal": f"{answer.detail} while it {doing}",
        "timeout": f"{answer.detail}: it hangs while it {doing}",
    }.get(answer.end, f"the child process ended while it {doing}: {answer.detail}")
    return refused(
        gate, code, what, expected="an answer", fix="the library is broken: build it again or use another one"
    )


def _died_in_cublaslt(answer: Answer) -> bool:
    """Say whether the child ended while it opened cuBLASLt: the library itself had passed by then."""
    return answer.steps.get("cublaslt", {}).get("state") == "opening"


def judge_answer(answer: Answer, kind: str) -> tuple[Finding, ...]:
    """Return the findings of the gates open, handshake, slots and canary from what the child saw of a ``kind``.

    Raises KeyError, TypeError, ValueError or AttributeError for an answer that is not of the child's form (a damaged
    cache).
    """
    findings: list[Finding] = []

    def done() -> tuple[Finding, ...]:
        first = findings[-1]
        return (*findings, *(not_run(gate, first.gate) for gate in _LATE_GATES[len(findings) :]))

    opened = answer.steps.get("open")
    if opened is None:
        findings.append(_ended_early(answer, "open", "is opened"))
        return done()
    if opened["error"] is not None:
        findings.append(refused("open", "failed", str(opened["error"]), expected="a library that the system can open"))
        return done()
    findings.append(ok("open", "opened in a child process"))
    if not opened["query"]:
        findings.append(
            refused(
                "handshake",
                "no-query",
                f"no symbol {QUERY_SYMBOL}",
                expected=QUERY_SYMBOL,
                fix="this is not a coli backend",
            )
        )
        return done()
    if "table" not in answer.steps:
        findings.append(_ended_early(answer, "handshake", f"runs {QUERY_SYMBOL}"))
        return done()
    table = answer.steps["table"]["table"]
    findings.append(decide_handshake(table))
    if findings[-1].verdict != "ok":
        return done()
    if "slots" not in answer.steps:
        findings.append(_ended_early(answer, "slots", "shows its slots"))
        return done()
    findings.append(decide_slots(answer.steps["slots"]["slots"], table["abi"], of_device=kind == "cuda"))
    if findings[-1].verdict != "ok":
        return done()
    canary = answer.steps.get("canary")
    if canary is None:
        findings.append(_ended_early(answer, "canary", "replays the canary"))
    elif "unreadable" in canary:
        findings.append(
            refused(
                "canary",
                "unreadable",
                str(canary["unreadable"]),
                expected="the canary of this coli",
                fix="install coli again",
            )
        )
    elif canary["problems"]:
        problems = [str(problem) for problem in canary["problems"]]
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        findings.append(
            refused(
                "canary",
                "bits",
                "; ".join(problems[:3]) + more,
                expected=f"the recorded bits in {canary['cases']} calls",
                fix="the library computes something else: build it again, without -ffast-math or contraction",
            )
        )
    elif (answer.end != "exit" or not answer.detail.startswith("exit code 0")) and not _died_in_cublaslt(answer):
        findings.append(_ended_early(answer, "canary", "ends after the canary"))
    elif canary["declined_calls"] and canary["declined_calls"] == canary["cases"]:
        findings.append(
            refused(
                "canary",
                "nothing-served",
                f"every one of {canary['cases']} calls was declined",
                expected="a stage that it serves",
                fix="this library has nothing for this device: use another one",
            )
        )
    else:
        served = canary["cases"] - canary["declined_calls"]
        left = f"; left to the CPU: {', '.join(canary['declined'])}" if canary["declined"] else ""
        findings.append(ok("canary", f"{served} calls, every bit as recorded{left}"))
    return done()


def served_stages(answer: Answer) -> tuple[str, ...]:
    """Return the stages that an accepted library serves here: in its table, and not declined in the canary."""
    declined = set(answer.steps["canary"]["declined"])
    return tuple(name for name in present_stages(answer.steps["slots"]["slots"]) if name not in declined)
