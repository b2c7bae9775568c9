from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from coli.doctor.facts import values
from coli.doctor.facts.values import Values, read_values
from coli.engine.safetensors import examine_header, read_header

MIB = 1 << 20


def write(path: Path, tensors: dict[str, tuple[str, bytes]]) -> Path:
    header, end = {}, 0
    sizes = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8}
    for name, (dtype, data) in tensors.items():
        shape = [len(data) // sizes.get(dtype, 1)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"".join(data for _, data in tensors.values()))
    return path


def read(*paths: Path) -> Values:
    return read_values([read_header(path) for path in paths])


def ones(nbytes: int) -> bytearray:
    return bytearray(b"\x11" * nbytes)


def test_healthy_data_is_read_once_and_has_no_findings(tmp_path: Path) -> None:
    data = ones(3 * MIB)
    path = write(tmp_path / "a.safetensors", {"w": ("F8_E4M3", bytes(data)), "s": ("F8_E8M0", bytes(ones(5)))})
    seen: list[tuple[int, int]] = []
    found = read_values([read_header(path)] * 2, lambda done, todo: seen.append((done, todo)))
    assert found == Values(2 * (3 * MIB + 5), 2 * (3 * MIB + 5), 4, ())
    assert seen[-1] == (2 * (3 * MIB + 5), 2 * (3 * MIB + 5))


BAD = {
    "F8_E4M3": (b"\x7f", b"\xff"),
    "F8_E5M2": (b"\x7c", b"\xfd"),
    "F8_E8M0": (b"\xff",),
    "BF16": (b"\x80\x7f", b"\xc0\xff"),
    "F16": (b"\x00\x7c", b"\x01\xfe"),
    "F32": (b"\x00\x00\x80\x7f", b"\x00\x00\xc0\xff"),
    "F64": (bytes(6) + b"\xf0\x7f", bytes(6) + b"\xf8\xff"),
}
GOOD = {
    "F8_E4M3": b"\x7e",
    "F8_E5M2": b"\x7b",
    "F8_E8M0": b"\xfd",
    "BF16": b"\x7f\x7f",
    "F16": b"\xff\x7b",
    "F32": b"\xff\xff\x7f\x7f",
    "F64": b"\xff" * 6 + b"\xef\x7f",
}


@pytest.mark.parametrize("dtype", BAD)
def test_codes_that_are_no_finite_number_are_counted(tmp_path: Path, dtype: str) -> None:
    # 7 bytes before it, so that the values lie at odd places
    filler = ("U8", bytes(ones(7)))
    good = GOOD[dtype] * 40
    bad = b"".join(BAD[dtype])
    path = write(tmp_path / "a.safetensors", {"x": filler, "good": (dtype, good), "bad": (dtype, good + bad + good)})
    (problem,) = read(path).problems
    assert problem.status == "fail"
    assert problem.data["tensors"] == {"bad": len(BAD[dtype])}
    assert problem.code == ("checkpoint.scale-code" if dtype == "F8_E8M0" else "checkpoint.not-finite-weight")
    assert problem.subject.endswith("bad")


@pytest.mark.parametrize(("weight", "highest"), [("I8", 253), ("F8_E4M3", 246), ("U8", 254)])
def test_scale_codes_have_the_range_of_their_weights_format(tmp_path: Path, weight: str, highest: int) -> None:
    for code, wrong in ((highest, False), (highest + 1, True)):
        tensors = {"w.weight": (weight, bytes(ones(8))), "w.scale": ("F8_E8M0", bytes([code, 0, 127]))}
        found = read(write(tmp_path / f"{code}.safetensors", tensors)).problems
        assert [problem.data["tensors"] for problem in found] == ([{"w.scale": 1}] if wrong else [])


def test_large_tensors_are_sampled_at_fixed_places_and_scales_completely(tmp_path: Path) -> None:
    weights, scales = ones(3 * MIB), ones(3 * MIB)
    for at in (0, (64 << 10) - 1, 2 * MIB + 5):  # in the first 64 KiB of a MiB
        weights[at] = scales[at] = 0xFF
    for at in (64 << 10, MIB - 1, 3 * MIB - 1):  # and outside
        weights[at] = scales[at] = 0xFF
    tensors = {"odd": ("U8", b"\1\2\3"), "w": ("F8_E4M3", bytes(weights)), "s": ("F8_E8M0", bytes(scales))}
    (problem,) = read(write(tmp_path / "a.safetensors", tensors)).problems
    assert problem.data["tensors"] == {"w": 3, "s": 6}


def test_blocks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    data: dict[str, tuple[str, bytes]] = {"odd": ("U8", b"\1\2\3")}
    for number, dtype in enumerate(BAD):
        raw = bytearray(rng.integers(0, 256, 40_000, dtype=np.uint8).tobytes())
        raw[8000:8000] = bytes(100_000 + 8 * number)
        data[dtype] = (dtype, bytes(raw))
    path = write(tmp_path / "a.safetensors", data)
    whole = read(path)
    assert {problem.code for problem in whole.problems} == {"checkpoint.scale-code", "checkpoint.zero-stretch"}
    monkeypatch.setattr(values, "BLOCK_BYTES", 12 << 10)
    counted = [p.data["tensors"] for p in read(path).problems if p.code == "checkpoint.scale-code"]
    assert counted == [p.data["tensors"] for p in whole.problems if p.code == "checkpoint.scale-code"]
    zeros = [p for p in read(path).problems if p.code == "checkpoint.zero-stretch"]
    assert len(zeros) == len(BAD)


def test_pages_that_only_begin_with_zeros(tmp_path: Path) -> None:
    data = ones(400_000)
    for at in range(0, len(data), 4096):
        data[at : at + 4095] = bytes(4095)
    assert read(write(tmp_path / "a.safetensors", {"a": ("I8", bytes(data))})).problems == ()


def test_a_file_that_ends_inside_of_an_element(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"odd": ("U8", b"\1"), "a": ("F32", b"\0\0\xc0\x7f" * 10)})
    os.truncate(path, path.stat().st_size - 3)
    header, problems = examine_header(path)
    assert header is not None and [problem.code for problem in problems] == ["checkpoint.truncated"]
    (found,) = read_values([header]).problems
    assert found.data["tensors"] == {"a": 9}


