"""CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER. Expectations are CUDA's documented rules, written by hand."""

from __future__ import annotations

import pytest

from coli.backends.devices import DeviceFacts, Driver, Fact, Gpu, MigSlice, engine_environment, select_devices
from coli.backends.devices.visible import VisibleDevices, visible_devices
from coli.backends.targets import Capability


def card(index: int, uuid: str, cc: tuple[int, int] | None = (8, 6), **more: object) -> Gpu:
    capability: Fact[Capability] = Fact.of(Capability(*cc), "test") if cc else Fact.unknown("test")
    return Gpu(index, Fact.of(f"card {index}", "test"), Fact.of(uuid, "test"), capability=capability, **more)  # type: ignore[arg-type]


THREE = (card(0, "GPU-aa11"), card(1, "GPU-aa22"), card(2, "GPU-bb33"))
PARTS = tuple(
    MigSlice(i, Fact.of("1g", "t"), Fact.of(f"MIG-{i}{i}", "t"), Fact.of(i + 3, "t"), Fact.of(0, "t")) for i in (0, 1)
)
DIVIDED = card(0, "GPU-aa11", mig_enabled=Fact.of(True, "test"), mig=PARTS)


def seen(found: VisibleDevices) -> list[object]:
    return [d.gpu.index if d.mig is None else d.mig.uuid.value for d in found.devices]


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        (" ", []),
        (",0", []),
        ("-1", []),
        ("none", []),
        ("all", []),
        ("0x1", []),
        ("1.0", []),
        ("+1", []),
        ("२", []),  # a digit, but not one of CUDA's
        ("2,1,0", [2, 1, 0]),
        ("0,,1", [0]),
        ("0,abc,1", [0]),
        ("0,0", []),
        ("0,1,0,7", []),
        ("0,7,0", [0]),  # the list has ended before the repeat
        ("GPU-aa", []),  # of two cards
        ("GPU-aa1,GPU-b", [0, 2]),
        ("GPU-AA1", [0]),
        ("GPU-aa11,0", []),  # the same card by two names
        ("MIG-00", []),
        ("99999999999999999999", []),
    ],
)
def test_forms(value: str | None, indices: list[int]) -> None:
    assert seen(visible_devices(value, THREE)) == indices


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (None, ["MIG-00"]),  # one slice, never a sum
        ("0", ["MIG-00"]),
        ("MIG-11", ["MIG-11"]),
        ("MIG-11,MIG-00", ["MIG-11"]),
        ("MIG-GPU-aa11/4/0", ["MIG-11"]),
        ("MIG-GPU-aa11/9/0", []),
        ("MIG-", []),
        ("GPU-aa11", ["MIG-00"]),
    ],
)
def test_mig(value: str | None, want: list[str]) -> None:
    assert seen(visible_devices(value, (DIVIDED,))) == want


def test_mig_without_slices_and_beside_others() -> None:
    empty = card(0, "GPU-aa11", mig_enabled=Fact.of(True, "test"))
    assert seen(visible_devices(None, (empty,))) == []
    assert seen(visible_devices("0", (empty, THREE[1]))) == []
    assert seen(visible_devices(None, (DIVIDED, THREE[1]))) == [1]


def test_order() -> None:
    slow, fast = card(0, "GPU-aa11", (7, 5)), card(1, "GPU-bb22", (8, 9))
    assert seen(visible_devices("0", (slow, fast), "PCI_BUS_ID")) == [0]
    unknown = visible_devices("0", (slow, fast), "FASTEST_FIRST")
    assert not unknown.order_known
    assert visible_devices("GPU-bb", (slow, fast), "FASTEST_FIRST").order_known
    told = (card(0, "GPU-aa11", (7, 5), ordinal=Fact.of(1, "t")), card(1, "GPU-bb22", (8, 9), ordinal=Fact.of(0, "t")))
    found = visible_devices("0", told, "FASTEST_FIRST")
    assert found.order_known and seen(found) == [1]


def test_selection_skips_and_says_why() -> None:
    gpus = (card(0, "GPU-aa11", (6, 1)), card(1, "GPU-bb22"), card(2, "GPU-cc33", None))
    selection = select_devices(DeviceFacts("linux", False, Driver("ok", ""), gpus), {})
    assert [d.gpu.index for d in selection.usable] == [1]
    assert [(s.device.gpu.index, s.reason) for s in selection.skipped] == [
        (0, "below sm_80"),
        (2, "capability unknown"),
    ]


def test_engine_environment() -> None:
    usable = visible_devices("2,0", THREE).devices
    assert engine_environment(usable, {}) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-bb33,GPU-aa11",
    }
    assert engine_environment(usable, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}) == {
        "CUDA_VISIBLE_DEVICES": "GPU-bb33,GPU-aa11"
    }
    built_in = visible_devices(None, (Gpu(0),)).devices  # Orin has no UUID
    assert engine_environment(built_in, {}) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
