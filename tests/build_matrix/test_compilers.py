from __future__ import annotations

from pathlib import Path

import pytest

from coli.build_matrix.choose import ChosenCompiler, choose_compiler
from coli.build_matrix.compilers import (
    HostCompiler,
    accepted,
    find_compilers,
    host_bounds,
    newest_accepted,
    parse_compiler_version,
    probe_glibc,
)
from coli.build_matrix.matrix import Bounds, load_matrix
from coli.build_matrix.request import Value
from coli.build_matrix.toolkits import Places, find_toolkits, probe_toolkit
from coli.build_matrix.version import Version

from machines import gcc, places, program, toolkit  # isort: skip

MATRIX = load_matrix()
FSF = "\nCopyright (C) 2024 Free Software Foundation, Inc.\n"


@pytest.mark.parametrize(
    ("text", "family", "version"),
    [
        ("g++ (Ubuntu 14.2.0-1ubuntu1) 14.2.0" + FSF, "gcc", (14, 2, 0)),
        ("g++ (GCC) 14.1.1 20240701 (Red Hat 14.1.1-7)" + FSF, "gcc", (14, 1, 1)),
        ("c++ (Debian 12.2.0-14+deb12u1) 12.2.0" + FSF, "gcc", (12, 2, 0)),
        ("x86_64-conda-linux-gnu-g++ (conda-forge gcc 12.3.0-3) 12.3.0" + FSF, "gcc", (12, 3, 0)),
        ("g++-13 (SUSE Linux) 13.2.1 20240206 [revision 67ac78caf31f7cb3]" + FSF, "gcc", (13, 2, 1)),
        ("clang version 18.1.3 (1ubuntu1)\nTarget: x86_64-pc-linux-gnu", "clang", (18, 1, 3)),
        ("Ubuntu clang version 14.0.0-1ubuntu1.1\nTarget: x86_64", "clang", (14, 0, 0)),
        ("Debian clang version 19.1.7 (3+b1)\n", "clang", (19, 1, 7)),
    ],
)
def test_versions_as_compilers_print_them(text: str, family: str, version: tuple[int, int, int]) -> None:
    assert parse_compiler_version(text) == (family, Version(*version))


@pytest.mark.parametrize("text", ["", "ccache version 4.7.5", "hello 1.2.3", "icpx 2024.1.0"])
def test_other_programs_are_no_compilers(text: str) -> None:
    assert parse_compiler_version(text) is None


def test_each_compiler_is_listed_once(tmp_path: Path) -> None:
    bin = tmp_path / "usr/bin"
    gcc(bin / "x86_64-linux-gnu-g++-14", "14.2.0")
    for name, target in (("g++-14", "x86_64-linux-gnu-g++-14"), ("g++", "g++-14"), ("c++", "g++")):
        (bin / name).symlink_to(target)
    gcc(bin / "g++-13", "13.3.0")
    gcc(bin / "aarch64-linux-gnu-g++-12", "12.2.0")
    gcc(bin / "x86_64-w64-mingw32-g++", "12.2.0")
    program(bin / "clang-18", "clang version 18.1.3 (1)\n")
    (bin / "clang++-18").symlink_to("clang-18")
    program(bin / "g++-12", errors="broken", status=1)
    program(tmp_path / "usr/bin/ccache", "ccache version 4.7.5")
    (tmp_path / "usr/lib/ccache").mkdir(parents=True)
    (tmp_path / "usr/lib/ccache/g++").symlink_to("../../bin/ccache")
    (tmp_path / "bin").symlink_to("usr/bin")
    found = find_compilers(places(tmp_path, "/usr/lib/ccache:/usr/bin:/bin"))
    assert {one.path.name: one.default for one in found} == {"g++": True, "g++-13": False, "clang++-18": False}
    first = next(one for one in found if one.default)
    assert set(first.names) == {"g++", "g++-14", "x86_64-linux-gnu-g++-14", "c++"}
    assert first.version == Version(14, 2)


def test_a_compiler_that_is_not_on_path_can_be_named(tmp_path: Path) -> None:
    gcc(tmp_path / "opt/gcc 13/bin/g++", "13.3.0")
    for named in ("/opt/gcc 13/bin/g++", "/opt/gcc 13/bin"):
        assert [one.version.major for one in find_compilers(places(tmp_path), named)] == [13]
    assert find_compilers(places(tmp_path), "/opt/nowhere/g++") == ()


