"""Forecasts against arithmetic by hand and against machines that other people measured."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from coli.backends.devices.facts import Fact
from coli.doctor.facts.measure import DiskRead, Measured
from coli.doctor.plan.forecast import History, Placed, Range, Speeds, forecast, hit_rates
from coli.doctor.plan.machine import machine_of
from coli.doctor.plan.speeds import decide_speeds
from coli.doctor.record.machine_file import read_machine
from coli.engine.budget import Demand, Traffic
from coli.engine.store import READERS
from coli.errors import UsageError

from .published import PUBLISHED, flash_demand, plan_published, published_rate


@pytest.fixture(scope="module")
def flash() -> Demand:
    return flash_demand()


def exactly(rate: float) -> Range:
    return Range(rate, rate, "a test", True)


def test_times_of_disk_and_memory_add_up() -> None:
    # 4 GB of dense weights and 10 experts of 0.1 GB; half of the experts are in RAM, and half of the calls hit.
    placed = Placed(Traffic(4 * 10**9, 10, 10**8), cached=0.5)
    found = forecast(placed, Speeds(exactly(1e9), exactly(10e9)), History(0.5, 0.5))
    # Hit rates 0.42 to 0.58: 0.58 or 0.42 GB from disk at 1 GB/s, 5 GB through the products at 10 GB/s.
    assert found.low == pytest.approx(1 / (0.58 + 0.5))
    assert found.high == pytest.approx(1 / (0.42 + 0.5))
    assert found.measured


def test_a_cache_of_everything_never_reads() -> None:
    assert hit_rates(1.0) == (1.0, 1.0)
    # A quarter that served half, as the square root: of a ninth a third.
    assert hit_rates(1 / 9, History(0.25, 0.5)) == (pytest.approx(1 / 3 - 0.08), pytest.approx(1 / 3 + 0.08))
    assert hit_rates(0.5) == (pytest.approx(0.425), pytest.approx(0.5**0.6))
    found = forecast(Placed(Traffic(10**9, 10, 10**8), cached=1.0), Speeds(exactly(1.0), exactly(1e9)))
    assert found.low == found.high == pytest.approx(0.5)


def test_weights_on_the_card_leave_the_memory_alone() -> None:
    traffic = Traffic(10**9, 0, 10**8)
    speeds = Speeds(exactly(1e9), exactly(1e9), exactly(100e9))
    assert forecast(Placed(traffic, 1.0, device_dense_bytes=10**9), speeds).low == pytest.approx(100)
    assert forecast(Placed(traffic, 1.0, device_dense_bytes=5 * 10**8), speeds).low == pytest.approx(1 / 0.505)


def test_stage_calls_bound_small_models() -> None:
    found = forecast(Placed(Traffic(0, 0, 1, calls=100), 1.0), Speeds(exactly(1e9), exactly(1e9)))
    assert (found.low, found.high) == (pytest.approx(1 / 9e-3), pytest.approx(1 / 1e-3))


def test_what_was_measured_goes_before_what_is_rated_and_that_before_a_guess() -> None:
    measured = Measured(
        "/", "2026-01-02T00:00:00Z", Fact.of(3e9, "direct reads"), memory_bytes_per_s=Fact.of(30e9, "x")
    )
    rated = msgspec.structs.replace(
        measured, disk_bytes_per_s=Fact.of(3e9, "rated"), memory_bytes_per_s=Fact.of(30e9, "rated")
    )
    found = decide_speeds(8, measured)
    assert found.measured
    assert "measured 3.0 GB/s, 2026-01-02" in found.disk.source
    assert not decide_speeds(8, rated).measured
    # What the engine's own number of readers got is the cautious end.
    slow = DiskRead(READERS, 10**7, 10**9, 1.0, "direct")
    few = decide_speeds(8, msgspec.structs.replace(measured, disk_reads=(slow,))).disk
    assert (few.low, few.high) == (pytest.approx(0.5e9), found.disk.high)
    guess = decide_speeds(8, disk_kind="hdd")
    assert not guess.measured
    assert guess.disk.high < 1e9
    widths = [
        one.disk.high / one.disk.low for one in (found, decide_speeds(8, rated), decide_speeds(8, disk_kind="nvme"))
    ]
    assert widths == sorted(widths)


def test_the_flash_of_the_plan_is_the_one_that_was_released(flash: Demand) -> None:
    *_, cache = flash.items(4096, 128)
    assert cache.nbytes == 13_369_344
    assert round(256 * cache.nbytes / 2**30, 2) == 3.19
    head = flash.device[1].items[0].nbytes
    assert round(head / 2**30, 2) == 0.99
    # 6.27 GiB with the small vectors, which are float32 in memory.
    assert 6.2 <= (flash.traffic.dense_bytes - head) / 2**30 <= 6.28
    kv = next(item.nbytes for item in flash.items(1 << 20, 128) if item.name.startswith("KV"))
    assert 13.1 <= kv / 2**30 <= 13.5


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
@pytest.mark.parametrize("card", [False, True], ids=["cpu only", "dense weights on the card"])
def test_published_machines_lie_in_their_interval(path: Path, card: bool, flash: Demand) -> None:
    found = plan_published(path, flash, card=card)[1].forecast
    low, high = published_rate(path)
    assert found.low <= low <= high <= found.high
    assert found.high / found.low <= 3


def test_where_the_page_cache_may_answer_only_the_hopeful_end_is_faster() -> None:
    speeds = Speeds(Range(1e9, 2e9, "a test"), Range(5e9, 20e9, "a test"))
    cached = speeds.with_page_cache()
    assert (cached.disk.low, cached.disk.high, cached.ram) == (1e9, 16e9, speeds.ram)
    assert "page cache" in cached.disk.source


def test_a_recorded_machine_is_read_with_its_threads_and_card() -> None:
    facts = read_machine(next(path for path in PUBLISHED if "5080" in path.name))
    machine = machine_of(facts)
    assert (machine.threads, machine.memory.total_bytes.value) == (12, 32 << 30)
    assert machine.device is not None
    assert (machine.device.name, machine.device.free_bytes) == ("NVIDIA GeForce RTX 5080", 15800 << 20)
    assert machine_of(facts, gpu="none").device is None
    assert machine_of(facts, threads=3).threads == 3
    with pytest.raises(UsageError, match="--gpu"):
        machine_of(facts, gpu="7")


def test_a_machine_of_which_too_little_is_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"schema": "coli.machine/1", "facts": {"name": "half of one"}}', "utf-8")
    with pytest.raises(UsageError, match=r"half of one.*needs its memory"):
        machine_of(read_machine(tmp_path / "m.json"))
