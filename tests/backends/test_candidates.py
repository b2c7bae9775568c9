"""Where backends are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from coli.backends.candidates import Search, default_search, find_candidates, library_name, matches
from coli.backends.trace import Candidate
from coli.errors import UsageError


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_order_is_level_then_place(tmp_path: Path) -> None:
    one, two, data, package = (tmp_path / name for name in ("one", "two", "data", "package"))
    touch(
        package / "libcoli_cpu_x86_64_v4.so",
        package / "libcoli_cpu_portable.so",
        package / "libcoli_cpu_portable.so.json",
        package / "libother.so",
        data / "cell-a" / "libcoli_cpu_x86_64_v3.so",
        data / "cell-a" / "libcoli_cuda_dg.so",
        two / "libcoli_cpu_portable.so",
        two / "libcoli_cuda.so",
        one / "coli_cpu_x86_64_v4.dll",
    )
    search = Search(path=(one, two, tmp_path / "gone"), data_folder=data, package_folder=package)
    places, found = find_candidates(search)
    assert [(row.name, row.path.parent.name) for row in found] == [
        ("cuda-dg", "cell-a"),
        ("cuda", "two"),
        ("cpu-x86-64-v4", "one"),
        ("cpu-x86-64-v4", "package"),
        ("cpu-x86-64-v3", "cell-a"),
        ("cpu-portable", "two"),
        ("cpu-portable", "package"),
    ]
    assert [(place.origin, place.path.name, place.state, place.libraries) for place in places] == [
        ("COLI_BACKEND_PATH", "one", "searched", 1),
        ("COLI_BACKEND_PATH", "two", "searched", 2),
        ("COLI_BACKEND_PATH", "gone", "absent", 0),
        ("user data", "cell-a", "searched", 2),
        ("package", "package", "searched", 2),
    ]


def test_one_folder_named_twice_counts_once(tmp_path: Path) -> None:
    touch(tmp_path / "libcoli_cpu_portable.so")
    _, found = find_candidates(Search(path=(tmp_path,), package_folder=tmp_path))
    assert [row.origin for row in found] == ["COLI_BACKEND_PATH"]
    _, found = find_candidates(Search(str(tmp_path / "libcoli_cpu_portable.so"), package_folder=tmp_path))
    assert [row.origin for row in found] == ["--backend"]


def test_file_comes_first_even_when_it_is_not_there(tmp_path: Path) -> None:
    touch(tmp_path / "libcoli_cpu_portable.so")
    _, found = find_candidates(Search("/nowhere/libcoli_cpu_mine.so", "COLI_BACKEND", package_folder=tmp_path))
    assert [(row.name, row.origin) for row in found] == [("cpu-mine", "COLI_BACKEND"), ("cpu-portable", "package")]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("libcoli_cpu_x86_64_v3.so", "cpu-x86-64-v3"),
        ("coli_cpu_portable.dll", "cpu-portable"),
        ("libcoli_cuda_dg.so", "cuda-dg"),
        ("libcoli_cpu_portable.so.json", None),
        ("libcoli_.so", None),
        ("xlibcoli_cpu.so", None),
    ],
)
def test_names_of_files(file: str, name: str | None) -> None:
    assert library_name(file) == name


def test_what_a_name_selects() -> None:
    row = Candidate(Path("/x/libcoli_cpu_x86_64_v3.so"), "cpu-x86-64-v3", "package")
    for name in ("cpu-x86-64-v3", "x86-64-v3", "x86_64_v3", "X86-64-V3", "libcoli_cpu_x86_64_v3.so"):
        assert matches(row, name)
    for name in ("v3", "cpu", "x86-64", "cpu-x86-64-v4", ""):
        assert not matches(row, name)


def test_default_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    search = default_search("", "COLI_BACKEND", [str(tmp_path)])
    assert (search.selection, search.path) == (None, (tmp_path,))
    assert search.data_folder == tmp_path / "data" / "coli" / "backends"
    assert search.cache_folder == tmp_path / "cache" / "coli" / "backends"
    for entry in ("", ".", "build/lib"):
        with pytest.raises(UsageError) as caught:
            default_search(path=[entry])
        assert caught.value.exit_code == 2
