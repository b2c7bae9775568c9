"""Run CMake and Ninja for a plan, keep the whole log, check what came out, and install it where the loader looks.

One folder an identity: ``<builds>/<cell>/<key>/``. Another identity has another folder, so no flag ever meets an old
object, and the way back finds its objects again. When identity, sources and the installed file are those of the last
time, nothing is started at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from coli.atomic_file import write_atomically
from coli.backends.manifest import file_sha256
from coli.build_matrix.classify import Cause, classify
from coli.build_matrix.lock import locked
from coli.build_matrix.plan import Plan, combined_sha256, sources_of
from coli.build_matrix.tool import ask
from coli.build_matrix.version import parse_version
from coli.errors import ColiError

if TYPE_CHECKING:
    from coli.build_matrix.tools import Tools

__all__ = ["Built", "Failed", "build", "installed_library"]

_LOG_TAIL_LINES = 12
_KEY_CHARACTERS = 16
_COMPILED = "compiled.json"
_GRACE_S = 5.0  # for compilers that are told to end
_FOLDERS_KEPT = 4  # of a cell, the latest: enough to go back and forth between two compilers and two flags


@dataclass(frozen=True)
class Built:
    """A library that is installed. ``state``: ``built``, or ``unchanged`` when nothing had to be done."""

    plan: Plan
    library: Path
    sha256: str
    state: str
    seconds: float
    log: Path


@dataclass(frozen=True)
class Failed:
    """A build that ended with an error: the classified cause, the last lines of the log, and where the whole log is."""

    plan: Plan
    step: str
    cause: Cause
    tail: tuple[str, ...]
    seconds: float
    log: Path


def installed_library(plan: Plan, data_folder: Path) -> Path:
    """Return where the library of a cell is installed: the folder that the loader searches."""
    return data_folder / "backends" / plan.cell.id / plan.library


def build(
    plan: Plan,
    tools: Tools,
    *,
    builds: Path,
    data_folder: Path,
    environment: Mapping[str, str],
    jobs: int,
    tell: Callable[[str], None],
    finish: Callable[[Plan, Path, str], None],
) -> Built | Failed:
    """Build one cell and install it.

    ``builds``: parent of the build folders. ``jobs``: compilers at once. ``tell`` gets each step's name as it begins.
    ``finish(plan, library, sources_sha256)`` audits the new library and writes the manifest beside it, before it is
    moved into place; its ColiError makes the build a failed one. Raises ColiError when a folder cannot be written.
    """
    start = time.monotonic()
    folder = builds / plan.cell.id / plan.key[:_KEY_CHARACTERS]
    log = folder / "build.log"
    target = installed_library(plan, data_folder)
    try:
        files = sources_of(plan)
        sources = combined_sha256(plan, files)
        stamp = {"key": plan.key, "sources": sources}
        present = _sha256(target)
        if present is not None and _read_stamp(folder / "stamp.json") == {**stamp, "sha256": present}:
            return Built(plan, target, present, "unchanged", time.monotonic() - start, log)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent / "lock", tell) as lock:
            present = _sha256(target)  # another build may have had the lock, and have done it all
            if present is not None and _read_stamp(folder / "stamp.json") == {**stamp, "sha256": present}:
                return Built(plan, target, present, "unchanged", time.monotonic() - start, log)
            folder.mkdir(exist_ok=True)
            _keep_latest(folder)
            if not _ninja_will_see(folder, files):
                shutil.rmtree(folder)
                folder.mkdir()
            (folder / "stamp.json").unlink(missing_ok=True)
            made = _environment(environment, plan, tools, folder)
            with log.open("wb") as output, _compiling(folder, files):
                if (problem := _too_old(plan, tools, made)) is not None:
                    output.write(f"{problem}\n".encode())
                    output.flush()
                    return _failed(plan, "configure", log, start)
                for step, command in _commands(plan, tools, folder, jobs):
                    tell(step)
                    output.write(f"$ {json.dumps([str(part) for part in command])}\n".encode())
                    output.flush()
                    code = _run(command, output, made, lock)
                    if code != 0:
                        output.write(f"exit code {code}\n".encode())
                        output.flush()
                        return _failed(plan, step, log, start)
            tell("audit")
            try:
                sha256 = _install(plan, folder / plan.library, target, sources, finish)
            except ColiError as error:  # of the audit
                cause = Cause(error.code, error.rule, error.fix or "", None, error.observed or "")
                return Failed(plan, "audit", cause, (error.observed or "",), time.monotonic() - start, log)
            _write(folder / "stamp.json", {**stamp, "sha256": sha256})
    except OSError as error:
        raise ColiError(
            f"{error.filename2 or error.filename or folder}",
            "the build cannot write here",
            observed=error.strerror or str(error),
            fix="free space or give another folder; build folders and the user data folder must be writable",
            code="build.io",
        ) from None
    return Built(plan, target, sha256, "built", time.monotonic() - start, log)


def _commands(plan: Plan, tools: Tools, folder: Path, jobs: int) -> list[tuple[str, list[object]]]:
    configure: list[object] = [tools.cmake, "-S", plan.source, "-B", folder, "-G", "Ninja"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={tools.ninja}", f"-DPython_EXECUTABLE={tools.python}", *plan.arguments]
    # Said even when there is none: CMake's cache would go on calling one that is gone.
    configure += [
        f"-DCMAKE_{language}_COMPILER_LAUNCHER={tools.ccache or ''}"
        for language in (("CXX", "CUDA") if plan.cell.kind == "cuda" else ("CXX",))
    ]
    compile_: list[object] = [tools.cmake, "--build", folder, "--target", plan.target, "-j", str(jobs)]
    return [("configure", configure), ("compile", compile_)]


def _too_old(plan: Plan, tools: Tools, environment: Mapping[str, str]) -> str | None:
    """Say in CMake's own words that it is too old for a recipe: what an older one says of `120f` names no cause."""
    if plan.recipe is None:
        return None
    answer, need = ask([tools.cmake, "--version"], environment), plan.recipe.minimum_cmake
    found = re.search(r"cmake version ([0-9.]+)", answer.output)
    have = parse_version(found[1]) if found else None
    if have is None or have >= need:
        return None
    return f"CMake {need.text} or higher is required. You are running version {have.text}: {tools.cmake}"


