"""Which code runs where. The rules are those of the CUDA documentation, the rows are written by hand."""

from __future__ import annotations

import pytest

from coli.backends.targets import (
    Capability,
    DeviceCode,
    DriverLimits,
    decide_code,
    parse_capability,
    parse_target,
    serves,
)


@pytest.mark.parametrize(
    ("target", "yes", "no"),
    [
        ("sm_80", "8.0 8.6 8.9", "7.5 8.7 8.8 9.0 12.0"),
        ("sm_86", "8.6 8.9", "8.0 8.7 9.0"),
        ("sm_87", "8.7", "8.0 8.6 8.9"),
        ("sm_89", "8.9", "8.6 9.0"),
        ("sm_90", "9.0", "8.9 10.0"),
        ("sm_90a", "9.0", "10.0 12.0"),
        ("sm_100", "10.0 10.3", "10.1 11.0 12.0"),
        ("sm_100f", "10.0 10.3", "9.0 10.1 11.0 12.0"),
        ("sm_100a", "10.0", "10.3"),
        ("sm_103f", "10.3", "10.0"),
        ("sm_110", "11.0", "12.0"),
        ("sm_120", "12.0 12.1", "9.0 11.0"),
        ("sm_120a", "12.0", "12.1"),
        ("sm_120f", "12.0 12.1", "10.0"),
        ("sm_121", "12.1", "12.0"),
        ("compute_80", "8.0 8.7 8.9 9.0 11.0 12.1", "7.5"),
        ("compute_90", "9.0 10.0 12.0", "8.9"),
        ("compute_90a", "9.0", "10.0 12.0"),
        ("compute_120f", "12.0 12.1", "11.0"),
        ("compute_120a", "12.0", "12.1"),
    ],
)
def test_serves(target: str, yes: str, no: str) -> None:
    parsed = parse_target(target)
    assert str(parsed) == target
    for text, want in [(t, True) for t in yes.split()] + [(t, False) for t in no.split()]:
        device = parse_capability(text)
        assert device is not None and serves(parsed, device) is want, text


def code(*targets: str, toolkit: tuple[int, int] | None = (12, 8)) -> DeviceCode:
    return DeviceCode(tuple(map(parse_target, targets)), toolkit)


@pytest.mark.parametrize(
    ("device", "max_cuda", "path", "error", "target"),
    [
        ((8, 6), (12, 4), "machine-code", None, "sm_86"),
        ((8, 9), (12, 0), "machine-code", None, "sm_86"),
        ((8, 7), (12, 8), "jit", None, "compute_80"),  # a Tegra takes PTX only
        ((9, 0), (12, 8), "jit", None, "compute_80"),
        ((9, 0), (12, 4), "none", 222, "compute_80"),
        ((9, 0), (13, 0), "jit", None, "compute_80"),
        ((9, 0), None, "unknown", None, "compute_80"),
        ((7, 5), (12, 8), "none", 209, None),
        ((8, 0), None, "machine-code", None, "sm_80"),
        (None, (12, 8), "unknown", None, None),
    ],
)
def test_paths(
    device: tuple[int, int] | None, max_cuda: tuple[int, int] | None, path: str, error: int | None, target: str | None
) -> None:
    library = code("sm_80", "sm_86", "compute_80")
    found = decide_code(library, Capability(*device) if device else None, DriverLimits(max_cuda))
    assert (found.path, found.error) == (path, error)
    assert (found.target and str(found.target)) == target
    assert found.works == (path in ("machine-code", "jit"))


def test_nearest_code_wins() -> None:
    newest = DriverLimits((13, 0))
    found = decide_code(code("sm_120", "sm_120a", "compute_120"), Capability(12, 0), newest)
    assert str(found.target) == "sm_120a"
    found = decide_code(code("sm_120", "sm_120a", "compute_120"), Capability(12, 1), newest)
    assert str(found.target) == "sm_120"
    assert decide_code(code("sm_90a"), Capability(12, 0), newest).error == 209
    assert decide_code(code(), Capability(8, 6), newest).error == 209
    assert decide_code(code("compute_80", toolkit=None), Capability(8, 6), newest).path == "unknown"


@pytest.mark.parametrize("text", ["", "86", "sm_", "sm_86b", "SM_86", "compute_8", "sm_86 ", "sm_86\n", "sm_12345"])
def test_no_target(text: str) -> None:
    with pytest.raises(ValueError, match="is no target"):
        parse_target(text)


def test_capabilities() -> None:
    assert parse_capability("8.6") == parse_capability(" 8,6 ") == Capability(8, 6)
    assert [parse_capability(text) for text in ("", "8", "[N/A]", "8.65", "a.b", "N/A")] == [None] * 6
