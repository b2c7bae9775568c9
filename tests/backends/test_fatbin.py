"""Device code read out of libraries: sections that nvcc wrote, damage of every kind, and cuobjdump as the judge."""

from __future__ import annotations

import io
import random
import re
import struct
import subprocess
from pathlib import Path

import pytest
from building import nvidia_tool
from fatbin_writer import MAGIC, entry, fatbin
from hypothesis import given, settings
from hypothesis import strategies as st

from coli.backends.containers import ContainerError, Section, Window, read_sections
from coli.backends.fatbin import Fatbin, FatbinError, parse_fatbins, read_fatbin

SECTIONS = Path(__file__).with_name("fatbins")


def parse(data: bytes) -> Fatbin:
    return parse_fatbins(Window(io.BytesIO(data)), Section(".nv_fatbin", 1, 0, 0, len(data)))


def names(found: Fatbin) -> list[str]:
    return [str(target) for target in found.targets]


@pytest.mark.parametrize(
    ("file", "targets", "compressed"),
    [
        ("plain.bin", ["sm_80", "sm_120a", "compute_120f"], False),
        ("lz4.bin", ["sm_86", "compute_86"], True),
        (
            "zstd.bin",
            ["sm_80", "sm_90", "sm_100f", "sm_120a", "compute_90", "compute_103a", "compute_120f"],
            True,
        ),
    ],
)
def test_sections_of_nvcc(file: str, targets: list[str], compressed: bool) -> None:
    found = parse((SECTIONS / file).read_bytes())
    assert names(found) == targets
    assert len(found.units) == 2
    assert {e.compressed for unit in found.units for e in unit if not e.target.ptx} == {compressed}


def test_hand_written() -> None:
    assert names(parse(fatbin(["sm_90a", "compute_75"]))) == ["sm_90a", "compute_75"]
    assert names(parse(b"\0" * 16 + fatbin(["sm_80"]) + b"\0" * 24 + fatbin(["sm_120"]))) == ["sm_80", "sm_120"]
    assert names(parse(b"")) == []


def test_kinds_that_are_neither_code_nor_ptx_are_told() -> None:
    data = bytearray(fatbin(["sm_80", "sm_90"]))
    struct.pack_into("<H", data, 16, 8)  # NVVM, of link-time optimisation
    found = parse(bytes(data))
    assert (names(found), found.other_kinds) == (["sm_90"], (8,))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x7fELF" + b"\0" * 28, "not the magic"),
        (struct.pack("<IHHQ", MAGIC, 2, 16, 0), "version 2"),
        (struct.pack("<IHHQ", MAGIC, 1, 0, 0), "header of 0 bytes"),
        (struct.pack("<IHHQ", MAGIC, 1, 16, 1 << 62), "beyond its section"),
        (struct.pack("<IHHQ", MAGIC, 1, 16, 8) + b"\0" * 8, "8 bytes are left"),
        (struct.pack("<IHHQ", MAGIC, 1, 16, 64) + struct.pack("<HHIQ", 2, 0, 64, 1) + b"\0" * 48, "does not fit"),
        (struct.pack("<IHHQ", MAGIC, 1, 16, 64) + struct.pack("<HHIQ", 2, 0, 0, 0) + b"\0" * 48, "does not fit"),
        (struct.pack("<IHHQ", MAGIC, 1, 16, 64) + struct.pack("<HHIQ", 2, 0, 64, 0) + b"\xff" * 48, "no compute"),
    ],
)
def test_damage(data: bytes, says: str) -> None:
    with pytest.raises(FatbinError, match=says):
        parse(data)


def test_too_many_entries() -> None:
    one = entry("sm_80", b"")[:48].replace(struct.pack("<I", 64), struct.pack("<I", 48), 1)
    with pytest.raises(FatbinError, match="more than 65536"):
        parse(struct.pack("<IHHQ", MAGIC, 1, 16, 48 * 70_000) + one * 70_000)
    with pytest.raises(FatbinError, match="more than 65536"):
        parse(b"\0" * (8 * 70_000))