def test_toolsets_of_red_hat(tmp_path: Path) -> None:
    gcc(tmp_path / "opt/rh/gcc-toolset-13/root/usr/bin/g++", "13.1.1")
    assert [one.version.major for one in find_compilers(places(tmp_path))] == [13]


def compiler(family: str, major: int, default: bool = False) -> HostCompiler:
    return HostCompiler(Path(f"/usr/bin/{family}-{major}"), (f"{family}-{major}",), family, Version(major, 2), default)


def test_the_newest_that_is_accepted() -> None:
    bounds, minimum = Bounds(13, 17, "host_config.h"), {"gcc": 8, "clang": 9}
    every = [
        compiler("gcc", 14, True),
        compiler("gcc", 12),
        compiler("gcc", 13),
        compiler("clang", 17),
        compiler("gcc", 7),
    ]
    assert newest_accepted(every, bounds, minimum) == compiler("gcc", 13)
    assert newest_accepted(
        [compiler("gcc", 14), compiler("clang", 17), compiler("clang", 18)], bounds, minimum
    ) == compiler("clang", 17)
    assert newest_accepted([compiler("gcc", 14), compiler("gcc", 7)], bounds, minimum) is None
    assert "newer than 13" in (accepted(every[0], bounds, minimum) or "")
    assert "older than 8" in (accepted(every[4], bounds, minimum) or "")


def test_bounds_come_from_the_toolkit_itself(tmp_path: Path) -> None:
    own = probe_toolkit(toolkit(tmp_path / "a", "12.4.131", gcc=12, clang=16), "PATH", places(tmp_path))
    assert host_bounds(own, MATRIX) == Bounds(12, 15, str(tmp_path / "a/include/crt/host_config.h"))
    table = probe_toolkit(toolkit(tmp_path / "b", "12.4.131"), "PATH", places(tmp_path))
    assert (host_bounds(table, MATRIX).gcc, host_bounds(table, MATRIX).source) == (13, "table of matrix.toml")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("ldd (Debian GLIBC 2.41-12) 2.41\nCopyright", Version(2, 41)),
        ("ldd (Ubuntu GLIBC 2.35-0ubuntu3.8) 2.35\n", Version(2, 35)),
        ("ldd (GNU libc) 2.39\n", Version(2, 39)),
        ("musl libc (x86_64)\nVersion 1.2.4\n", None),
        ("", None),
    ],
)
def test_the_c_library(tmp_path: Path, text: str, version: Version | None) -> None:
    program(tmp_path / "usr/bin/ldd", text)
    assert probe_glibc(places(tmp_path)) == version


def test_other_programs_of_the_foundation_are_no_compilers() -> None:
    said = (
        "true (GNU coreutils) 9.1\nCopyright (C) 2022 Free Software Foundation, Inc.\n"
        "License GPLv3+: GNU GPL version 3 or later <https://gnu.org/licenses/gpl.html>.\n"
    )
    assert parse_compiler_version(said) is None


@pytest.mark.parametrize("named", ["gcc-13", "/usr/bin/gcc-13", "/usr/bin/g++-13"])
def test_a_c_compiler_stands_for_the_one_beside_it(tmp_path: Path, named: str) -> None:
    gcc(tmp_path / "usr/bin/gcc-13", "13.3.0")
    gcc(tmp_path / "usr/bin/g++-13", "13.3.0")
    found = find_compilers(places(tmp_path), named)
    bounds = Bounds(gcc=13, clang=18, source="the header")
    tools = find_toolkits(places(tmp_path, CUDA_HOME=str(toolkit(tmp_path / "cuda", "12.6.85", gcc=13))))
    chosen = choose_compiler(
        Value(named.replace("/usr", f"{tmp_path}/usr"), "environment"),
        found,
        bounds,
        MATRIX.minimum_compiler,
        MATRIX,
        tools[0],
        (),
    )
    assert isinstance(chosen, ChosenCompiler) and chosen.compiler.path == tmp_path / "usr/bin/g++-13"
    assert ("links no C++ library" in chosen.why) is ("gcc" in named)


def test_a_relative_path_names_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gcc(tmp_path / "bin/g++-13", "13.3.0")
    assert find_compilers(Places({"PATH": ""}, "x86_64"), "bin/g++-13") == ()
