"""The ELF and PE readers: against readelf and hand-made files, and against damage."""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coli.backends.containers import Container, ContainerError, read_container
from coli.backends.dependencies import resolve_closure
from coli.backends.gates import check_dependencies


def pe_library(*, machine: int = 0x8664, traits: int = 0x2022, names: tuple[str, ...] = ("KERNEL32.dll",)) -> bytes:
    """Write a small DLL by hand: DOS header, PE header, PE32+ optional header, one section with an import table."""
    head = bytearray(64)
    head[:2] = b"MZ"
    struct.pack_into("<I", head, 60, 64)
    imports = bytearray(20 * (len(names) + 1))
    text = bytearray()
    for at, name in enumerate(names):
        struct.pack_into("<IIIII", imports, 20 * at, 0, 0, 0, 0x1000 + len(imports) + len(text), 0)
        text += name.encode() + b"\0"
    section = bytes(imports + text)
    optional = bytearray(112 + 16 * 8)
    struct.pack_into("<H", optional, 0, 0x20B)
    struct.pack_into("<I", optional, 108, 16)  # the directories that follow
    struct.pack_into("<II", optional, 112 + 8, 0x1000, len(imports))
    offset = 64 + 24 + len(optional) + 40
    file = struct.pack("<4sHHIIIHH", b"PE\0\0", machine, 1, 0, 0, 0, len(optional), traits)
    row = struct.pack("<8sIIII12xI", b".idata", len(section), 0x1000, len(section), offset, 0x40000040)
    return bytes(head) + file + bytes(optional) + row + section


def elf_library() -> bytes:
    """Write a small big-endian 32-bit ELF library by hand: needs liba.so and b.so.2, RUNPATH /opt/x:$ORIGIN."""
    strings = b"\0liba.so\0b.so.2\0/opt/x:$ORIGIN\0"
    tags = [(1, 1), (1, 9), (29, 16), (5, 0x1000 + 52 + 64), (0, 0)]
    dynamic = b"".join(struct.pack(">iI", *tag) for tag in tags)
    at = 52 + 64 + len(strings)
    size = at + len(dynamic)
    head = b"\x7fELF\x01\x02\x01" + bytes(9) + struct.pack(">HHIIIIIHHHHHH", 3, 20, 1, 0, 52, 0, 0, 52, 32, 2, 40, 0, 0)
    load = struct.pack(">IIIIIIII", 1, 0, 0x1000, 0x1000, size, size, 5, 4096)
    table = struct.pack(">IIIIIIII", 2, at, 0x1000 + at, 0, len(dynamic), len(dynamic), 6, 4)
    return head + load + table + strings + dynamic


def test_elf_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "a.so"
    path.write_bytes(elf_library())
    assert read_container(path) == Container("elf", "ppc", 32, ("liba.so", "b.so.2"), ("/opt/x", "$ORIGIN"))


def test_pe_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "coli_cpu_portable.dll"
    path.write_bytes(pe_library(names=("KERNEL32.dll", "api-ms-win-crt-heap-l1-1-0.dll")))
    found = read_container(path)
    assert found == Container("pe", "x86_64", 64, ("KERNEL32.dll", "api-ms-win-crt-heap-l1-1-0.dll"))
    path.write_bytes(pe_library(machine=0xAA64, names=()))
    assert read_container(path) == Container("pe", "aarch64", 64, ())


def test_closure_of_a_windows_library(tmp_path: Path) -> None:
    folder = tmp_path / "Windows" / "System32"
    folder.mkdir(parents=True)
    (folder / "KERNEL32.dll").write_bytes(pe_library(names=()))
    path = tmp_path / "coli_cpu_portable.dll"
    path.write_bytes(pe_library(names=("KERNEL32.dll", "api-ms-win-crt-heap-l1-1-0.dll", "libgomp-1.dll", "near.dll")))
    (tmp_path / "near.dll").write_bytes(pe_library(names=("gone.dll",)))
    closure = resolve_closure(path, read_container(path), root=tmp_path)
    assert closure.missing == (("libgomp-1.dll", path.name), ("gone.dll", "near.dll"))


