"""What the probes read of a machine: the files they opened and what the tools said, while they run."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from coli.backends.child import Ended, observed

__all__ = ["RawFacts", "RawFile", "RawTool", "Recorder"]

# What tells about a machine. Nothing of a user's folders is ever kept, whoever opened it.
_FOLDERS = ("proc", "sys", "etc/os-release", "usr/lib/os-release", "etc/nv_tegra_release", "etc/ld.so.conf")
_NOT_KEPT = ("environ", "cmdline", "maps", "smaps", "mem", "kcore")
_PROCESS = re.compile(r"proc/(?!1/cgroup)\d+/")
_MAX_FILES = 1000
_MAX_FILE_BYTES = 1 << 16
_MAX_OUTPUT_BYTES = 1 << 18

_recorders: list[Recorder] = []
_hooked = threading.Lock()
_hook_added = False


@dataclass(frozen=True)
class RawFile:
    """A file as it was read again after the probes. ``path`` as the machine has it; ``cut``: it is longer."""

    path: str
    text: str
    cut: bool = False


@dataclass(frozen=True)
class RawTool:
    """What a tool said: ``end`` and ``code`` as `coli.backends.child.Ended` has them."""

    command: tuple[str, ...]
    end: str
    code: int
    output: str
    errors: str


@dataclass(frozen=True)
class RawFacts:
    """The raw inputs of the facts."""

    files: tuple[RawFile, ...] = ()
    tools: tuple[RawTool, ...] = ()


class Recorder:
    """Note every file below ``root`` that this process opens meanwhile, and every tool that it runs.

    Python's audit hook tells of opened files, so that no probe has to know of a record. A hook stays for as long as the
    process; without a recorder it does nothing.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._paths: dict[str, None] = {}
        self._tools: list[RawTool] = []
        self._stack = ExitStack()

    def __enter__(self) -> Recorder:
        global _hook_added
        with _hooked:
            if not _hook_added:
                sys.addaudithook(_hook)
                _hook_added = True
        _recorders.append(self)
        self._stack.callback(_recorders.remove, self)
        self._stack.enter_context(observed(self._heard))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def opened(self, path: str) -> None:
        """Note a file."""
        if len(self._paths) < _MAX_FILES:
            self._paths[path] = None

    def _heard(self, command: Sequence[str], ended: Ended) -> None:
        output = ended.output[:_MAX_OUTPUT_BYTES].decode("utf-8", "replace")
        shown = tuple(self._shown(part) for part in command)
        self._tools.append(RawTool(shown, ended.end, ended.code, output, ended.errors))

    def _shown(self, path: str) -> str:
        return path.replace(str(self._root), "") if self._root != Path("/") else path

    def raw(self) -> RawFacts:
        """Read the noted files again; what is gone or no text is left out."""
        files = []
        for name in sorted(self._paths):
            path = Path(name)
            with contextlib.suppress(ValueError, OSError):
                below = path.relative_to(self._root).as_posix()
                kept = below.startswith(_FOLDERS) and path.name not in _NOT_KEPT and not _PROCESS.match(below)
                if not kept or not path.is_file():
                    continue
                with path.open("rb") as stream:
                    data = stream.read(_MAX_FILE_BYTES + 1)
                text = data[:_MAX_FILE_BYTES].decode("utf-8", "replace")
                files.append(RawFile(f"/{below}", text, len(data) > _MAX_FILE_BYTES))
        return RawFacts(tuple(files), tuple(sorted(dict.fromkeys(self._tools), key=lambda tool: tool.command)))


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _recorders and arguments and isinstance(arguments[0], str):
        for recorder in _recorders:
            recorder.opened(arguments[0])