def test_a_hole_that_ends_inside_of_an_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "BLOCK_BYTES", 64 << 10)
    raw = json.dumps({"w": {"dtype": "F32", "shape": [1 << 16], "data_offsets": [0, 1 << 18]}}).encode()
    raw += b" " * (-(8 + len(raw)) % 4 + 3)  # pages do not begin where elements do
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + (1 << 18))
        file.seek(-8, os.SEEK_END)
        file.write(b"\0\0\xc0\x7f" * 2)
    (wrong,) = (problem for problem in read(path).problems if problem.code == "checkpoint.not-finite-weight")
    assert wrong.data["tensors"] == {"w": 2}


def zeros(tmp_path: Path, tensors: dict[str, tuple[str, bytes]]) -> list[str]:
    found = read(write(tmp_path / "z.safetensors", tensors)).problems
    return [f"{problem.status} {' '.join(problem.data['tensors'])}" for problem in found]


def test_stretches_of_zeros_are_judged_by_what_they_cover(tmp_path: Path) -> None:
    full, half = bytes(ones(200_000)), bytes(ones(100_000))
    codes = "I8"
    # padding rows of a vocabulary; a part of packed codes; a whole matrix; from one tensor into the next
    assert zeros(tmp_path, {"embed": ("BF16", full + bytes(100_000)), "b": (codes, full)}) == ["note embed"]
    assert zeros(tmp_path, {"a": (codes, full + bytes(100_000) + half), "b": (codes, full)}) == ["warn a"]
    assert zeros(tmp_path, {"a": ("BF16", full), "b": ("BF16", bytes(100_000)), "c": (codes, full)}) == ["fail b"]
    split = {"a": (codes, half + bytes(50_000)), "b": (codes, bytes(50_000) + half)}
    assert zeros(tmp_path, split) == ["fail a b"]
    assert zeros(tmp_path, {"a": (codes, full + bytes(100_000))}) == ["fail a"]
    assert zeros(tmp_path, {"a": (codes, full + bytes(60_000) + full)}) == []


def test_the_hole_of_a_sparse_file_is_zeros_that_need_no_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"a": ("I8", bytes(ones(100_000))), "b": ("I8", b"")})
    raw = json.dumps({"w": {"dtype": "I8", "shape": [8 << 30], "data_offsets": [0, 8 << 30]}}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw + b"\1" * 5000)
        file.truncate(8 + len(raw) + (8 << 30))
    found = read(path)
    assert found.read_bytes == found.data_bytes == 8 << 30
    (problem,) = found.problems
    assert problem.status == "fail"
    assert problem.data["last"] == 8 + len(raw) + (8 << 30)


def test_a_disk_that_fails_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.safetensors", {"a": ("I8", bytes(ones(100_000)))})
    header = read_header(path)

    def fails(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(values.os, "preadv", fails)
    (problem,) = read_values([header]).problems
    assert (problem.code, problem.status) == ("checkpoint.unreadable", "fail")
    assert "Input/output error" in str(problem.evidence)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"a": ("I8", bytes(ones(100_000)))})
    header = read_header(path)
    path.write_bytes(path.read_bytes()[:5000])
    (problem,) = read_values([header]).problems
    assert problem.code == "checkpoint.unreadable"