def test_windows_looks_beside_the_library_and_in_system32(tmp_path: Path) -> None:
    """Names have no case; a dependency's own folder, PATH and names with a folder in them count for nothing."""
    system, house = tmp_path / "WINDOWS" / "system32", tmp_path / "house"
    for folder in (system, house, tmp_path / "path"):
        folder.mkdir(parents=True)
    (system / "kernel32.dll").write_bytes(pe_library(names=("nobody-asks.dll",)))
    (house / "Near.dll").write_bytes(pe_library(names=("KERNEL32.DLL", "path.dll")))
    (house / "other.dll").write_bytes(pe_library(machine=0xAA64))
    (tmp_path / "path" / "path.dll").write_bytes(pe_library(names=()))
    path = house / "coli_cuda.dll"
    names = ("Kernel32.dll", "Near.dll", "NEAR.dll", "other.dll", "..\\path\\path.dll", "ext-ms-win-x-l1-1-0.dll")
    path.write_bytes(pe_library(names=names))
    closure = resolve_closure(path, read_container(path), library_path=(tmp_path / "path",), root=tmp_path)
    assert closure.found == {
        "Kernel32.dll": "system",
        "Near.dll": str(house / "Near.dll"),
        "ext-ms-win-x-l1-1-0.dll": "system",
    }
    here = "coli_cuda.dll"
    assert closure.missing == (("other.dll", here), ("..\\path\\path.dll", here), ("path.dll", "Near.dll"))
    assert closure.searched == (str(house), str(system))


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("VCRUNTIME140_1.dll", "install the Microsoft Visual C++ Redistributable"),
        ("MSVCP140.dll", "install the Microsoft Visual C++ Redistributable"),
        ("libwinpthread-1.dll", "put it beside the library; PATH is not searched"),
    ],
)
def test_fix_of_a_missing_dll(tmp_path: Path, name: str, fix: str) -> None:
    path = tmp_path / "coli_cuda.dll"
    path.write_bytes(pe_library(names=(name,)))
    finding = check_dependencies(path, read_container(path))
    assert (finding.code, finding.fix) == ("dependencies.missing", fix)
    assert finding.evidence == f"missing: {name} (needed by coli_cuda.dll)"


def test_directories_that_a_dll_does_not_have(tmp_path: Path) -> None:
    """NumberOfRvaAndSizes says how many directories there are: what follows it is something else."""
    data = bytearray(pe_library())
    struct.pack_into("<I", data, 64 + 24 + 108, 1)
    path = tmp_path / "a.dll"
    path.write_bytes(data)
    assert read_container(path).needed == ()


def test_elf_as_readelf_sees_it(build_stub: Callable[..., Path]) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("not run: no readelf")
    path = build_stub()
    text = subprocess.run(["readelf", "-d", str(path)], check=True, capture_output=True, text=True).stdout
    assert read_container(path).needed == tuple(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "not-a-library"),
        (b"\x7f", "not-a-library"),
        (b"#!/bin/sh\n", "not-a-library"),
        (b"\x7fELF", "damaged"),
        (b"MZ", "damaged"),
        (b"MZ" + bytes(200), "not-a-library"),
        (pe_library(traits=2), "not-a-library"),
        (pe_library()[:-5], "damaged"),
        (elf_library()[:-5], "damaged"),
        (elf_library()[:40], "damaged"),
    ],
)
def test_what_is_no_library(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ContainerError) as caught:
        read_container(path)
    assert caught.value.code == code


