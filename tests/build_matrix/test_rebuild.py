"""Every change compiles exactly what it must, and the way back too, as a compiler that logs its calls saw it.

The expected sets are written by hand from the #include lines. Everything lies below a folder with a space and letters
outside ASCII. Objects are stubs whose dependencies are real; test_rebuild_cuda.py does the same with the real nvcc.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from logging_compiler import LoggingCompiler, logging_compiler

import coli.backends
from coli.build_matrix.compilers import HostCompiler
from coli.build_matrix.driver import Built, build
from coli.build_matrix.matrix import parse_cell
from coli.build_matrix.plan import Plan, plan_cpu
from coli.build_matrix.tools import find_tools
from coli.build_matrix.version import Version

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run: other file names")

SERVICES = ["check.cpp", "pool.cpp", "refuse.cpp", "services.cpp", "table.cpp", "weight_desc.cpp"]
STAGES = ["attention.cpp", "cache.cpp", "hyper.cpp", "linear.cpp", "moe.cpp", "product.cpp", "select.cpp", "vector.cpp"]
ALL = sorted(SERVICES + STAGES)
NONE: list[str] = []
# From the #include lines, by hand: who sees each header, directly or through another.
EXACT = ["attention.cpp", "cache.cpp", "hyper.cpp", "linear.cpp", "moe.cpp", "select.cpp", "vector.cpp"]
SEEN_BY = {
    "cpu/rows.h": ["cache.cpp", "hyper.cpp", "moe.cpp", "vector.cpp"],
    "cpu/coli_math.h": sorted([*EXACT, "product.cpp"]),
    "cpu/product.h": ["attention.cpp", "linear.cpp", "moe.cpp", "product.cpp"],
    "common/weight_desc.h": ["services.cpp", "weight_desc.cpp"],
}


class Yard:
    """A copy of the sources, two compilers that log, and builds of a CPU cell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.backends = folder / "quellen für coli"
        for name in ("abi", "common", "cpu"):
            source = Path(coli.backends.__file__).parent / name
            shutil.copytree(source, self.backends / name, ignore=shutil.ignore_patterns("__pycache__"))
        real = shutil.which("c++") or "c++"
        self.one = logging_compiler(folder / "compiler ä" / "c++", real, stub=True)
        self.two = logging_compiler(folder / "compiler b" / "c++", real, stub=True)
        self.tools = replace(find_tools(os.environ), ccache=None)  # a hit calls no compiler
        self.environment: dict[str, str] = {}
        self.states: list[str] = []

    def plan(self, level: str = "portable", compiler: LoggingCompiler | None = None) -> Plan:
        path = (compiler or self.one).path
        host = HostCompiler(path, ("c++",), "gcc", Version(12, 2), True)
        return plan_cpu(parse_cell(f"cpu-{level}"), host, self.backends)

    def compiled(self, level: str = "portable", compiler: LoggingCompiler | None = None) -> list[str]:
        """Build, and return which sources were compiled, by whichever compiler."""
        done = build(
            self.plan(level, compiler),
            self.tools,
            builds=self.folder / "objekte größer",
            data_folder=self.folder / "data",
            environment={**os.environ, **self.environment},
            jobs=2,
            tell=lambda step: None,
            finish=lambda plan, library, sources: library.with_name(library.name + ".json").write_text("{}") and None,
        )
        assert isinstance(done, Built), "\n".join(done.tail)
        self.states.append(done.state)
        return sorted(self.one.compiled() + self.two.compiled())

    def edit(self, name: str) -> Callable[[], None]:
        """Append a declaration to a source; return what takes it back."""
        path = self.backends / name
        before = path.read_bytes()
        mark = {".map": b"# changed\n", ".txt": b"# changed\n"}.get(path.suffix, b"extern int coli_changed;\n")
        path.write_bytes(before + mark)

        def undo() -> None:
            path.write_bytes(before)

        return undo


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Yard:
    """Return a yard whose portable cell is built."""
    made = Yard(tmp_path_factory.mktemp("mein hof ä"))
    assert made.compiled() == ALL and made.states == ["built"]
    return made


