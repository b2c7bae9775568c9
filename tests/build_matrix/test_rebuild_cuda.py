"""The same with the real nvcc, through `coli build`: flags, toolkits, compilers, sources, a compiler cache.

Toolkit, sources, host compiler and build folder lie in folders with a space and letters outside ASCII.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from logging_compiler import LoggingCompiler, logging_compiler

import coli
from coli.build_matrix.wheels import load_bundles, make_bundle
from coli.errors import ColiError
from coli.paths import cache_folder

pytestmark = [pytest.mark.full, pytest.mark.skipif(sys.platform != "linux", reason="not run: other file names")]

CELL = "cuda13.0-sm_86-notc-generic"
SOURCES = {"context.cpp", "linear.cpp", "matvec.cu", "refuse.cpp", "table.cpp", "weight_desc.cpp", "weights.cpp"}


class Yard:
    """A copy of the package and of a toolkit, with compilers that log."""

    def __init__(self, folder: Path, toolkit: Path) -> None:
        self.folder = folder
        self.package = folder / "quellen für coli"
        shutil.copytree(Path(coli.__file__).parent, self.package / "coli")
        self.backends = self.package / "coli" / "backends"
        self.toolkit, self.nvcc = self.copy_of(toolkit, "werkzeug größer")
        self.host = logging_compiler(folder / "compiler ä" / "g++", shutil.which("g++") or "g++")
        self.answers: list[dict[str, Any]] = []

    def copy_of(self, toolkit: Path, name: str) -> tuple[Path, LoggingCompiler]:
        """Copy a toolkit (by links, it is large) and put a logging nvcc before its own."""
        root = self.folder / name
        shutil.copytree(toolkit, root, symlinks=True, copy_function=os.link)
        (root / "bin" / "nvcc").rename(root / "bin" / "real-nvcc")
        return root, logging_compiler(root / "bin" / "nvcc", str(root / "bin" / "real-nvcc"))

    def compiled(self, *options: str, cell: str | None = None, **variables: str) -> set[str]:
        """Build, and return which sources were compiled."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONPATH": str(self.package),
            "CUDA_HOME": str(self.toolkit),
            "NVCC_CCBIN": str(self.host.path),
            "XDG_DATA_HOME": str(self.folder / "data ö"),
            "XDG_CACHE_HOME": str(self.folder / "cache ö"),
            **({} if "CCACHE_DIR" in variables else {"CCACHE_DISABLE": "1"}),  # a hit calls no compiler
            **variables,
        }
        chosen = ("--cell", cell) if cell else ()
        command = [sys.executable, "-m", "coli", "build", "--json", "--builds", str(self.folder / "objekte größer")]
        done = subprocess.run(
            [*command, *chosen, *options], env=environment, capture_output=True, text=True, cwd=self.folder, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        answer = json.loads(done.stdout)
        self.answers.append(answer)
        return {*self.nvcc.compiled(), *self.host.compiled()}

    @property
    def last(self) -> dict[str, Any]:
        """The last cell of the last answer."""
        cell: dict[str, Any] = self.answers[-1]["cells"][-1]
        return cell


def pinned_toolkit() -> Path:
    bundle = load_bundles()["pypi:13.0"]
    try:
        return make_bundle(bundle, cache_folder(), platform.machine(), dict(os.environ))
    except ColiError as error:
        if error.code == "build.wheels-download":
            pytest.skip(f"not run: {error.observed}")
        raise


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Yard:
    """Return a yard whose smallest CUDA cell is built."""
    made = Yard(tmp_path_factory.mktemp("mein hof ä"), pinned_toolkit())
    # One architecture by CUDA_ARCH, which is the cell of that name.
    assert made.compiled(cell=CELL) == SOURCES
    assert made.last["state"] == "built" and made.last["id"] == CELL
    return made


def test_every_path_has_a_space_and_letters_outside_ascii(yard: Yard) -> None:
    arguments = "\n".join(yard.last["arguments"])
    for name in ("werkzeug größer", "compiler ä"):
        assert name in arguments
    assert "objekte größer" in yard.last["log"] and "data ö" in yard.last["library"]
    assert "sm_86" in Path(yard.last["library"] + ".json").read_text(encoding="utf-8")


def test_nothing_changed(yard: Yard) -> None:
    assert yard.compiled(cell=CELL) == set() and yard.last["state"] == "unchanged"


def test_another_architecture_is_another_cell_and_the_way_back_compiles_nothing(yard: Yard) -> None:
    other = "cuda13.0-compute_80-notc-generic"
    assert yard.compiled(cell=other) == SOURCES
    assert yard.compiled(cell=CELL) == set() and yard.last["state"] == "unchanged"
    assert yard.compiled(cell=other) == set()


def test_flags_for_nvcc_compile_all_and_the_way_back_nothing(yard: Yard) -> None:
    assert yard.compiled(cell=CELL, NVCC_APPEND_FLAGS="-lineinfo") == SOURCES
    lines = yard.last["sha256"]
    assert yard.compiled(cell=CELL) == set()
    assert yard.compiled(cell=CELL, NVCC_APPEND_FLAGS="-lineinfo") == set() and yard.last["sha256"] == lines
    assert yard.compiled(cell=CELL) == set() and yard.last["sha256"] != lines


def test_another_host_compiler_and_another_toolkit_compile_all(yard: Yard) -> None:
    host, toolkit, nvcc = yard.host, yard.toolkit, yard.nvcc
    yard.host = logging_compiler(yard.folder / "compiler b" / "g++", shutil.which("g++") or "g++")
    assert yard.compiled(cell=CELL) == SOURCES
    yard.host = host
    yard.toolkit, yard.nvcc = yard.copy_of(pinned_toolkit(), "anderes werkzeug")
    assert yard.compiled(cell=CELL) == SOURCES
    yard.toolkit, yard.nvcc = toolkit, nvcc
    assert yard.compiled(cell=CELL) == set()


@pytest.mark.parametrize(
    ("name", "seen_by"),
    [
        ("cuda/formats.cuh", {"matvec.cu"}),
        ("common/weight_desc.h", {"context.cpp", "linear.cpp", "weight_desc.cpp", "weights.cpp"}),
        ("cuda/weights.cpp", {"weights.cpp"}),
        ("cpu/coli_math.h", {"matvec.cu"}),
    ],
)
def test_a_source_compiles_those_that_see_it(yard: Yard, name: str, seen_by: set[str]) -> None:
    path = yard.backends / name
    before = path.read_bytes()
    path.write_bytes(before + b"// changed\n")
    assert yard.compiled(cell=CELL) == seen_by
    path.write_bytes(before)
    assert yard.compiled(cell=CELL) == seen_by


def test_a_compiler_cache_changes_no_byte_and_knows_the_flags_for_nvcc(yard: Yard, tmp_path: Path) -> None:
    ccache = shutil.which("ccache", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if ccache is None:
        pytest.skip("not run: no ccache beside Python or on PATH")
    path = os.pathsep.join([str(Path(ccache).parent), os.environ["PATH"]])
    variables = {"PATH": path, "CCACHE_DIR": str(tmp_path / "ccache")}

    def clean(**more: str) -> tuple[set[str], str]:
        shutil.rmtree(yard.folder / "objekte größer", ignore_errors=True)
        (yard.folder / "data ö" / "coli" / "backends" / CELL / "libcoli_cuda.so").unlink()
        compiled = yard.compiled(cell=CELL, **variables, **more)
        assert yard.answers[-1]["ccache"] == ccache
        return compiled, yard.last["sha256"]

    yard.compiled(cell=CELL)
    plain = yard.last["sha256"]
    cold, first = clean()
    warm, second = clean()
    assert (cold, warm) == (SOURCES, set()) and plain == first == second
    lines, other = clean(NVCC_APPEND_FLAGS="-lineinfo")
    assert "matvec.cu" in lines and other != plain, "no object of other flags"
