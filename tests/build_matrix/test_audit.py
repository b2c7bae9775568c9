"""The audit on libraries that are wrong in one way each, made by compilers, not by us."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coli.backends.targets import Target
from coli.build_matrix.audit import audit_library, exported_symbols

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))
from fatbin_writer import fatbin

QUERY = "const void *coli_backend_query(void) { return 0; }\n"


def targets(*names: str) -> tuple[Target, ...]:
    """Return targets as the build asks for them, by name."""
    found = []
    for name in names:
        number = "".join(letter for letter in name if letter.isdigit())
        suffix = name[-1] if name[-1] in "af" else ""
        found.append(Target(int(number), suffix, name.startswith("compute")))
    assert tuple(target.name for target in found) == names
    return tuple(found)


def build(folder: Path, source: str, *options: str, code: bytes = b"", compiler: str = "cc") -> Path:
    program = shutil.which(compiler)
    if program is None:
        pytest.skip(f"not run: no {compiler}")
    (folder / "a.c").write_text(source, encoding="utf-8")
    if code:
        (folder / "code.bin").write_bytes(code)
        section = f'.section .nv_fatbin, \\"a\\"\\n.incbin \\"{folder / "code.bin"}\\"\\n.previous'
        (folder / "a.c").write_text(source + f'__asm__("{section}");\n', encoding="utf-8")
    library = folder / "liba.so"
    subprocess.run([program, "-shared", "-fPIC", str(folder / "a.c"), "-o", str(library), *options], check=True)
    return library


def test_sound_libraries(tmp_path: Path) -> None:
    library = build(tmp_path, QUERY)
    assert exported_symbols(library) == ("coli_backend_query",)
    assert audit_library(library, None) == ()
    library = build(tmp_path, QUERY, code=fatbin(["sm_86", "sm_120a", "compute_86"]))
    assert audit_library(library, targets("sm_86", "sm_120a", "compute_86")) == ()


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        (QUERY + "int helper(void) { return 1; }\n", (), "it exports coli_backend_query, helper, not just"),
        ("static int nothing;\n", (), "it exports nothing, not just coli_backend_query"),
        (QUERY, ("-Wl,-rpath,/tmp/build",), "it looks for libraries in /tmp/build"),
        (QUERY, ("-Wl,--no-as-needed", "-lstdc++"), "it needs libstdc++.so.6"),
    ],
)
def test_one_fault_each(tmp_path: Path, source: str, options: tuple[str, ...], says: str) -> None:
    (problem,) = audit_library(build(tmp_path, source, *options), None)
    assert problem.startswith(says)


def test_a_library_that_it_was_decided_to_need(tmp_path: Path) -> None:
    library = build(tmp_path, QUERY, "-Wl,--no-as-needed", "-lstdc++")
    assert audit_library(library, None, needs=("libstdc++.so.6",)) == ()
    assert audit_library(library, None, needs=("libstdc++.so.6", "libcudart.so.12")) == (
        "it does not need libcudart.so.12, though it was to be linked with it",
    )


@pytest.mark.parametrize(
    ("code", "asked", "says"),
    [
        (fatbin(["sm_86"]), ("sm_86", "sm_90"), "missing sm_90"),
        (fatbin(["sm_86", "sm_75"]), ("sm_86",), "not asked for sm_75"),
        (fatbin(["sm_120"]), ("sm_120a",), "missing sm_120a; not asked for sm_120"),
        (fatbin(["sm_90"]), ("compute_90",), "missing compute_90; not asked for sm_90"),
        (fatbin(["sm_86", "sm_90"]) + fatbin(["sm_86"]), ("sm_86", "sm_90"), "a part of its device code lacks sm_90"),
        (b"", ("sm_86",), "missing sm_86"),
        (b"another format..........", ("sm_86",), "it cannot be read"),
    ],
)
def test_device_code(tmp_path: Path, code: bytes, asked: tuple[str, ...], says: str) -> None:
    (problem,) = audit_library(build(tmp_path, QUERY, code=code), targets(*asked))
    assert says in problem


def test_device_code_where_none_was_asked_for(tmp_path: Path) -> None:
    (problem,) = audit_library(build(tmp_path, QUERY, code=fatbin(["sm_86"])), None)
    assert "not asked for sm_86" in problem


def test_windows_library(tmp_path: Path) -> None:
    export = "__declspec(dllexport) "
    library = build(tmp_path, export + QUERY, compiler="x86_64-w64-mingw32-gcc")
    assert exported_symbols(library) == ("coli_backend_query",)
    assert audit_library(library, None) == ()
    library = build(
        tmp_path, export + QUERY + export + "int b(void) { return 1; }\n", compiler="x86_64-w64-mingw32-gcc"
    )
    assert exported_symbols(library) == ("b", "coli_backend_query")


def test_no_library(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no", encoding="utf-8")
    for path in (tmp_path / "text.so", tmp_path / "absent.so", tmp_path):
        (problem,) = audit_library(path, None)
        assert problem.startswith("it cannot be read")
