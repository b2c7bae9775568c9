"""Measured bandwidths: what they say, and that a broken or foreign file in the cache is nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coli.backends.devices.facts import Fact
from coli.doctor.checks import storage
from coli.doctor.checks.graph import run_checks
from coli.doctor.facts import measure
from coli.doctor.facts.machine import MachineFacts, _kept
from coli.doctor.facts.measure import DiskRead, Measured, probe_bandwidth, read_measured, write_measured
from coli.doctor.facts.storage import StorageFacts

HERE = StorageFacts("model", "/m", mount_point=Fact.of("/m", "x"), mount_source=Fact.of("/dev/sda1", "x"))
OTHER = StorageFacts("model", "/n", mount_point=Fact.of("/n", "x"), mount_source=Fact.of("/dev/sda1", "x"))
MEASURED = Measured(
    "/m (/dev/sda1)",
    "2026-01-02T03:04:05+00:00",
    Fact.of(3e9, "direct"),
    (DiskRead(2, 100, 3000, 1.5, "direct"),),
    memory_bytes_per_s=Fact.unknown("no"),
)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "EXPERT_RECORD_BYTES", 1 << 16)
    monkeypatch.setattr(measure, "_DISK_S", 0.02)
    monkeypatch.setattr(measure, "_MEMORY_S", 0.01)
    monkeypatch.setattr(measure, "_ARRAY_BYTES", 1 << 20)


def files(folder: Path, records: int) -> list[Path]:
    path = folder / "m.safetensors"
    path.write_bytes(bytes((1 << 16) * records + 77))
    return [path]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("how", ["direct", "buffered"])
def test_all_depths_read_whole_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def opening(path: Path) -> tuple[int, object]:
        if how == "buffered":
            raise OSError("no direct reads here")
        return os.open(path, os.O_RDONLY), None  # the file system of the tests may have none

    monkeypatch.setattr(measure, "open_direct", opening)
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    found = probe_bandwidth(HERE, files(tmp_path, 48), 2)
    assert [(read.readers, read.how) for read in found.disk_reads] == [(2, how), (4, how), (8, how)]
    assert sum(read.read_bytes for read in found.disk_reads) <= 48 << 16
    assert all(read.read_bytes % (1 << 16) == 0 for read in found.disk_reads)
    assert found.disk_bytes_per_s.value == max(read.bytes_per_s for read in found.disk_reads)
    assert (found.memory_bytes_per_s.value or 0) > 1e8
    assert not found.pcie_bytes_per_s.known
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


@pytest.mark.usefixtures("quick")
def test_too_few_records_and_failing_disks_are_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = probe_bandwidth(HERE, files(tmp_path, 3), 1)
    assert (few.disk_bytes_per_s.known, few.disk_reads) == (False, ())
    assert "3 records" in few.disk_bytes_per_s.source
    assert "no weight files" in probe_bandwidth(HERE, [], 1).disk_bytes_per_s.source
    assert "absent: No such file" in probe_bandwidth(HERE, [tmp_path / "absent"], 1).disk_bytes_per_s.source

    def failing(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", failing)
    assert probe_bandwidth(HERE, files(tmp_path, 48), 1).disk_bytes_per_s.source == "reading: Input/output error"


@pytest.mark.usefixtures("quick")
def test_a_disk_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    gate = threading.Event()
    monkeypatch.setattr(measure, "_SILENCE_S", 0.05)
    monkeypatch.setattr(os, "preadv", lambda *_: gate.wait(20) and 0)
    found = probe_bandwidth(HERE, files(tmp_path, 48), 1)
    gate.set()
    assert "did not answer" in found.disk_bytes_per_s.source


def test_what_was_measured_is_kept_for_its_mount(tmp_path: Path) -> None:
    write_measured(tmp_path, HERE, MEASURED)
    assert read_measured(tmp_path, HERE) == MEASURED
    assert MEASURED.disk_reads[0].bytes_per_s == 2000
    assert read_measured(tmp_path, OTHER) is None
    assert [path.suffix for path in (tmp_path / "measured").iterdir()] == [".json"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:50],
        lambda text: "",
        lambda text: text.replace("3000000000.0", "-1.0"),
        lambda text: text.replace('"seconds": 1.5', '"seconds": 0'),
        lambda text: text.replace("/m (/dev", "/x (/dev"),
        lambda text: "[" * 100_000,
    ],
)
def test_a_broken_file_in_the_cache_is_nothing(tmp_path: Path, change: object) -> None:
    write_measured(tmp_path, HERE, MEASURED)
    (path,) = (tmp_path / "measured").iterdir()
    text = path.read_text()
    changed = change(text)  # type: ignore[operator]
    assert changed != text
    path.write_text(changed)
    assert read_measured(tmp_path, HERE) is None


def test_what_cannot_be_kept_is_told(tmp_path: Path) -> None:
    (tmp_path / "measured").write_text("a file in the place of the folder")
    found = _kept(tmp_path, HERE, MEASURED)
    assert found.not_kept is not None and str(tmp_path) in found.not_kept
    rows = run_checks(storage.CHECKS, MachineFacts(storage=(HERE,), measured=found))
    assert "storage.not-kept" in {finding.code for row in rows for finding in row.findings}
    assert MEASURED.not_kept is None
