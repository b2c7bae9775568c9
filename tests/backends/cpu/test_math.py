"""coli_math.h against float64, with and without the machine's fma."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

HEADER = Path(__file__).resolve().parents[3] / "backends" / "cpu" / "coli_math.h"
SOURCE = f"""
#include "{HEADER}"
#define EACH(name, ...) extern "C" void name(const float *a, const float *b, const float *c, float *y, long n) \\
  {{ for (long i = 0; i < n; ++i) y[i] = __VA_ARGS__; (void)b; (void)c; }}
EACH(exp_, coli_exp(a[i]))
EACH(sigmoid_, coli_sigmoid(a[i]))
EACH(softplus_, coli_softplus(a[i]))
EACH(fma_, coli_fma_soft(a[i], b[i], c[i]))
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("math")
    (folder / "math.cpp").write_text(SOURCE)
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run(["c++", *flags, str(folder / "math.cpp"), "-o", str(folder / "math.so")], check=True)
    return ctypes.CDLL(str(folder / "math.so"))


def call(functions: ctypes.CDLL, name: str, *inputs: NDArray[Any]) -> NDArray[np.float32]:
    arrays = [*inputs, *[inputs[0]] * (3 - len(inputs)), np.empty_like(inputs[0])]
    functions[name](*(ctypes.c_void_p(array.ctypes.data) for array in arrays), ctypes.c_long(len(inputs[0])))
    return arrays[3]


@pytest.mark.parametrize("name", ["exp_", "sigmoid_", "softplus_"])
def test_below_two_ulp(functions: ctypes.CDLL, name: str) -> None:
    random = np.random.default_rng(3)
    spread = 10.0 ** random.uniform(-30, 1.9, 100_000) * random.choice([-1.0, 1.0], 100_000)
    # -4.85: the worst of sigmoid; 88.7 and -103.9: the ends of exp.
    x = np.concatenate(
        [random.uniform(-103.9, 88.7, 200_000), spread, random.uniform(-4.9, -4.1, 100_000), [0.0, 88.7, -103.9]]
    )
    x = x[(x > -103.9) & (x < 88.7)].astype(np.float32)
    wide = x.astype(np.float64)
    e = np.exp(-np.abs(wide))
    wanted = {
        "exp_": np.exp(wide),
        "sigmoid_": np.where(wide < 0, e, 1.0) / (1 + e),
        "softplus_": np.maximum(wide, 0) + np.log1p(e),
    }[name]
    unit = np.spacing(wanted.astype(np.float32)).astype(np.float64)
    assert (np.abs(call(functions, name, x).astype(np.float64) - wanted) / unit).max() < 2


def test_ends(functions: ctypes.CDLL) -> None:
    x = np.array([-np.inf, -200, -104.1, 88.8, 200, np.inf, 0], np.float32)
    ends = np.array([0, 0, 0, np.inf, np.inf, np.inf, 1], np.float32)
    np.testing.assert_array_equal(call(functions, "exp_", x), ends)
    np.testing.assert_array_equal(call(functions, "sigmoid_", x)[[0, 5, 6]], np.array([0, 1, 0.5], np.float32))
    np.testing.assert_array_equal(call(functions, "softplus_", x)[[0, 4]], np.array([0, 200], np.float32))


def test_soft_fma_rounds_once(functions: ctypes.CDLL) -> None:
    a, b, c = (np.array([value], np.float32) for value in (97, 172961 * 2.0**-24, 2.0**-60))
    # 97 * 172961 = 2^24 + 1: a tie but for the addend, which pushes it up.
    assert call(functions, "fma_", a, b, c)[0] == np.float32(1 + 2.0**-23)
    assert call(functions, "fma_", a, b, -c)[0] == np.float32(1)
    # A subnormal result rounds once as well: 2^-149 * (1.5 +- a little).
    tiny = np.array([2.0**-100], np.float32), np.array([1.5 * 2.0**-49], np.float32)
    assert call(functions, "fma_", *tiny, np.array([-(2.0**-149)], np.float32))[0] == 0
