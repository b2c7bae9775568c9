"""block_scale.cpp against real cuBLAS headers: 12.6 lacks block scaling, 13.0 has it; our stand-in has their values."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from building import ROOT
from cuda_building import CUBLAS, SOURCES

sys.path.insert(0, str(ROOT / "tests" / "build_matrix"))
from old_releases import wheels

pytestmark = pytest.mark.full

GATE = re.compile(r"^#if CUBLAS_VER_MAJOR.*?^#else$(.*)^#endif$", re.MULTILINE | re.DOTALL)
NAMES = {
    "cublasLtMatmulMatrixScale_t",
    "CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0",
    "CUBLASLT_MATMUL_DESC_A_SCALE_MODE",
    "CUBLASLT_MATMUL_DESC_B_SCALE_MODE",
}


@pytest.fixture(scope="module")
def newer() -> Path:
    """The include folder of CUDA 13.0 with cuBLAS 13.0: one toolkit."""
    return wheels("pypi:13.0", "cublas") / "include"


@pytest.fixture(scope="module")
def older() -> Path:
    """The include folder of cuBLAS 12.6, nothing else of that release."""
    return wheels("cublas:12.6") / "include"


def compile_source(source: Path, *includes: Path) -> tuple[int, str]:
    """Check a source as the build compiles it, without the link; the first folder wins."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("not run: no g++")
    folders = [word for folder in includes for word in ("-isystem", str(folder))]
    flags = ["-std=c++17", "-fsyntax-only", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *flags, "-DCOLI_BLOCK_SCALE", f"-I{SOURCES}", *folders, str(source)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    )
    return done.returncode, done.stderr


def errors(text: str) -> list[str]:
    return [line.split(" error: ", 1)[1] for line in text.splitlines() if " error: " in line]


def test_newer_headers_compile(newer: Path) -> None:
    assert compile_source(SOURCES / "block_scale.cpp", newer) == (0, "")


def test_older_headers_lack_four_names_and_the_gate_says_so_instead(older: Path, newer: Path, tmp_path: Path) -> None:
    text = (SOURCES / "block_scale.cpp").read_text("utf-8")
    found = GATE.search(text)
    assert found
    ungated = tmp_path / "ungated.cpp"
    ungated.write_text(text.replace(found[0], found[1]), encoding="utf-8")
    assert compile_source(ungated, newer) == (0, "")
    code, said = compile_source(ungated, older, newer)
    undeclared = [re.match(r"'(\w+)' was not declared in this scope", line) for line in errors(said)]
    assert code != 0 and None not in undeclared, said
    assert {match[1] for match in undeclared if match} == NAMES
    code, said = compile_source(SOURCES / "block_scale.cpp", older, newer)
    assert code != 0
    (only,) = errors(said)
    assert only.startswith('#error "block scaling needs cuBLAS headers of 12.8 or later: configure with COLI_NO_TC=ON')


def test_the_stand_in_has_the_values_of_the_real_headers(newer: Path, tmp_path: Path) -> None:
    text = (CUBLAS / "cublasLt.h").read_text("utf-8")
    values = re.findall(r"\b(CU\w+) = (\d+)", text) + re.findall(
        r"^#define (CUBLAS_VER_\w+) (\d+)$", text, re.MULTILINE
    )
    assert len(values) > 15
    checks = [f'static_assert({name} == {value}, "{name}");' for name, value in values]
    source = tmp_path / "values.cpp"
    source.write_text("#include <cublasLt.h>\n" + "\n".join(checks) + "\n", encoding="utf-8")
    assert compile_source(source, newer) == (0, "")
