"""Double arithmetic of the host against values of arbitrary precision (mpmath)."""

from __future__ import annotations

import hashlib

import mpmath
import numpy as np
import pytest

from coli.backends import _host


@pytest.fixture(autouse=True)
def _precision() -> object:
    with mpmath.workdps(60):
        yield


def nearest(value: mpmath.mpf) -> np.float32:
    """Round once to float32."""
    mantissa, exponent = mpmath.frexp(value)
    bits = 24 if exponent > -126 else 24 - (-125 - exponent)
    scaled = mpmath.nint(mpmath.ldexp(mantissa, bits))  # ties to even
    return np.float32(float(mpmath.ldexp(scaled, exponent - bits)))


def test_rope_table_is_correctly_rounded() -> None:
    random = np.random.default_rng(5)
    frequencies = np.concatenate([10000.0 ** (-np.arange(0, 64, 8) / 64), random.random(8) ** 4, [1.0, 0.0, 0.75]])
    positions = [0, 1, 2, 3, 127, 4095, 65_537, 999_983, 1_000_000, *random.integers(0, 1_000_000, 25).tolist()]
    for position in positions:
        cosine, sine = _host.rope_table(frequencies, position, 1, 1)
        for i, frequency in enumerate(frequencies.tolist()):
            angle = mpmath.mpf(position) * mpmath.mpf(frequency)
            assert cosine[0, i] == nearest(mpmath.cos(angle)), (position, frequency)
            assert sine[0, i] == nearest(mpmath.sin(angle)), (position, frequency)


def test_rope_near_multiples_of_half_pi() -> None:
    """The continued fraction of pi gives the positions with the smallest sines and cosines: all bits there cancel."""
    for position in (11, 22, 333, 355, 710, 103_993, 104_348, 208_341, 312_689, 833_719, 1_146_408, 80_143_857):
        cosine, sine = _host.rope_table(np.array([1.0, 0.5]), position, 1, 1)
        for i, frequency in enumerate((1.0, 0.5)):
            angle = mpmath.mpf(position) * frequency
            assert cosine[0, i] == nearest(mpmath.cos(angle)), position
            assert sine[0, i] == nearest(mpmath.sin(angle)), position


def test_rope_rows_follow_first_and_step() -> None:
    frequencies = np.array([0.3, 0.001])
    cosine, sine = _host.rope_table(frequencies, 7, 4, 5)
    assert cosine.shape == sine.shape == (5, 2)
    for i in range(5):
        one = _host.rope_table(frequencies, 7 + 4 * i, 1, 1)
        assert (cosine[i] == one[0][0]).all() and (sine[i] == one[1][0]).all()
    assert _host.rope_table(frequencies, 0, 1, 0)[0].shape == (0, 2)


@pytest.mark.parametrize(
    ("frequencies", "first", "count", "text"),
    [
        (np.ones((2, 2)), 0, 1, "one dimension"),
        (np.ones(2), 0, -1, "negative"),
        (np.array([np.nan]), 0, 1, "angle"),
        (np.array([1e30]), 1, 1, "angle"),
        (np.array([2.0]), 1 << 40, 1, "angle"),
        (np.ones(1), 1 << 60, 1, "position"),
    ],
)
def test_rope_refuses(frequencies: np.ndarray, first: int, count: int, text: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=text):
        _host.rope_table(frequencies, first, 1, count)


def test_exp_is_within_one_ulp() -> None:
    random = np.random.default_rng(9)
    x = np.concatenate(
        [
            random.uniform(-708, 709.7, 1500),
            random.uniform(-1, 1, 800),
            random.uniform(-40, 0, 800),
            [1e-300, -1e-17, 0.5],
        ]
    )
    worst = mpmath.mpf(0)
    for value, got in zip(x.tolist(), _host.exp(x).tolist(), strict=True):
        exact = mpmath.exp(mpmath.mpf(value))
        worst = max(worst, abs(mpmath.mpf(got) - exact) / mpmath.mpf(float(np.spacing(float(exact)))))
    assert worst < 0.6


def test_exp_at_the_borders() -> None:
    x = np.array([0.0, -0.0, 709.782712893384, 709.79, 1e308, np.inf, -745.1, -745.2, -1e308, -np.inf, np.nan])
    got = _host.exp(x).tolist()
    assert got[:2] == [1.0, 1.0]
    assert got[2] == float(mpmath.exp(mpmath.mpf(709.782712893384)))
    assert got[3:6] == [float("inf")] * 3
    assert got[6:10] == [5e-324, 0.0, 0.0, 0.0]
    assert np.isnan(got[10])
    assert _host.exp(np.zeros((2, 3, 0))).shape == (2, 3, 0)
    assert _host.exp(np.array(1.0)).shape == ()


def test_bits_are_those_of_every_machine() -> None:
    """A golden made once: a machine, compiler or flag that changes one bit shows here."""
    grid = np.arange(-4000, 4000) * 0.171875
    table = _host.rope_table(1.0 / (1.0 + 3.0 * np.arange(32)), 0, 997, 1000)
    digest = hashlib.sha256(_host.exp(grid).tobytes() + table[0].tobytes() + table[1].tobytes()).hexdigest()
    assert digest == "643097810eb6c8fa9d9cd8e2aa096d608d0c19971cbc6c81618b2dd0c1124622"
