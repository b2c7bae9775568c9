"""Engines of plugins: imported first in a child process with a deadline; the verdict is remembered by version."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coli.errors import FamilyError

if TYPE_CHECKING:
    from coli.families.registry import Family

__all__ = ["DEADLINE_S", "Verdict", "load_engine", "probe"]

DEADLINE_S = 20.0
METHODS = ("forward", "reset", "close")

MAX_ANSWER = 16 * 1024
MAX_FILES = 2000

# Runs in the child. Standard output and error go nowhere; the answer is a file: a plugin may print what it likes.
# os._exit: a plugin's exit handlers and threads are not waited for.
_CHILD = """
import json, os, sys
path, module, name, methods, search = json.loads(sys.argv[1])
sys.path[:] = search
class Counter:
    encoding = "utf-8"
    count = 0
    def write(self, text):
        Counter.count += len(text)
        return len(text)
    def flush(self): pass
    def isatty(self): return False
    def fileno(self): return 1
sys.stdout = Counter()
answer = {"ok": False, "reason": ""}
try:
    import importlib
    engine = getattr(importlib.import_module(module), name)
    missing = [m for m in methods if not callable(getattr(engine, m, None))]
    if not isinstance(engine, type):
        answer["reason"] = f"{module}:{name} is not a class"
    elif missing:
        answer["reason"] = f"{module}:{name} has no method " + ", ".join(missing)
    else:
        answer["ok"] = True
except BaseException as error:
    answer["reason"] = " ".join(f"importing {module}:{name} raised {type(error).__name__}: {error}".split())[:400]
answer["printed"] = Counter.count > 0
with open(path + ".part", "w", encoding="utf-8") as file:
    json.dump(answer, file)
os.replace(path + ".part", path)
os._exit(0)
"""


class Verdict(NamedTuple):
    """Whether the engine of a plugin can be imported: a stable code, the reason if not, and if it was cached."""

    ok: bool
    code: str
    reason: str
    printed: bool = False
    cached: bool = False


def probe(family: Family, cache_folder: Path | None, deadline_s: float = DEADLINE_S) -> Verdict:
    """Import the engine of a plugin in a child process and say whether that works.

    ``cache_folder``: where verdicts are kept, None to keep none. Never raises for what the plugin does.
    """
    key = _key(family, deadline_s)
    file = None if cache_folder is None else cache_folder / "plugins" / f"{key}.json"
    known = _recall(file)
    if known is not None:
        return known
    verdict = _ask(str(family.descriptor.engine), deadline_s)
    if file is not None:
        _remember(file, verdict)
    return verdict


def load_engine(family: Family, cache_folder: Path | None, deadline_s: float = DEADLINE_S) -> Any:
    """Import the engine class of a family; that of a plugin is probed first. Raises FamilyError with the reason."""
    import importlib

    entry = family.descriptor.engine
    if entry is None:
        raise FamilyError(family.descriptor.id, "the family has names only, no engine", code="family.no-engine")
    if family.provider.source == "plugin":
        verdict = probe(family, cache_folder, deadline_s)
        if not verdict.ok:
            raise FamilyError(
                family.descriptor.id,
                f"the engine of {family.provider.text()} cannot be used",
                observed=verdict.reason,
                fix=f"update or uninstall {family.provider.distribution}",
                code=verdict.code,
            )
    module, _, name = entry.partition(":")
    # Standard output belongs to the program (`--json` is one document): what a plugin prints goes to standard error.
    with contextlib.redirect_stdout(sys.stderr):
        return getattr(importlib.import_module(module), name)


def _ask(entry: str, deadline_s: float) -> Verdict:
    module, _, name = entry.partition(":")
    with tempfile.TemporaryDirectory(prefix="coli-probe-", ignore_cleanup_errors=True) as folder:
        answer = Path(folder) / "answer.json"
        request = json.dumps([str(answer), module, name, METHODS, sys.path])
        try:
            child = subprocess.Popen(
                [sys.executable, "-I", "-c", _CHILD, request],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            return Verdict(False, "plugin.not-probed", f"the child process could not be started: {error}")
        try:
            status = child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return Verdict(False, "plugin.hang", f"importing its engine took longer than {deadline_s:g} s")
        finally:
            _end(child)
        return _read_answer(answer, status)


def _end(child: subprocess.Popen[bytes]) -> None:
    # The group, not only the child: what a plugin starts on import must not outlive the probe.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()


def _read_answer(file: Path, status: int) -> Verdict:
    try:
        with file.open("rb") as stream:
            data = json.loads(stream.read(MAX_ANSWER))
        if data["ok"] is True:
            return Verdict(True, "ok", "", bool(data["printed"]))
        return Verdict(False, "plugin.import", str(data["reason"])[:500], bool(data["printed"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return Verdict(False, "plugin.crash", f"importing its engine crashed the process ({name})")
    return Verdict(False, "plugin.exit", f"importing its engine ended the process (exit status {status})")


def _key(family: Family, deadline_s: float) -> str:
    import coli
    from coli.families.descriptor import API_VERSION

    identity = [
        family.provider.distribution,
        family.provider.version,
        family.provider.path,
        family.descriptor.engine,
        deadline_s,
        [coli.__version__, API_VERSION, sys.executable, sys.version],
        _state(Path(family.provider.path)),
    ]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def _state(folder: Path) -> list[int]:
    """Return number and latest change of the Python files: an editable plugin changes without a new version."""
    latest = count = 0
    for file in folder.rglob("*.py"):
        count += 1
        with contextlib.suppress(OSError):
            latest = max(latest, file.stat().st_mtime_ns)
        if count >= MAX_FILES:
            break
    return [count, latest]


def _recall(file: Path | None) -> Verdict | None:
    if file is None:
        return None
    try:
        with file.open("rb") as stream:
            ok, code, reason, printed = json.loads(stream.read(MAX_ANSWER))
    except (OSError, ValueError, TypeError):
        return None
    return Verdict(ok is True, str(code), str(reason), printed is True, cached=True)


def _remember(file: Path, verdict: Verdict) -> None:
    if verdict.code == "plugin.not-probed":
        return
    with contextlib.suppress(OSError):  # no cache is slower, not wrong
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(verdict[:4]), "utf-8")
        part.replace(file)
