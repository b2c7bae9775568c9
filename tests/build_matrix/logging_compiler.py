"""Compilers that write down how they were called, and then do the work: what was really compiled is read from there."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

# One write a call: compilers run side by side. _STUB leaves out the work but not the dependencies: the preprocessor
# writes them, and the object holds nothing but a checksum of what it made.
_SCRIPT = """#!/bin/sh
line=$(printf '%s\\037' "$@")
printf '%s\\n' "$line" >> {log}
{stub}exec {real} "$@"
"""
_STUB = """object=
compile=
previous=
for word in "$@"; do
  [ "$previous" = -o ] && object=$word
  [ "$word" = -c ] && compile=1
  previous=$word
done
case "$object$compile" in
  CMakeFiles/coli_*1)
    {real} "$@" -E || exit
    sum=$(cksum < "$object" | cut -d' ' -f1)
    printf '.data\\n.quad %s\\n.section .note.GNU-stack,"",@progbits\\n' "$sum" | as -o "$object"
    exit
    ;;
esac
"""


@dataclass(frozen=True)
class LoggingCompiler:
    """``path`` is what to call; ``log`` gets one line a call, its arguments parted by 0x1f."""

    path: Path
    log: Path

    def compiled(self) -> list[str]:
        """Return the names of our sources that were compiled since the last question; CMake's trials are not ours."""
        text = self.log.read_text(encoding="utf-8") if self.log.exists() else ""
        self.log.unlink(missing_ok=True)
        calls = [line.rstrip("\x1f").split("\x1f") for line in text.splitlines()]
        sources = [Path(word) for call in calls if "-c" in call for word in call if word.endswith((".cpp", ".cu"))]
        return sorted(source.name for source in sources if source.parent.name in ("cpu", "cuda", "common", "deepgemm"))


def logging_compiler(path: Path, real: str, *, stub: bool = False) -> LoggingCompiler:
    """Write a compiler at ``path`` that logs beside itself and calls ``real``; a stub does so for CMake only."""
    log = path.with_name(path.name + ".log")
    words = {"log": shlex.quote(str(log)), "real": shlex.quote(real)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_SCRIPT.format(stub=_STUB.format(**words) if stub else "", **words), encoding="utf-8")
    path.chmod(0o755)
    return LoggingCompiler(path, log)
