"""Direct reads: the same bytes as the reference library's, whatever the file system refuses and when."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy

import coli
from coli.backends.dispatch import Fallback
from coli.engine import direct
from coli.engine.checkpoint import Checkpoint
from coli.engine.direct import DirectReader, decide_io, direct_item, probe_direct
from coli.errors import CheckpointError
from coli.paths import demo_model

Bytes = npt.NDArray[np.uint8]
GIB = 1 << 30


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def pattern(nbytes: int) -> Bytes:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, Bytes]]:
    """A checkpoint whose tensors begin and end at odd bytes; the last one ends the file with part of a block."""
    arrays = {"a": pattern((5 << 20) + 33), "b": pattern(7), "c": pattern((2 << 20) + 1500)}
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    return tmp_path, arrays


class System:
    """The system calls, with refusals. ``direct``: descriptors that were opened for direct reads."""

    def __init__(self, patch: pytest.MonkeyPatch, open_direct: int = 0, block: int = 1) -> None:
        self.direct: set[int] = set()
        self.reads: list[tuple[int, int]] = []
        self.fail: Callable[[int], int] = lambda number: 0
        self.short: int | None = None
        real_open, real_preadv = os.open, os.preadv

        def opening(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            wants = flags & os.O_DIRECT and str(path).endswith(".safetensors")
            if wants and open_direct:
                raise OSError(open_direct, os.strerror(open_direct))
            descriptor = real_open(path, flags & ~os.O_DIRECT, *rest, **named)
            self.direct.discard(descriptor)
            if wants:
                self.direct.add(descriptor)
            return descriptor

        def reading(descriptor: int, buffers: Any, offset: int, *rest: Any) -> int:
            if descriptor not in self.direct:
                return real_preadv(descriptor, buffers, offset, *rest)
            (buffer,) = buffers
            self.reads.append((offset, len(buffer)))
            address = np.frombuffer(buffer, np.uint8).ctypes.data
            code = self.fail(len(self.reads)) or (
                errno.EINVAL if offset % block or len(buffer) % block or address % block else 0
            )
            if code:
                raise OSError(code, os.strerror(code))
            return real_preadv(descriptor, [buffer[: self.short]], offset, *rest)

        patch.setattr(os, "open", opening)
        patch.setattr(os, "preadv", reading)


def read_all(folder: Path, arrays: dict[str, Bytes]) -> tuple[Checkpoint, list[str]]:
    told: list[str] = []
    with Checkpoint.open(folder) as checkpoint:
        checkpoint.read_directly(told.append)
        for name in (*arrays, *arrays):
            assert np.array_equal(checkpoint.read(name), arrays[name]), name
    return checkpoint, told


@pytest.mark.parametrize("block", [512, 4096, 65536])
def test_every_read_is_aligned_to_what_the_disk_says(
    model: tuple[Path, dict[str, Bytes]], monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(direct, "_statx_alignment", lambda descriptor: block)
    system = System(monkeypatch, block=block)
    checkpoint, told = read_all(*model)
    assert (checkpoint.io_mode, told, checkpoint.notes) == ("direct", [], ())
    # Twice 5 and 2 MiB in chunks of 2 MiB; the 7 bytes are not worth a block.
    assert len(system.reads) == 2 * (3 + 2)


def test_a_file_system_that_refuses_the_open_is_told_once(
    model: tuple[Path, dict[str, Bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    System(monkeypatch, open_direct=errno.EINVAL)
    checkpoint, told = read_all(*model)
    assert checkpoint.io_mode == "buffered"
    assert len(told) == len(checkpoint.notes) == 1
    assert "open with O_DIRECT: Invalid argument" in told[0]
    assert " at /" in told[0]


@pytest.mark.parametrize("first_bad", [1, 2, 4])
@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.EIO])
def test_a_read_that_fails_is_repeated_buffered_from_where_it_stopped(
    model: tuple[Path, dict[str, Bytes]], monkeypatch: pytest.MonkeyPatch, first_bad: int, code: int
) -> None:
    system = System(monkeypatch)
    system.fail = lambda number: code if number >= first_bad else 0
    checkpoint, told = read_all(*model)
    assert checkpoint.io_mode == "buffered-after-read-error"
    assert len(told) == 1
    assert len(system.reads) == first_bad


@pytest.mark.parametrize("short", [4097, 8192, 70001])
def test_short_reads_go_on_where_they_stopped(
    model: tuple[Path, dict[str, Bytes]], monkeypatch: pytest.MonkeyPatch, short: int
) -> None:
    system = System(monkeypatch)
    system.short = short
    assert read_all(*model)[0].io_mode == "direct"


@pytest.mark.parametrize("refusal", [0, errno.EINVAL])
def test_the_text_is_the_same_however_weights_are_read(monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    monkeypatch.setattr(direct, "_LEAST_BYTES", 1)  # the demo's tensors are small
    texts = []
    for io in ("buffered", "direct"):
        told: list[Fallback] = []
        with pytest.MonkeyPatch.context() as patch:
            system = System(patch, open_direct=refusal)
            with coli.open(demo_model(), io=io, threads=1, context=64, tell=told.append) as model:
                texts.append(list(model.generate([1, 2, 3, 4, 5], 12, ignore_eos=True)))
                mode = model.facts()["io"]
                items = [item["name"] for item in model.facts()["memory"]["items"]]
        assert mode == ("direct" if io == "direct" and not refusal else "buffered")
        assert bool(system.reads) == (mode == "direct")
        assert len(told) == (io == "direct" and refusal != 0)
        assert ("direct reads" in items) == (io == "direct")
    assert texts[0] == texts[1]
    assert len(texts[0]) == 12


def test_a_file_that_shrank_is_an_error_that_names_the_tensor(model: tuple[Path, dict[str, Bytes]]) -> None:
    folder, arrays = model
    with Checkpoint.open(folder) as checkpoint:
        checkpoint.read_directly()
        os.truncate(folder / "model.safetensors", 6 << 20)
        assert np.array_equal(checkpoint.read("a"), arrays["a"])
        with pytest.raises(CheckpointError, match=r"model\.safetensors: c"):
            checkpoint.read("c")


def test_threads_have_their_own_memory(model: tuple[Path, dict[str, Bytes]]) -> None:
    folder, arrays = model
    wrong: list[str] = []
    with Checkpoint.open(folder) as checkpoint:
        checkpoint.read_directly()

        def read() -> None:
            for name in ("a", "c", "a"):
                if not np.array_equal(checkpoint.read(name), arrays[name]):
                    wrong.append(name)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_files_are_closed(model: tuple[Path, dict[str, Bytes]]) -> None:
    before = descriptors()
    read_all(*model)
    assert descriptors() == before
    reader = DirectReader(lambda subject, reason: None)
    reader.read(model[0] / "model.safetensors", 0, [memoryview(bytearray(1 << 20))])
    del reader
    assert descriptors() == before


def test_probe_reads_a_block(model: tuple[Path, dict[str, Bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    file = model[0] / "model.safetensors"
    assert not probe_direct(model[0] / "absent").works
    system = System(monkeypatch)
    assert probe_direct(file).works
    system.fail = lambda number: errno.EINVAL
    support = probe_direct(file)
    assert (support.works, support.reason) == (False, "direct read: Invalid argument")


@pytest.mark.parametrize(
    ("wanted", "files", "available", "budget", "chosen"),
    [
        ("auto", 160 * GIB, 30 * GIB, 28 * GIB, "direct"),  # the released Flash on a machine of 32 GiB
        ("auto", 160 * GIB, 250 * GIB, 234 * GIB, "buffered"),  # all of it in memory: the second run reads the cache
        ("auto", 160 * GIB, 120 * GIB, 12 * GIB, "buffered"),  # a small --ram leaves the rest to the cache
        ("auto", 5 * GIB, 17 * GIB, 16 * GIB, "buffered"),
        ("auto", 5 * GIB, None, 16 * GIB, "buffered"),
        ("direct", 5 * GIB, None, 16 * GIB, "direct"),
        ("buffered", 160 * GIB, 30 * GIB, 28 * GIB, "buffered"),
    ],
)
def test_auto_takes_the_page_cache_where_it_can_answer(
    wanted: str, files: int, available: int | None, budget: int, chosen: str
) -> None:
    assert decide_io(wanted, files, available, budget) == chosen


def test_memory_of_the_readers_is_an_item() -> None:
    assert direct_item(2).total_bytes() == 3 * direct.CHUNK_BYTES
