"""Windows without Windows: a wine prefix, and programs run in it with a deadline."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

WINE = "/usr/lib/wine/wine64"
SERVER = "/usr/lib/wine/wineserver64"


@dataclass(frozen=True)
class Wine:
    """A prefix below ``home``; ``drive`` is what Windows sees as C:."""

    home: Path

    @property
    def drive(self) -> Path:
        """Return the folder that is C:."""
        return self.home / "prefix" / "drive_c"

    def environment(self) -> dict[str, str]:
        """Return a small environment: no debugger when a program crashes, no downloads of mono and gecko."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "WINEPREFIX": str(self.home / "prefix"),
            "WINEARCH": "win64",
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "mscoree=;mshtml=;winedbg.exe=d",
        }

    def run(
        self, *command: str | Path, deadline_s: float, folder: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program of Windows; its output comes through pipes, which is what it needs without a screen."""
        child = subprocess.Popen(
            [WINE, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(),
            cwd=folder or self.home,
            start_new_session=True,
        )
        try:
            output, errors = child.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            raise
        return subprocess.CompletedProcess(child.args, child.returncode, output, errors)

    def windows_path(self, path: Path) -> str:
        """Return what Windows calls a file of this system."""
        if path.is_relative_to(self.drive):
            return "C:\\" + str(path.relative_to(self.drive)).replace("/", "\\")
        return "Z:" + str(path).replace("/", "\\")

    def start(self) -> None:
        """Make the prefix."""
        (self.home / "prefix").mkdir(parents=True)
        done = self.run("wineboot", "-i", deadline_s=120)
        assert done.returncode == 0 and self.drive.is_dir(), done.stderr.decode("utf-8", "replace")

    def stop(self) -> None:
        """End what runs in this prefix, and nothing else; then remove it."""
        for option in ("-k", "-w"):
            subprocess.run([SERVER, option], env=self.environment(), check=False, timeout=60, capture_output=True)
        shutil.rmtree(self.home, ignore_errors=True)