def test_program_and_object_are_no_libraries(compiler: str, tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
    subprocess.run([compiler, "-c", str(source), "-o", str(tmp_path / "a.o")], check=True)
    with pytest.raises(ContainerError, match="an object file"):
        read_container(tmp_path / "a.o")


def test_sizes_in_the_file_allocate_nothing(tmp_path: Path) -> None:
    """Counts near 2^32 and offsets past the end are refused before anything is read."""
    path = tmp_path / "a.so"
    data = bytearray(elf_library())
    struct.pack_into(">I", data, 52 + 32 + 16, 0xFFFFFFF0)  # bytes of the dynamic section
    path.write_bytes(data)
    with pytest.raises(ContainerError, match="dynamic entries"):
        read_container(path)


def ld_cache(entries: dict[str, str]) -> bytes:
    """Write an /etc/ld.so.cache of glibc's present format by hand."""
    strings, rows = bytearray(), bytearray()
    start = 48 + 24 * len(entries)
    for name, path in entries.items():
        at = [start + len(strings), start + len(strings) + len(name) + 1]
        strings += name.encode() + b"\0" + path.encode() + b"\0"
        rows += struct.pack("=iIIIQ", 0x303, at[0], at[1], 0, 0)
    head = b"glibc-ld.so.cache1.1" + struct.pack("=IIBxxxIIII", len(entries), len(strings), 2, 0, 0, 0, 0)
    return head + bytes(rows + strings)


def test_closure_of_an_elf_library(tmp_path: Path) -> None:
    """liba.so is where the system's cache says, b.so.2 in a default folder, but for another machine."""
    path, root = tmp_path / "libcoli.so", tmp_path / "root"
    path.write_bytes(elf_library())
    (root / "etc").mkdir(parents=True)
    (root / "opt/a").mkdir(parents=True)
    (root / "usr/lib").mkdir(parents=True)
    leaf = bytearray(elf_library())
    struct.pack_into(">i", leaf, leaf.index(struct.pack(">iI", 1, 1)), 21)  # its two NEEDED entries become DEBUG
    struct.pack_into(">i", leaf, leaf.index(struct.pack(">iI", 1, 9)), 21)
    (root / "opt/a/liba.so").write_bytes(leaf)
    (root / "usr/lib/b.so.2").write_bytes(pe_library())
    (root / "etc/ld.so.cache").write_bytes(ld_cache({"libother.so": "/x", "liba.so": "/opt/a/liba.so"}))
    closure = resolve_closure(path, read_container(path), root=root)
    assert closure.found == {"liba.so": str(root / "opt/a/liba.so")}
    assert closure.missing == (("b.so.2", "libcoli.so"),)
    assert str(tmp_path) in closure.searched  # $ORIGIN of the run path
    (tmp_path / "b.so.2").write_bytes(leaf)
    assert resolve_closure(path, read_container(path), root=root).missing == ()
    whole = ld_cache({"liba.so": "/opt/a/liba.so"})
    for cut in range(len(whole)):  # a damaged cache is an empty one, never an exception
        (root / "etc/ld.so.cache").write_bytes(whole[:cut])
        resolve_closure(path, read_container(path), root=root)


def test_segment_beyond_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.so"
    data = bytearray(elf_library())
    struct.pack_into(">I", data, 52 + 16, len(data) + 1)  # bytes of the first segment in the file
    path.write_bytes(data)
    with pytest.raises(ContainerError, match=f"segment 0 ends at byte {len(data) + 1}, the file has {len(data)}"):
        read_container(path)


SAMPLES = [elf_library(), pe_library(names=("a.dll", "b.dll"))]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sample=st.sampled_from(SAMPLES),
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8),
    cut=st.integers(0, 500),
)
def test_damage_is_a_container_error(
    tmp_path_factory: pytest.TempPathFactory, sample: bytes, edits: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(sample)
    for at, value in edits:
        data[at % len(data)] = value
    path = tmp_path_factory.getbasetemp() / "fuzz.so"
    path.write_bytes(data[: max(0, len(data) - cut)] if cut < 60 else data)
    try:
        found = read_container(path)
    except ContainerError:
        return
    assert len(found.needed) <= 256


def test_damage_of_a_real_library(build_stub: Callable[..., Path], tmp_path: Path) -> None:
    whole = build_stub().read_bytes()
    generator = random.Random(7)
    path = tmp_path / "fuzz.so"
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(generator.randrange(1, 6)):  # the headers and the dynamic section are where it hurts
            at = generator.choice(
                [generator.randrange(64), generator.randrange(64, 1000), generator.randrange(len(data))]
            )
            data[at] = generator.randrange(256)
        path.write_bytes(data)
        try:
            read_container(path)
        except ContainerError:
            continue
