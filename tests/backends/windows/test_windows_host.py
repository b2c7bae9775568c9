"""The host extension for Windows: numpy arrays through the dispatcher into a DLL, with the bytes of Linux."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import native
import numpy as np
import pytest
from building import Build
from stubs import write_manifest
from wine import Wine

from coli.backends import _host
from coli.backends.containers import read_container

pytestmark = pytest.mark.full


def test_what_it_needs(host: Path) -> None:
    assert {name.lower() for name in read_container(host).needed} == {"python313.dll", "kernel32.dll", "msvcrt.dll"}


def test_bytes_of_linux(
    wine: Wine, windows_python: Path, host: Path, dlls: Build, recorded: Path, tmp_path: Path
) -> None:
    libraries = wine.drive / "backends"
    libraries.mkdir()
    for level, library in dlls.libraries.items():
        target = Path(shutil.copyfile(library, libraries / library.name))
        write_manifest(target, level=level.replace("_", "-"))
    x = np.concatenate([np.linspace(-750, 712, 20001), [0.0, -0.0, np.inf, -np.inf, 5e-324]])
    frequencies = 10000.0 ** (-np.arange(32) / 32)
    np.savez(tmp_path / "in.npz", x=x, frequencies=frequencies)
    files = [wine.windows_path(file) for file in (libraries, recorded, tmp_path / "in.npz", tmp_path / "out.npz")]
    script = wine.windows_path(wine.drive / "site" / "host_on_windows.py")
    done = wine.run(windows_python / "python.exe", "-X", "utf8", script, *files, deadline_s=200)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-3000:]
    found = json.loads(done.stdout)
    assert found["differing"] == []
    assert set(found["equal"]) == native.exact_stages()
    assert found["backend"] == found["library"] and found["backend"].startswith("cpu-")
    with np.load(tmp_path / "out.npz") as there:
        cosine, sine = _host.rope_table(frequencies, 7, 3, 1000)
        for name, here in (("exp", _host.exp(x)), ("cosine", cosine), ("sine", sine)):
            assert there[name].dtype == here.dtype and there[name].tobytes() == here.tobytes(), name