def test_nothing_changed(yard: Yard) -> None:
    assert yard.compiled() == NONE and yard.states[-1] == "unchanged"
    os.utime(yard.backends / "cpu" / "moe.cpp")
    assert yard.compiled() == NONE and yard.states[-1] == "unchanged", "a date is no change"


@pytest.mark.parametrize("name", SEEN_BY)
def test_a_header_compiles_those_that_see_it(yard: Yard, name: str) -> None:
    undo = yard.edit(name)
    assert yard.compiled() == SEEN_BY[name]
    undo()
    assert yard.compiled() == SEEN_BY[name], "and so does taking it back"


def test_a_source_compiles_itself(yard: Yard) -> None:
    undo = yard.edit("common/refuse.cpp")
    assert yard.compiled() == ["refuse.cpp"]
    undo()
    assert yard.compiled() == ["refuse.cpp"]


def test_a_change_with_an_old_date_is_no_reason_to_keep_an_object(yard: Yard) -> None:
    undo = yard.edit("cpu/moe.cpp")
    os.utime(yard.backends / "cpu" / "moe.cpp", (1e9, 1e9))
    assert yard.compiled() == ALL, "Ninja, which goes by dates, would see nothing"
    undo()
    assert yard.compiled() == ["moe.cpp"]


def test_what_is_no_source_compiles_nothing(yard: Yard) -> None:
    library = next((yard.folder / "objekte größer" / "cpu-portable").glob("*/libcoli_cpu_portable.so"))
    before = library.stat().st_mtime_ns
    undo = yard.edit("cpu/exports.map")
    assert yard.compiled() == NONE and library.stat().st_mtime_ns > before, "linked again"
    undo()
    yard.compiled()


def test_a_flag_in_the_build_file_compiles_all(yard: Yard) -> None:
    path = yard.backends / "cpu" / "CMakeLists.txt"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("-fno-math-errno", "-fno-math-errno -DOTHER", 1), encoding="utf-8")
    assert yard.compiled() == ALL
    path.write_text(text, encoding="utf-8")
    assert yard.compiled() == ALL


def test_the_abi_is_another_build_and_its_old_objects_stay(yard: Yard) -> None:
    undo = yard.edit("abi/coli_backend.h")
    assert yard.compiled() == ALL
    undo()
    # In its old folder, but the header's date is new, so Ninja compiles those that see it: all but the pool.
    assert yard.compiled() == sorted({*ALL} - {"pool.cpp"})


@pytest.mark.skipif(platform.machine() != "x86_64", reason="not run: its levels are those of x86-64")
def test_a_level_is_a_cell_of_its_own(yard: Yard) -> None:
    assert yard.compiled("x86-64-v3") == ALL
    assert yard.compiled() == NONE and yard.states[-1] == "unchanged"
    undo = yard.edit("cpu/simd_avx2.h")
    assert (yard.compiled("x86-64-v3"), yard.compiled()) == (["product.cpp"], NONE)
    undo()
    assert (yard.compiled("x86-64-v3"), yard.compiled()) == (["product.cpp"], NONE)


def test_another_compiler_compiles_all_and_the_way_back_nothing(yard: Yard) -> None:
    assert yard.compiled(compiler=yard.two) == ALL
    assert yard.compiled() == NONE
    assert yard.compiled(compiler=yard.two) == NONE


def test_an_update_of_the_compiler_that_keeps_its_version_compiles_all(yard: Yard) -> None:
    before = yard.one.path.read_bytes()
    yard.one.path.write_bytes(before + b"# 12.2.0-14+deb12u2\n")
    assert yard.compiled() == ALL
    yard.one.path.write_bytes(before)
    assert yard.compiled() == NONE


def test_variables_that_are_not_ours_change_nothing(yard: Yard) -> None:
    yard.environment = {"CXXFLAGS": "-O1", "CPATH": "/nowhere", "LDFLAGS": "-lnothing", "CXX": "/bin/false"}
    undo = yard.edit("cpu/moe.cpp")
    assert yard.compiled() == ["moe.cpp"]
    yard.environment = {}
    undo()
    assert yard.compiled() == ["moe.cpp"]
