"""The wheel that `nox -s package` left in dist/, in an environment of its own."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PACKAGE = runpy.run_path(str(ROOT / "ci" / "package.py"))


def run(*command: str | Path, cwd: Path, ok: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COLI_", "PYTHON", "XDG_"))}
    environment = {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert not ok or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done


def test_a_library_that_is_not_of_its_manifest_is_noticed() -> None:
    name = "coli/backends/lib/libcoli_cpu_portable.so"
    good = {name: b"code", name + ".json": json.dumps({"sha256": hashlib.sha256(b"code").hexdigest()}).encode()}
    assert PACKAGE["wrong_libraries"](good) == []
    assert PACKAGE["wrong_libraries"]({**good, name: b"stripped"}) == [f"{name} is not the library of its manifest"]
    assert PACKAGE["wrong_libraries"]({name: b"code"}) == [f"{name} is not the library of its manifest"]
    assert PACKAGE["wrong_libraries"]({}) == ["no library in coli/backends/lib/"]


def test_only_the_name_of_the_system_may_change() -> None:
    before = {"coli/x.py": b"1", "coli-0.1.dist-info/WHEEL": b"linux"}
    assert PACKAGE["changed_files"](before, {**before, "coli-0.1.dist-info/WHEEL": b"manylinux"}) == []
    assert PACKAGE["changed_files"](before, {**before, "coli/x.py": b"2", "coli.libs/y.so": b""}) == [
        "coli.libs/y.so",
        "coli/x.py",
    ]


@pytest.fixture(scope="module")
def wheel() -> Path:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}-"
    found = [path for path in sorted(DIST.glob("coli-*.whl")) if tag in path.name]
    if not found:
        pytest.skip("not run: no wheel of this Python in dist/; nox -s package makes one")
    return found[0]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every locked requirement, fetched by hash: what may be installed, and nothing else."""
    folder = tmp_path_factory.mktemp("house")
    lock = ROOT / "ci" / "requirements-test.txt"
    options = ("--no-deps", "--require-hashes", "--only-binary=:all:", "--dest", folder)
    done = run(sys.executable, "-m", "pip", "download", "-q", *options, "-r", lock, cwd=folder, ok=False)
    if done.returncode != 0 and ("onnection" in done.stderr or "resolution" in done.stderr):
        pytest.skip("not run: no network for the locked requirements")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.full
def test_the_checksums_are_those_of_the_files(wheel: Path) -> None:
    lines = dict(reversed(line.split("  ")) for line in (DIST / "SHA256SUMS").read_text().splitlines())
    files = {path.name for path in DIST.iterdir()} - {"SHA256SUMS"}
    assert set(lines) == files and len(files) == 2
    assert all(hashlib.sha256((DIST / name).read_bytes()).hexdigest() == digest for name, digest in lines.items())


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="not run: names of Linux")
def test_the_wheel_holds_what_is_used_and_says_which_systems_it_is_for(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "-manylinux_" in wheel.name or "-linux_" in wheel.name
    assert not [name for name in names if name.startswith(("tests", "coli/backends/host/", "coli.libs"))]
    assert {"coli/build_matrix/matrix.toml", "coli/backends/cuda/matvec.cu", "coli/py.typed"} <= set(names)


@pytest.mark.full
def test_a_clean_environment_runs_the_demo_and_builds_a_library(wheel: Path, house: Path, tmp_path: Path) -> None:
    place = tmp_path / "rein und größer"
    run(sys.executable, "-m", "venv", place, cwd=tmp_path)
    python = place / "bin" / "python"
    offline = ("-m", "pip", "install", "-q", "--no-index", "--find-links", str(house))
    run(python, *offline, wheel, cwd=tmp_path)
    package = next((place / "lib").glob("python*/site-packages/coli"))
    libraries = sorted((package / "backends" / "lib").glob("*.so"))
    assert len(libraries) >= 2
    for library in libraries:
        manifest = json.loads(library.with_name(library.name + ".json").read_text())
        assert hashlib.sha256(library.read_bytes()).hexdigest() == manifest["sha256"]
    coli = (python, "-m", "coli")
    folders = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    demo = json.loads(run(*coli, "demo", "--json", cwd=tmp_path, **folders).stdout)
    assert " ".join(demo["text"].split()) in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    listed = json.loads(run(*coli, "build", "--list", "--json", cwd=tmp_path, **folders).stdout)
    assert {row["evidence"] for row in listed["cells"]} == {"not built"}
    without = {**folders, "PATH": str(place / "bin")}
    refused = run(*coli, "build", "--cell", "cpu-portable", cwd=tmp_path, ok=False, **without)
    assert refused.returncode != 0 and "pip install cmake ninja" in refused.stdout + refused.stderr
    run(python, *offline, "cmake", "ninja", cwd=tmp_path)
    built = json.loads(run(*coli, "build", "--cell", "cpu-portable", "--json", cwd=tmp_path, **folders).stdout)
    (cell,) = built["cells"]
    shipped = next(library for library in libraries if library.name == "libcoli_cpu_portable.so")
    assert cell["state"] == "built" and cell["sha256"] == hashlib.sha256(shipped.read_bytes()).hexdigest()
