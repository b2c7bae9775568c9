"""Where cuBLASLt is looked for, in which order, and what is passed over."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from building import ROOT
from fake_machine import build_cublaslt

from coli.backends.cpu_level import cpu_level
from coli.backends.cublas import BLOCK_SCALING, decide_opening, decide_wheel, probe_cublaslt, render_cublaslt
from coli.backends.probe import Answer
from coli.backends.toolkit_places import Places
from coli.backends.trace import CublasLt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run: the played libraries are ELF files")

MACHINE = cpu_level().machine
NAME = "libcublasLt.so.13"
VARIABLES = {
    "CUDA_HOME": "/opt/home",
    "CUDA_PATH": "/opt/path",
    "CONDA_PREFIX": "/opt/conda",
    "VIRTUAL_ENV": "/opt/venv",
}
# In the order in which the first that is there counts, with who names it.
ORDER = (
    ("LD_LIBRARY_PATH", "opt/first"),
    ("LD_LIBRARY_PATH", "opt/second"),
    ("system", "usr/lib"),
    ("system", f"usr/lib/{MACHINE}-linux-gnu"),
    ("CUDA_HOME", "opt/home/lib64"),
    ("CUDA_PATH", "opt/path/lib"),
    ("toolkit", "usr/local/cuda/lib64"),
    ("toolkit", "usr/local/cuda-13.10/lib64"),
    ("toolkit", "usr/local/cuda-13.2/lib64"),
    ("toolkit", "opt/cuda/lib64"),
    ("CONDA_PREFIX", "opt/conda/lib"),
    ("wheel", "site/nvidia/cu13/lib"),
    ("wheel", "opt/venv/lib/python3.12/site-packages/nvidia/cu13/lib"),
    ("wheel", "site/nvidia/cublas/lib"),
)


@pytest.fixture(scope="session")
def library(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_cublaslt(compiler, tmp_path_factory.mktemp("cublas") / NAME)


def put(library: Path, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(library, file)
    file.chmod(0o644)
    return file


def probe(root: Path, variables: dict[str, str] | None = None, *library_path: str) -> CublasLt:
    places = Places(VARIABLES if variables is None else variables, MACHINE, root, (root / "site",))
    return probe_cublaslt(13, places, tuple(Path(entry) for entry in library_path))


def states(found: CublasLt) -> dict[str, str]:
    return {place.where: place.state for place in found.places}


def test_places_in_their_order(library: Path, tmp_path: Path) -> None:
    files = [put(library, tmp_path / folder / NAME) for _, folder in ORDER]
    for count, file in enumerate(files):
        found = probe(tmp_path, None, "/opt/first", "/opt/second")
        there = [(place.origin, place.where) for place in found.places if place.state in ("taken", "found")]
        assert there == [(who, str(tmp_path / folder / NAME)) for who, folder in ORDER[count:]]
        assert found.path == file
        assert [place.where for place in found.places if place.state == "taken"] == [str(file)]
        file.unlink()
    found = probe(tmp_path, None, "/opt/first", "/opt/second")
    assert found.path is None and found.version.known
    assert {place.state for place in found.places} == {"absent"}
    assert {place.origin for place in found.places} == {who for who, _ in ORDER}
    assert render_cublaslt(found) == "libcublasLt.so.13 is not found"


def test_nothing_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    found = probe(tmp_path)
    assert [(place.origin, place.state) for place in found.places] == [
        ("system", "absent"),
        *((name, "absent") for name in ("CUDA_HOME", "CUDA_PATH", "toolkit", "toolkit", "CONDA_PREFIX", "wheel")),
    ]
    assert found.places[0].where.startswith(f"ld.so.cache, {tmp_path}/lib, ")
    assert found.places[-1].where == str(tmp_path / "site" / "nvidia")


def test_a_toolkit_as_it_is_installed(library: Path, tmp_path: Path) -> None:
    """Its libraries have whole versions in their names, links lead there, and /usr/local/cuda is a link itself."""
    root = tmp_path / "usr/local"
    real = put(library, root / f"cuda-13.0/targets/{MACHINE}-linux/lib/libcublasLt.so.13.0.2.14")
    (real.parent / NAME).symlink_to(real.name)
    (root / "cuda-13.0/lib64").symlink_to(f"targets/{MACHINE}-linux/lib")
    (root / "cuda").symlink_to("cuda-13.0")
    found = probe(tmp_path, {})
    assert found.path == real
    assert (found.version.value, found.version.source) == ("13.0.2.14", f"name of {real}")
    assert [place.where for place in found.places if place.state == "taken"] == [str(root / "cuda/lib64" / NAME)]
    assert "found" not in states(found).values()  # one file, however many names it has


def test_the_name_of_a_wheel_has_the_major_only(library: Path, tmp_path: Path) -> None:
    put(library, tmp_path / "site/nvidia/cu13/lib" / NAME)
    version = probe(tmp_path).version
    assert (version.value, version.known) == (None, False)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_anyone_may_write_is_passed_over(library: Path, tmp_path: Path, what: str) -> None:
    first = put(library, tmp_path / "opt/home/lib64" / NAME)
    second = put(library, tmp_path / "site/nvidia/cu13/lib" / NAME)
    first.chmod(0o666) if what == "file" else first.parent.chmod(0o777)
    found = probe(tmp_path)
    assert states(found)[str(first)] == "refused" and found.path == second
    second.unlink()
    found = probe(tmp_path)
    assert found.path is None
    said = (
        f"the file {first} may be written by anyone"
        if what == "file"
        else f"anyone may replace files in {first.parent}"
    )
    assert said in render_cublaslt(found)


def test_a_link_is_judged_by_what_it_leads_to(library: Path, tmp_path: Path) -> None:
    real = put(library, tmp_path / "open" / NAME)
    real.parent.chmod(0o777)
    link = tmp_path / "opt/home/lib64" / NAME
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    found = probe(tmp_path)
    assert found.path is None and states(found)[str(link)] == "refused"


def test_another_major_is_named_and_not_taken(compiler: str, library: Path, tmp_path: Path) -> None:
    put(library, tmp_path / "usr/local/cuda/lib64/libcublasLt.so.12")
    older = tmp_path / "opt/home/lib64" / NAME  # the name of the file says 13, the library itself 12
    older.parent.mkdir(parents=True)
    build_cublaslt(compiler, older, soname="libcublasLt.so.12")
    found = probe(tmp_path)
    rows = {place.where: (place.state, place.evidence) for place in found.places}
    assert found.path is None
    assert rows[str(tmp_path / "usr/local/cuda/lib64" / NAME)] == ("unfit", "there is libcublasLt.so.12")
    assert rows[str(older)] == ("unfit", "its own name is libcublasLt.so.12")


def test_never_from_the_current_folder(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("", "lib64", "toolkit/lib64", "lib/python3.12/site-packages/nvidia/cu13/lib"):
        put(library, tmp_path / folder / NAME)
    monkeypatch.chdir(tmp_path)
    relative = {"CUDA_HOME": "toolkit", "CUDA_PATH": ".", "CONDA_PREFIX": "toolkit", "VIRTUAL_ENV": "."}
    found = probe_cublaslt(13, Places(relative, MACHINE), (Path(), Path("lib64")))
    mine = [place for place in found.places if place.origin in (*relative, "LD_LIBRARY_PATH", "wheel")]
    assert len(mine) == 7 and {place.state for place in mine} == {"refused"}
    assert found.path is None or tmp_path not in found.path.parents


def test_odd_files_are_rows(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "opt/home/lib64"
    folder.mkdir(parents=True)
    file = folder / NAME
    for make, state in (
        (lambda: file.write_bytes(b""), "unfit"),
        (lambda: file.write_bytes(library.read_bytes()[:700]), "unfit"),
        (lambda: file.write_text("INPUT(libcublasLt.so.13.0)"), "unfit"),
        (lambda: file.mkdir(), "unfit"),
        (lambda: os.mkfifo(file), "unfit"),
        (lambda: file.symlink_to("nowhere"), "unfit"),
        (lambda: file.symlink_to(NAME), "unreadable" if sys.version_info < (3, 13) else "unfit"),
    ):
        make()
        found = probe(tmp_path)
        assert (found.path, states(found)[str(file)]) == (None, state)
        file.rmdir() if file.is_dir() else file.unlink()
    for value in ("/opt/\0", "/" + "x" * 5000, "/" + "/x" * 3000):
        assert probe(tmp_path, dict.fromkeys(VARIABLES, value), value).path is None


def test_a_folder_that_may_not_be_read_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "usr" / "local" / "cuda" / "lib64"
    folder.mkdir(parents=True)

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", denied)
    found = probe(tmp_path)
    assert found.path is None
    assert states(found)[str(folder / NAME)] == "unreadable"


def test_other_machines_are_passed_over(library: Path, tmp_path: Path) -> None:
    data = bytearray(library.read_bytes())
    data[18:20] = (243).to_bytes(2, "little")  # e_machine: RISC-V
    file = put(library, tmp_path / "opt/home/lib64" / NAME)
    file.write_bytes(data)
    row = next(place for place in probe(tmp_path).places if place.where == str(file))
    assert (row.state, row.evidence) == ("unfit", "ELF, riscv64, 64-bit")


def test_what_the_child_process_saw(library: Path, tmp_path: Path) -> None:
    put(library, tmp_path / "opt/home/lib64" / NAME)
    found = probe(tmp_path)
    opened = decide_opening(found, Answer({"cublaslt": {"state": "done", "error": None}}, "exit"))
    assert (opened.opens, opened.problem) == (True, None)
    assert render_cublaslt(opened).endswith(f"{NAME}, opened before the first fast product")
    broken = decide_opening(found, Answer({"cublaslt": {"state": "done", "error": "no libm.so.9"}}, "exit"))
    assert (broken.opens, broken.problem) == (False, "no libm.so.9")
    assert render_cublaslt(broken).endswith(f"{NAME} does not open: no libm.so.9")
    crashed = decide_opening(found, Answer({"cublaslt": {"state": "opening"}}, "signal", "SIGSEGV"))
    assert (crashed.opens, crashed.problem) == (False, "SIGSEGV")
    assert decide_opening(found, Answer({}, "exit")) == found


def test_wheels_by_the_names_that_nvidia_gives_them() -> None:
    assert decide_wheel(13) == "nvidia-cublas>=13,<14"
    assert decide_wheel(12) == "nvidia-cublas-cu12>=12.8"


def test_the_devices_are_those_of_the_library() -> None:
    text = (ROOT / "backends/cuda/block_scale.cpp").read_text("utf-8")
    found = re.search(r"if \(major < (\d+)\)", text)
    assert found and tuple(BLOCK_SCALING) == (int(found[1]), 0)
