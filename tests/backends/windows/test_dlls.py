"""The CPU backends as DLLs: what is in the files, and that wine computes with them what Linux computes."""

from __future__ import annotations

import re
import struct
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from building import ROOT, Build, build_backends
from mingw import COMPILER, CROSS, PREFIX, require
from wine import Wine

from coli.backends.containers import read_container
from coli.backends.cpu_level import LEVELS, cpu_level
from coli.build_matrix.audit import audit_library

pytestmark = pytest.mark.full

DLLS = {"portable", "x86_64_v3", "x86_64_v4"}
FMA = Path(__file__).with_name("fma.cpp")


def objdump(*arguments: str | Path) -> str:
    tool = require(f"{PREFIX}objdump")
    return subprocess.run([tool, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def test_files(dlls: Build) -> None:
    """They need Windows and nothing else, export one symbol, and hold no time."""
    assert set(dlls.libraries) == DLLS
    for path in dlls.libraries.values():
        container = read_container(path)
        assert (container.kind, container.machine, container.bits) == ("pe", "x86_64", 64)
        assert {name.lower() for name in container.needed} == {"kernel32.dll", "msvcrt.dll"}
        assert audit_library(path, None) == ()
        text = objdump("-p", path)
        assert re.findall(r"DLL Name: (\S+)", text) == list(container.needed)
        assert re.findall(r"\[ *\d+\] \+base\[ *\d+\] +\S+ +Export RVA", text) != []
        assert re.findall(r"^\t\[ *\d+\] (\w+)$", text, re.MULTILINE) == ["coli_backend_query"]
        assert {int(value, 16) for value in re.findall(r"^Time/Date stamp\s+(\w+)$", text, re.MULTILINE)} <= {0}
        data = path.read_bytes()
        header = struct.unpack_from("<I", data, 60)[0]
        assert struct.unpack_from("<I", data, header + 8)[0] == 0  # the time of the link
        traits = struct.unpack_from("<H", data, header + 24 + 70)[0]
        assert traits & 0x0160 == 0x0160  # high-entropy addresses, moved at random, no code in data
        for folder in (str(ROOT), str(path.parent)):
            assert folder.encode() not in data


def test_same_bytes_from_another_folder(dlls: Build, tmp_path: Path) -> None:
    again = build_backends(
        tmp_path / "an other földer", *CROSS, target="coli_cpu_portable", compiler=COMPILER, flags=("-static",)
    )
    assert again.libraries["portable"].read_bytes() == dlls.libraries["portable"].read_bytes()


def test_no_move_wants_an_aligned_stack(dlls: Build, tmp_path: Path) -> None:
    """Windows aligns the stack to 16 bytes: a 32-byte aligned move to it faults in every second call."""
    aligned = re.compile(r"\bvmov(?:ap[sd]|dqa(?:32|64)?)\b[^\n]*(?:%[yz]mm\d+,[^\n]*\(|\([^\n]*,%[yz]mm)")
    source = tmp_path / "spill.s"
    source.write_text("vmovaps %ymm0, 32(%rsp)\nvmovdqa (%rsp), %ymm1\nvmovdqa64 %zmm1, 64(%rcx)\n", encoding="ascii")
    for options, count in (((), 3), (("-muse-unaligned-vector-move",), 0)):  # the pattern sees them; the option is one
        subprocess.run([require(f"{PREFIX}as"), *options, source, "-o", tmp_path / "spill.o"], check=True)
        assert len(aligned.findall(objdump("-d", tmp_path / "spill.o"))) == count
    for level in ("x86_64_v3", "x86_64_v4"):
        text = objdump("-d", dlls.libraries[level])
        assert text.count("ymm") > 1000 and aligned.findall(text) == []


def test_stages_call_no_mathematics_library(dlls: Build) -> None:
    """fmaf of this runtime rounds twice, and its expf is anybody's guess: the objects refer to neither."""
    called: set[str] = set()
    for folder in dlls.libraries["portable"].parent.glob("CMakeFiles/coli_cpu_*_stages.dir"):
        for file in folder.glob("*.obj"):
            names = subprocess.run([require(f"{PREFIX}nm"), "-u", file], check=True, capture_output=True, text=True)
            called |= set(re.findall(r"U (\w+)", names.stdout))
    assert {name for name in called if not name.startswith("_ZN")} == {"memcpy", "memset", "___chkstk_ms"}


def levels() -> list[str]:
    """Return the libraries that this processor can run."""
    found = [level.replace("-", "_") for level in cpu_level().levels if LEVELS[level][0] in (None, "x86_64")]
    return sorted(DLLS & set(found))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_bytes_of_linux(wine: Wine, dlls: Build, recorded: Path, threads: int) -> None:
    """All calls, with the outputs that the portable library gave on Linux."""
    for level in levels():
        library, vectors = wine.windows_path(dlls.libraries[level]), wine.windows_path(recorded)
        done = wine.run(dlls.driver[0], library, vectors, str(threads), deadline_s=120)
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        assert done.returncode == 0, said
        found = re.search(r"(\S+): (\d+) of (\d+) calls equal with (\d+) threads", said)
        assert found is not None and found[2] == found[3] and int(found[3]) > 20, said


# ---- fma -------------------------------------------------------------------------------------------------------------


def rounded(value: Fraction) -> np.float32:
    """Return the float32 nearest to a rational number, ties to even; subnormals too."""
    if value == 0:
        return np.float32(0)
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    whole = round(magnitude / unit)  # of a Fraction: ties to even
    return np.float32(float(whole * unit) * (1 if value > 0 else -1))


def triples() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return (a, b, c): the witness of a double rounding first, then ties, near ties, cancellations, subnormals."""
    rows: list[tuple[float, float, float]] = []
    for c in (2.0**-60, -(2.0**-60), 0.0):
        rows.append((97.0, 172961 * 2.0**-24, c))
        rows.append((2.0**-100, 1.5 * 2.0**-49, c * 2.0**-89))
    rng = np.random.default_rng(5)
    for x, y, tail in rng.integers((4097, 4097, 30), (5792, 5792, 100), (3000, 3)):
        # Odd times odd is odd, and here has 25 bits: a tie, which an addend too small for a double decides.
        sign = 1 if tail % 2 else -1
        rows.append((float(x | 1), float(y | 1), sign * 2.0 ** -int(tail)))
        rows.append(((x | 1) * 2.0**-80, -(y | 1) * 2.0**-90, sign * 2.0 ** -min(149, 170 - int(tail))))
    for x, y in rng.integers(1 << 23, 1 << 24, (2000, 2)):
        product = float(x) * float(y)
        rows.append((float(x), float(y), -float(np.float32(product))))  # what is left is the rounding error
        rows.append((float(x), float(y), float(rng.normal()) * 2.0 ** int(rng.integers(0, 60))))
    return np.array(rows, np.float32)


def test_fma_rounds_once(wine: Wine, tmp_path: Path) -> None:
    """Both ways of coli_math.h, compiled for Windows, against exact arithmetic; the runtime's own fmaf is shown."""
    program = tmp_path / "fma.exe"
    folder = ROOT / "backends" / "cpu"
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-static", f"-I{folder}"]
    hard, soft = tmp_path / "hard.o", tmp_path / "soft.o"
    compiler = require(COMPILER)
    subprocess.run([compiler, *flags, "-mfma", "-DNAME=hard", "-c", FMA, "-o", hard], check=True)
    subprocess.run([compiler, *flags, "-DNAME=soft", "-DMAIN", "-c", FMA, "-o", soft], check=True)
    subprocess.run([compiler, "-static", hard, soft, "-o", program], check=True)
    assert "vfmadd" in objdump("-d", hard) and "vfmadd" not in objdump("-d", soft)
    given = triples()
    (tmp_path / "in.bin").write_bytes(given.tobytes())
    with_fma = "fma" in (cpu_level().flags or ())
    arguments = (str(program), "in.bin", "out.bin", "1" if with_fma else "0")
    done = wine.run(*arguments, deadline_s=60, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = np.fromfile(tmp_path / "out.bin", np.float32).reshape(-1, 3)
    wanted = np.array([rounded(Fraction(a) * Fraction(b) + Fraction(c)) for a, b, c in given.astype(float)])
    assert wanted[0] == np.float32(1 + 2.0**-23) and wanted[2] == 1  # by hand: 97 * 172961 = 2^24 + 1
    twice = (given[:, 0].astype(float) * given[:, 1].astype(float) + given[:, 2].astype(float)).astype(np.float32)
    assert np.count_nonzero(twice != wanted) > 10  # the inputs tell one rounding from two
    np.testing.assert_array_equal(found[:, 0], wanted)
    if with_fma:
        np.testing.assert_array_equal(found[:, 1], wanted)
    print(f"fmaf of the runtime: {np.count_nonzero(found[:, 2] != wanted)} of {len(wanted)} results differ")