def _run(command: Sequence[object], output: IO[bytes], environment: Mapping[str, str], lock: int) -> int:
    """Run CMake to its end and return its exit code. When this process is told to end, so are all that CMake started.

    They get the lock too: were this process killed, the next build would wait for those that it leaves behind.
    """
    child = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
        pass_fds=(lock,),
    )
    try:
        return child.wait()
    except BaseException:
        for number in (signal.SIGINT, signal.SIGKILL):  # Ninja removes what is half written
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                os.killpg(child.pid, number)
                child.wait(_GRACE_S)
        raise


def _environment(environment: Mapping[str, str], plan: Plan, tools: Tools, folder: Path) -> dict[str, str]:
    made = dict(environment)
    for name, value in plan.environment.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = value
    # The log is read by classify, which knows the compilers' own language.
    made["LC_ALL"] = "C"
    if tools.ccache is not None:
        made.setdefault("CCACHE_BASEDIR", str(plan.source.parent))
        made.setdefault("CCACHE_NOHASHDIR", "1")
        # A toolkit that was unpacked again is the same compiler with another date.
        made.setdefault("CCACHE_COMPILERCHECK", "content")
        if plan.recipe is not None and plan.recipe.append_flags:
            # nvcc takes these from the environment, of which ccache knows nothing: other flags would get old objects.
            flags = folder / "append-flags"
            flags.write_text(shlex.join(plan.recipe.append_flags), encoding="utf-8")
            made["CCACHE_EXTRAFILES"] = os.pathsep.join([*filter(None, [made.get("CCACHE_EXTRAFILES")]), str(flags)])
    return made


def _ninja_will_see(folder: Path, files: Mapping[str, str]) -> bool:
    """Tell whether dates alone show Ninja what changed since this folder was last compiled in.

    Archives and installers give files old dates: such a file is older than the objects of the one it replaced. So it is
    with a build that was killed, of which nobody knows what it had compiled, and after the clock was set back.
    """
    record = folder / _COMPILED
    try:
        before = json.loads(record.read_bytes())
        last_ns = record.stat().st_mtime_ns
    except (OSError, ValueError, RecursionError):
        return not any(folder.iterdir())
    if not isinstance(before, dict) or last_ns > time.time_ns():
        return False
    changed = [path for path, sha256 in files.items() if before.get(path) != sha256]
    return set(before) <= set(files) and all(Path(path).stat().st_mtime_ns > last_ns for path in changed)


@contextlib.contextmanager
def _compiling(folder: Path, files: Mapping[str, str]) -> Iterator[None]:
    """Keep a record of the sources that the objects in ``folder`` are from.

    There is none while compilers run, nor after something broke them off.
    """
    record = folder / _COMPILED
    record.unlink(missing_ok=True)
    yield
    _write(record, files)


def _keep_latest(folder: Path) -> None:
    """Mark a build folder as the latest of its cell, and remove those that were not used for longest."""
    os.utime(folder)
    others = [path for path in folder.parent.iterdir() if path != folder and path.is_dir() and not path.is_symlink()]
    others.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in others[_FOLDERS_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def _install(plan: Plan, library: Path, target: Path, sources: str, finish: Callable[[Plan, Path, str], None]) -> str:
    """Copy beside the target, check the copy, then move manifest and library into place; return the library's hash."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Builds of other folders install here too, and a library must not meet the manifest of another.
    with (
        locked(target.parent.with_name(f".{target.parent.name}.lock")),
        tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as fresh,
    ):
        for left in target.parent.glob(".new-*"):  # of a process that was killed: we hold the lock
            if left != Path(fresh):
                shutil.rmtree(left, ignore_errors=True)
        copy = Path(fresh) / plan.library
        shutil.copyfile(library, copy)
        copy.chmod(0o755)
        finish(plan, copy, sources)
        sha256 = _sha256(copy)
        # Manifest last: a library whose manifest is of another build is refused, never half trusted.
        copy.replace(target)
        copy.with_name(copy.name + ".json").replace(target.with_name(target.name + ".json"))
    return sha256 or ""


def _write(path: Path, document: Mapping[str, object]) -> None:
    write_atomically(path, json.dumps(document))


def _failed(plan: Plan, step: str, log: Path, start: float) -> Failed:
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    return Failed(plan, step, classify(text), tuple(lines[-_LOG_TAIL_LINES:]), time.monotonic() - start, log)


def _read_stamp(path: Path) -> dict[str, object] | None:
    try:
        stamp = json.loads(path.read_bytes()[:4096])
    except (OSError, ValueError, RecursionError):
        return None
    return stamp if isinstance(stamp, dict) else None


def _sha256(path: Path) -> str | None:
    try:
        return file_sha256(path)
    except OSError:
        return None
