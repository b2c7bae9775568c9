"""Levels of replayed machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from coli.backends.cpu_level import cpu_level, decide_levels, missing_flags, normal_machine, saved_flags
from coli.backends.gates import check_cpu

# The flags line of three machines, cut to what matters and a few that do not.
ZEN4 = (
    "fpu sse sse2 ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm abm bmi1 avx2 bmi2 "
    "avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512_bf16"
)
HASWELL = "fpu sse sse2 ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm abm bmi1 avx2 bmi2"
SANDY = "fpu sse sse2 ssse3 cx16 sse4_1 sse4_2 popcnt aes xsave avx lahf_lm"


def replay(root: Path, *flags: str) -> Path:
    (root / "proc").mkdir()
    text = "\n".join(f"processor\t: {i}\nmodel name\t: x\nflags\t\t: {line}\n" for i, line in enumerate(flags))
    (root / "proc/cpuinfo").write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        (ZEN4, ("x86-64-v4", "x86-64-v3", "portable")),
        (HASWELL, ("x86-64-v3", "portable")),
        (SANDY, ("portable",)),
        (ZEN4.replace(" avx512vl", ""), ("x86-64-v3", "portable")),
        (ZEN4.replace(" xsave", ""), ("portable",)),
    ],
)
def test_levels(tmp_path: Path, flags: str, levels: tuple[str, ...]) -> None:
    assert cpu_level(replay(tmp_path, flags), "x86_64").levels == levels


def test_cores_that_differ_count_as_the_weaker(tmp_path: Path) -> None:
    assert cpu_level(replay(tmp_path, ZEN4, HASWELL), "AMD64").best == "x86-64-v3"


def test_unknown_flags_offer_portable_only(tmp_path: Path) -> None:
    cpu = cpu_level(tmp_path, "x86_64")
    assert (cpu.flags, cpu.levels) == (None, ("portable",))
    assert missing_flags(cpu, "x86-64-v3") is None
    finding = check_cpu("x86-64-v3", cpu)
    assert (finding.verdict, finding.evidence) == ("refused", "x86-64-v3: the flags of this CPU are not known")


def test_missing_flags_are_named(tmp_path: Path) -> None:
    cpu = cpu_level(replay(tmp_path, SANDY), "x86_64")
    finding = check_cpu("x86-64-v3", cpu)
    assert finding.evidence == "x86-64-v3 needs abm, avx2, bmi1, bmi2, f16c, fma, movbe, which this CPU lacks"
    assert finding.fix == "use portable"


def test_arm(tmp_path: Path) -> None:
    cpu = cpu_level(tmp_path, "arm64")
    assert (cpu.machine, cpu.levels) == ("aarch64", ("neon", "portable"))
    assert check_cpu("neon", cpu).verdict == "ok"
    finding = check_cpu("x86-64-v4", cpu)
    assert finding.evidence == "x86-64-v4 is for x86_64, this machine is aarch64"


@pytest.mark.parametrize(
    ("enabled", "levels"),
    [
        (0xE7, ("x86-64-v4", "x86-64-v3", "portable")),  # XCR0: x87, SSE, AVX, and the three parts of AVX-512
        (0x07, ("x86-64-v3", "portable")),
        (0x67, ("x86-64-v3", "portable")),
        (0x03, ("portable",)),
        (0x00, ("portable",)),
    ],
)
def test_registers_that_windows_does_not_save(enabled: int, levels: tuple[str, ...]) -> None:
    assert decide_levels("x86_64", saved_flags(frozenset(ZEN4.split()), enabled)) == levels


def test_names_of_machines() -> None:
    assert [normal_machine(name) for name in ("AMD64", "x86_64", "arm64", "aarch64", "riscv64")] == [
        "x86_64",
        "x86_64",
        "aarch64",
        "aarch64",
        "riscv64",
    ]
    assert decide_levels("riscv64", None) == ("portable",)
