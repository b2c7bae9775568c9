"""The child process of the loader: opens a library, reads its table, replays the canary, says what it saw.

Each line of its answer is one JSON object, written before the next step begins, so that the parent knows at which
step a library crashed or hung. ctypes only.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coli.backends.abi import QUERY_SYMBOL
from coli.backends.abi.structs import Backend
from coli.backends.canary import check_cases, run_canary
from coli.backends.handshake import decide_handshake, decide_slots, probe_slots, probe_table
from coli.backends.vectors import read_vectors

__all__ = ["main", "open_library", "query_table"]

# Of LoadLibraryExW: what the library needs comes from its own folder and from System32, never from PATH, the
# program's folder or the current one.
_LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR = 0x0100
_LOAD_LIBRARY_SEARCH_SYSTEM32 = 0x0800


def open_library(path: Path) -> ctypes.CDLL:
    """Open a library by its absolute path; ctypes never closes it. Raises OSError."""
    if sys.platform == "win32":
        return ctypes.CDLL(str(path), winmode=_LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | _LOAD_LIBRARY_SEARCH_SYSTEM32)
    return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)


def query_table(library: ctypes.CDLL) -> int | None:
    """Return the address of a library's table, None for null. Raises AttributeError without the query symbol."""
    query = getattr(library, QUERY_SYMBOL)
    query.restype = ctypes.c_void_p
    query.argtypes = []
    address: int | None = query()
    return address


def _keep_quiet() -> int:
    """Keep the pipe to the parent for us: what the library prints goes to standard error. Returns the descriptor.

    No core file, and no dialog box that waits for somebody to click it.
    """
    channel = os.dup(1)
    os.dup2(2, 1)
    if sys.platform == "win32":
        # SEM_FAILCRITICALERRORS (a missing dependency), SEM_NOGPFAULTERRORBOX (a crash), SEM_NOOPENFILEERRORBOX.
        ctypes.WinDLL("kernel32").SetErrorMode(0x0001 | 0x0002 | 0x8000)
    else:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return channel


def main(arguments: list[str]) -> int:
    """Probe library ``arguments[0]`` of kind ``arguments[2]`` with canary file ``arguments[1]``; return the exit code.

    ``arguments[3]``, if there is one, is a cuBLASLt that the library may ask for later: does it open? The
    answer goes to the standard output that the parent gave, one line a step.
    """
    channel = _keep_quiet()

    def tell(step: str, **facts: Any) -> None:
        os.write(channel, json.dumps({"step": step, **facts}).encode() + b"\n")

    tell("start")
    try:
        return _probe(arguments, tell)
    except OSError as error:
        if sys.platform != "win32":
            raise
        # There ctypes makes an OSError of what would be a signal elsewhere; nothing here is sound any more.
        tell("crash", code=(error.winerror or 0) & 0xFFFFFFFF, text=str(error))
        os._exit(1)


def _probe(arguments: list[str], tell: Callable[..., None]) -> int:
    try:
        library = open_library(Path(arguments[0]))
    except OSError as error:
        tell("open", error=str(error))
        return 0
    tell("open", error=None, query=hasattr(library, QUERY_SYMBOL))
    if not hasattr(library, QUERY_SYMBOL):
        return 0
    address = query_table(library)
    if address is None:
        tell("table", table=None)
        return 0
    backend = Backend.from_address(address)
    table = probe_table(backend)
    tell("table", table=table)
    if decide_handshake(table).verdict != "ok":
        return 0
    rows = probe_slots(backend)
    tell("slots", slots=rows, name=backend.name[:128].decode("utf-8", "replace") if backend.name else "")
    of_device = arguments[2] == "cuda"  # such a library may leave stages to the CPU behind it
    if decide_slots(rows, table["abi"], of_device=of_device).verdict != "ok":
        return 0
    try:
        cases = read_vectors(Path(arguments[1]).read_bytes())
        check_cases(cases)
    except (OSError, ValueError) as error:
        tell("canary", unreadable=str(error))
        return 0
    result = run_canary(backend, cases, may_decline=of_device)
    tell(
        "canary",
        cases=len(cases),
        problems=result.problems,
        declined=result.declined,
        declined_calls=result.declined_calls,
    )
    if len(arguments) > 3:
        tell("cublaslt", state="opening")
        try:
            open_library(Path(arguments[3]))
        except OSError as error:
            tell("cublaslt", state="done", error=str(error))
        else:
            tell("cublaslt", state="done", error=None)
    return 0