@given(st.binary(max_size=300), st.data())
@settings(deadline=None, max_examples=200)
def test_any_bytes(data: bytes, draw: st.DataObject) -> None:
    base = bytearray((SECTIONS / "lz4.bin").read_bytes())
    at = draw.draw(st.integers(0, len(base) - 1))
    base[at : at + len(data)] = data
    for candidate in (data, bytes(base), bytes(base[: at + 1])):
        try:
            parse(candidate)
        except FatbinError as error:
            assert str(error)


def test_library_of_this_machine_with_and_without_device_code(build_stub, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    section = tmp_path / "section.bin"
    section.write_bytes(fatbin(["sm_86", "compute_86"]))
    found = read_fatbin(build_stub("libcoli_cuda.so", f'STUB_FATBIN="{section}"'))
    assert found is not None and names(found) == ["sm_86", "compute_86"]
    assert read_fatbin(build_stub()) is None


def test_damaged_library_is_an_error_of_ours(build_stub, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    section = tmp_path / "section.bin"
    section.write_bytes(fatbin(["sm_86"]))
    whole = build_stub("libcoli_cuda.so", f'STUB_FATBIN="{section}"').read_bytes()
    path, chance = tmp_path / "damaged.so", random.Random(7)
    for _ in range(120):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            # Headers of the file and of its sections are where a reader can be led astray.
            at = chance.choice((chance.randrange(64), chance.randrange(len(data) - 2048, len(data))))
            data[at] = chance.randrange(256)
        path.write_bytes(bytes(data[: chance.choice((len(data), chance.randrange(len(data))))]))
        try:
            read_fatbin(path)
        except (FatbinError, ContainerError):
            continue


def portable_executable(section: bytes) -> bytes:
    """Return a DLL, as far as a reader of sections looks, with one section of device code."""
    dos = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    head = (
        b"PE\0\0"
        + struct.pack("<HHIIIHH", 0x8664, 1, 0, 0, 0, 112, 0x2000)
        + struct.pack("<H", 0x20B).ljust(112, b"\0")
    )
    row = struct.pack("<8sIIII16x", b".nv_fatb", len(section), 0x1000, len(section) + 512, 512)
    return (dos + head + row).ljust(512, b"\0") + section + b"\xcc" * 512


def test_windows_library(tmp_path: Path) -> None:
    path = tmp_path / "coli_cuda.dll"
    path.write_bytes(portable_executable(fatbin(["sm_120", "compute_120"])))
    found = read_fatbin(path)
    assert found is not None and names(found) == ["sm_120", "compute_120"]
    with path.open("rb") as file:
        assert [(s.name, s.offset) for s in read_sections(Window(file))] == [(".nv_fatb", 512)]


# -- against the toolkit


@pytest.mark.full
@pytest.mark.parametrize("mode", ["none", "size", "speed"])
def test_equals_cuobjdump(tmp_path: Path, mode: str) -> None:
    nvcc, cuobjdump = nvidia_tool("nvcc"), nvidia_tool("cuobjdump")
    if nvcc is None or cuobjdump is None:
        pytest.skip("not run: no nvcc or no cuobjdump")
    source, library = tmp_path / "k.cu", tmp_path / "libk.so"
    source.write_text(
        "__global__ void f(float *x) { *x *= 2; }\nvoid go(float *x) { f<<<1, 1>>>(x); }\n", encoding="utf-8"
    )
    asked = ["sm_80", "sm_86", "sm_90a", "sm_120a", "compute_90", "compute_120f"]
    command = [nvcc, "-shared", "-Xcompiler", "-fPIC", f"-compress-mode={mode}", str(source), "-o", str(library)]
    for target in asked:
        command.append(f"-gencode=arch={target.replace('sm_', 'compute_')},code={target}")
    subprocess.run(command, check=True)
    listed = subprocess.run([cuobjdump, "-lelf", "-lptx", str(library)], check=True, capture_output=True, text=True)
    said = set(re.findall(r"\.(sm_\w+\.(?:cubin|ptx))", listed.stdout))
    found = read_fatbin(library)
    assert found is not None and names(found) == asked
    ours = {f"sm_{t.number}{t.suffix}.{'ptx' if t.ptx else 'cubin'}" for t in found.targets}
    assert ours == said
