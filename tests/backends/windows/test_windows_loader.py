"""coli's loader on Windows (CPython for Windows under wine): every gate, on sound and on broken DLLs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from building import Build
from mingw import PREFIX, require
from stubs import hand_canary, write_manifest
from wine import Wine

from coli.backends.cpu_level import cpu_level

pytestmark = pytest.mark.full

REAL = "real Größe 雪"
LATE = ("open", "handshake", "slots", "canary")

# A 32-bit DLL without a 32-bit compiler: the assembler knows the instructions, the script is for the linker.
ASSEMBLY = """
.globl _coli_backend_query
_coli_backend_query: xorl %eax, %eax
ret
.section .drectve
.ascii " -export:coli_backend_query"
"""
SCRIPT = """
SECTIONS {
  . = SIZEOF_HEADERS;
  .text __image_base__ + __section_alignment__ : { *(.text) }
  .edata BLOCK(__section_alignment__) : { *(.edata) }
  .reloc BLOCK(__section_alignment__) : { *(.reloc) }
}
"""


def build_32_bit(folder: Path, target: Path) -> None:
    (folder / "a.s").write_text(ASSEMBLY, encoding="ascii")
    (folder / "a.ld").write_text(SCRIPT, encoding="ascii")
    subprocess.run([require(f"{PREFIX}as"), "--32", folder / "a.s", "-o", folder / "a.o"], check=True)
    linker = [require(f"{PREFIX}ld"), "-m", "i386pe", "--dll", "-e", "0", "-T", folder / "a.ld"]
    subprocess.run([*linker, folder / "a.o", "-o", target], check=True)


@pytest.fixture(scope="session")
def answers(
    wine: Wine,
    windows_python: Path,
    dlls: Build,
    build_dll: Callable[..., Path],
    native_build: Build,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """Lay out the houses, let Windows look at them, return what it says."""
    temporary = tmp_path_factory.mktemp("houses")
    houses = wine.drive / "Program Files" / "coli ☕"
    gone = temporary / "gone.dll"
    (temporary / "gone.c").write_text("__declspec(dllexport) int stub_dependency(void) { return 7; }\n")
    subprocess.run([require(f"{PREFIX}gcc-posix"), "-shared", temporary / "gone.c", "-o", gone], check=True)

    def house(name: str, library: Path, file: str | None = None) -> Path:
        folder = houses / name
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / (file or library.name)
        shutil.copyfile(library, target)
        (folder / "canary.bin").write_bytes(hand_canary())
        write_manifest(target)
        return target

    for level, library in dlls.libraries.items():
        target = house(REAL, library)
        name = level.replace("_", "-")
        write_manifest(target, level=name, name=f"cpu-{name}", compiler="GNU 12")
    (houses / REAL / "canary.bin").unlink()  # coli's own counts here
    for name, *switches in (
        ("sound",),
        ("absent", "STUB_ABSENT"),
        ("swapped", "STUB_SWAPPED"),
        ("no query", "STUB_NO_QUERY"),
        ("of linux", "STUB_PLATFORM=0xC0110181"),
        ("illegal", "STUB_ILLEGAL_QUERY"),
        ("violation", "STUB_CRASH_QUERY"),
        ("crash at load", "STUB_CRASH_LOAD"),
        ("crash at end", "STUB_CRASH_END"),
        ("hang", "STUB_HANG_QUERY"),
        ("bits", "STUB_WRONG_BITS"),
    ):
        house(name, build_dll(*switches))
    for name in ("needs", "needs beside"):
        house(name, build_dll("STUB_NEEDS", link=(str(gone),)))
    shutil.copyfile(gone, houses / "needs beside" / gone.name)
    (houses / "elsewhere").mkdir()
    shutil.copyfile(gone, houses / "elsewhere" / gone.name)
    build_32_bit(temporary, temporary / "coli_cpu_portable.dll")
    house("32 bit", temporary / "coli_cpu_portable.dll")
    house("elf", native_build.libraries["portable"], "coli_cpu_portable.so")
    house("changed", build_dll()).write_bytes(build_dll().read_bytes() + b"\0")
    house("open file", build_dll()).chmod(0o666)
    house("open folder", build_dll()).parent.chmod(0o777)
    script, house_names = wine.windows_path(wine.drive / "site" / "on_windows.py"), wine.windows_path(houses)
    program = windows_python / "python.exe"
    done = wine.run(program, "-X", "utf8", script, house_names, deadline_s=300, folder=wine.drive)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-3000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def levels_there(answers: dict[str, Any]) -> tuple[str, ...]:
    """Return the levels of this processor whose registers that Windows saves: x86-64-v4 needs bits 5 to 7 of XCR0."""
    saved = answers["saved"] & 0xE0 == 0xE0
    return tuple(level for level in cpu_level().levels if saved or level != "x86-64-v4")


def finding(answers: dict[str, Any], house: str, gate: str, file: str = "coli_cpu_portable.dll") -> dict[str, Any]:
    """Return what one gate found for the library of a house."""
    gates = {found["gate"]: found for found in answers["houses"][house][file]["gates"]}
    found: dict[str, Any] = gates[gate]
    return found


def test_every_gate_on_the_real_libraries(answers: dict[str, Any]) -> None:
    """In a folder whose name has spaces and letters beyond ASCII, with the canary of coli."""
    runs = {f"coli_cpu_{level.replace('-', '_')}.dll" for level in levels_there(answers)}
    for name, trace in answers["houses"][REAL].items():
        assert trace["path"] == f"C:\\Program Files\\coli ☕\\{REAL}\\{name}"
        verdicts = {found["gate"]: found["verdict"] for found in trace["gates"]}
        if name in runs:
            assert set(verdicts.values()) == {"ok"}, trace
            assert finding(answers, REAL, "canary", name)["evidence"].endswith("every bit as recorded")
            assert finding(answers, REAL, "dependencies", name)["evidence"] == "needs KERNEL32.dll, msvcrt.dll"
        else:
            assert verdicts["cpu"] == "refused"
    assert set(answers["houses"][REAL]) == {f"coli_cpu_{x}.dll" for x in ("portable", "x86_64_v3", "x86_64_v4")}


def test_best_level_is_loaded_and_its_verdict_kept(answers: dict[str, Any]) -> None:
    best = levels_there(answers)[0]
    loaded = answers["loaded"]
    assert loaded["name"] == f"cpu-{best}" and loaded["address"] > 0
    file = f"coli_cpu_{best.replace('-', '_')}.dll"
    assert loaded["banner"] == f"[coli] backend={file} (cpu-{best}) device=cpu why=best level of this CPU ({best})"
    assert loaded["cached"].count(True) == len(levels_there(answers))


def test_facts_of_windows(answers: dict[str, Any]) -> None:
    """The levels come from cpuid and the saved registers there, from /proc/cpuinfo here."""
    assert tuple(answers["levels"]) == levels_there(answers)
    assert answers["places"]["data"].endswith("\\AppData\\Local\\coli\\backends")
    assert answers["places"]["cache"].endswith("\\AppData\\Local\\coli\\Cache\\backends")


@pytest.mark.parametrize(
    ("house", "gate", "code", "evidence"),
    [
        ("absent", "slots", "slots.absent", "absent: weight_bind, embed, router"),
        ("swapped", "slots", "slots.signature", "other arguments: rope"),
        ("no query", "handshake", "handshake.no-query", "no symbol coli_backend_query"),
        ("of linux", "handshake", "handshake.platform", "built for Linux, 64-bit, little-endian (0xc0110181)"),
        ("needs", "dependencies", "dependencies.missing", "missing: gone.dll (needed by coli_cpu_portable.dll)"),
        ("32 bit", "container", "container.machine", "PE, i386, 32-bit"),
        ("illegal", "handshake", "handshake.crash", "illegal instruction while it runs coli_backend_query"),
        ("violation", "handshake", "handshake.crash", None),
        ("hang", "handshake", "handshake.hang", "no answer within 20 s: it hangs while it runs coli_backend_query"),
        ("bits", "canary", "canary.bits", None),
        ("changed", "manifest", "manifest.hash", None),
    ],
)
def test_broken_libraries(answers: dict[str, Any], house: str, gate: str, code: str, evidence: str | None) -> None:
    found = finding(answers, house, gate)
    assert (found["verdict"], found["code"]) == ("refused", code), answers["houses"][house]
    if evidence is not None:
        assert found["evidence"] == evidence
    refused = [row["gate"] for row in answers["houses"][house]["coli_cpu_portable.dll"]["gates"]]
    late = refused[refused.index(gate) + 1 :] if gate in LATE else []
    assert all(finding(answers, house, row)["verdict"] == "not run" for row in late)


def test_elf_library_is_named_as_one(answers: dict[str, Any]) -> None:
    found = finding(answers, "elf", "container", "coli_cpu_portable.so")
    assert (found["code"], found["evidence"]) == ("container.machine", "ELF, x86_64, 64-bit")
    assert found["expected"] == "PE, x86_64, 64-bit"


def test_where_a_missing_dependency_was_looked_for(answers: dict[str, Any]) -> None:
    found = finding(answers, "needs", "dependencies")
    house = "C:\\Program Files\\coli ☕\\needs"
    assert found["expected"].lower() == f"every needed library in {house}, c:\\windows\\system32".lower()
    assert found["fix"] == "put it beside the library; PATH is not searched"
    assert answers["houses"]["needs beside"]["coli_cpu_portable.dll"]["verdict"] == "ok"


def test_crash_of_the_loading_and_at_the_end(answers: dict[str, Any]) -> None:
    assert finding(answers, "crash at load", "open")["verdict"] == "refused"
    assert finding(answers, "crash at end", "canary")["verdict"] == "refused"
    assert answers["houses"]["sound"]["coli_cpu_portable.dll"]["verdict"] == "ok"


def test_access_violation_names_itself(answers: dict[str, Any]) -> None:
    assert "access violation" in finding(answers, "violation", "handshake")["evidence"]


def test_who_may_write(answers: dict[str, Any]) -> None:
    house = "C:\\Program Files\\coli ☕"
    found = finding(answers, "open file", "file")
    assert found["code"] == "file.writable"
    assert found["evidence"] == f"Everyone may write {house}\\open file\\coli_cpu_portable.dll"
    assert found["fix"].startswith(f'icacls "{house}\\open file\\coli_cpu_portable.dll" /remove:g *S-1-1-0')
    found = finding(answers, "open folder", "file")
    assert found["code"] == "file.folder-writable"
    assert found["evidence"] == f"Everyone may replace files in {house}\\open folder"
    assert finding(answers, "sound", "file")["verdict"] == "ok"


def test_windows_itself_searches_no_further(answers: dict[str, Any]) -> None:
    """Not found, with the dependency in the current folder and on PATH; 193: another machine's library."""
    opened = answers["open"]
    assert opened["gone"] == opened["needs"] == "FileNotFoundError"
    assert opened["needs beside"] is None
    assert opened[REAL] is None
    assert opened["32 bit"] in (193, 216) and opened["elf"] == 193
