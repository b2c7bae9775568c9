"""The products of the fast mode: the kernels run by the CPU, cuBLASLt played by a library that the test compiles."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cases
import native
import numpy as np
import pytest
import reference
from cuda_building import build_fake_cublas, build_fast_shim
from numpy.typing import NDArray

BLACKWELL, HOPPER, AMPERE = 6, 7, (0, 1, 2)
REASON_SHAPE, REASON_MEMORY, REASON_DEVICE, REASON_LIBRARY, SITE_DEVICE = 2, 4, 5, 6, 105
E4M3 = reference.decode_e4m3(np.arange(127, dtype=np.uint8))  # ascending
NAMES = {native.FP8: "fast_matmul_fp8", native.FP4: "fast_matmul_fp4"}


@dataclass(frozen=True)
class Fake:
    """The library that plays cuBLASLt, opened in this process as a host would make it findable."""

    library: ctypes.CDLL

    def count(self, which: int) -> int:
        """Return how many handles (0), descriptions (1) are alive, or products (2) were made."""
        self.library.fake_count.restype = ctypes.c_int64
        return int(self.library.fake_count(which))

    def operand(self, which: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return codes [rows, cols] and scales (as they lie) of the last product's weight (0) or activations (1)."""
        rows, cols = ctypes.c_int64(), ctypes.c_int64()
        function = self.library.fake_operand
        function.restype = ctypes.c_int64
        found: list[NDArray[np.uint8]] = []
        for scales in (0, 1):
            size = function(which, scales, None, ctypes.byref(rows), ctypes.byref(cols))
            bytes_ = np.zeros(size, np.uint8)
            function(which, scales, ctypes.c_void_p(bytes_.ctypes.data), ctypes.byref(rows), ctypes.byref(cols))
            found.append(bytes_)
        return found[0].reshape(rows.value, cols.value), found[1]


@pytest.fixture(scope="session")
def fast_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fast_shim(tmp_path_factory.mktemp("fast"))


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    return Fake(ctypes.CDLL(str(build_fake_cublas(tmp_path_factory.mktemp("cublas")))))


@pytest.fixture
def context(fast_path: Path, fake: Fake) -> Iterator[native.Context]:
    with native.Context(native.Library(fast_path), device=BLACKWELL) as made:
        yield made
    assert (fake.count(0), fake.count(1)) == (0, 0)  # nothing is left behind


def rounded(x: NDArray[np.float32], groups: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float64]]:
    """Round rows of x by the rule of coli_slots.inc: codes, scale codes [tokens, groups, runs], and the values."""
    tokens, cols = len(x), x.shape[1] // groups
    runs = -(-cols // 32)
    padded = np.zeros((tokens, groups, runs * 32), np.float32)
    padded[..., :cols] = x.reshape(tokens, groups, cols)
    run = padded.reshape(tokens, groups, runs, 32)
    amax = np.maximum(np.abs(run).max(-1), np.float32(1e-4)) * np.float32(1 / 448)
    mantissa, exponent = np.frexp(amax)
    scale = np.where(mantissa == 0.5, exponent - 1, exponent).astype(np.int64)  # ceil(log2(amax))
    quotient = np.minimum(np.abs(run.astype(np.float64)) * np.exp2(-scale.astype(np.float64))[..., None], 448)
    high = np.searchsorted(E4M3, quotient)
    low = np.maximum(high - 1, 0)
    below, above = quotient - E4M3[low], E4M3[high] - quotient
    pick = np.where((above < below) | ((above == below) & (high % 2 == 0)), high, low)
    codes = (pick | (np.signbit(run) << 7)).astype(np.uint8)
    values = np.copysign(E4M3[pick], run) * np.exp2(scale.astype(np.float64))[..., None]
    values = values.reshape(tokens, groups, runs * 32)[..., :cols].reshape(tokens, groups * cols)
    return codes.reshape(tokens, groups, runs * 32), (scale + 127).astype(np.uint8), values


def tiled(scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Lay scale codes [rows, runs] out in tiles of 128 rows by 4 runs; what fills them up is 127."""
    rows, runs = scales.shape
    bands, tiles = -(-rows // 128), -(-runs // 4)
    whole = np.full((bands * 128, tiles * 4), 127, np.uint8)
    whole[:rows, :runs] = scales
    # A tile [4 blocks of 32 rows, 32 rows, 4 runs] becomes [32, 4, 4]; tiles of a band follow each other.
    return whole.reshape(bands, 4, 32, tiles, 4).transpose(0, 3, 2, 1, 4).reshape(-1)


def expected_product(spec: cases.WeightSpec, values: NDArray[np.float64], groups: int) -> NDArray[np.float64]:
    weight = reference.decode_weight(spec.format, spec.rows, spec.cols, spec.codes, spec.scales)
    parts = weight.reshape(groups, spec.rows // groups, spec.cols)
    x = values.reshape(len(values), groups, spec.cols)
    return np.einsum("gro,tgo->tgr", parts, x).reshape(len(values), spec.rows)


# format, rows, cols, tokens, groups: whole tiles, seams of tiles and runs, a short last run, rows that need filling up.
SHAPES = [
    (native.FP8, 256, 256, 16, 1),
    (native.FP8, 16, 32, 1, 1),
    (native.FP8, 272, 160, 130, 1),
    (native.FP8, 5, 100, 3, 1),
    (native.FP8, 17, 47, 2, 1),
    (native.FP8, 96, 64, 5, 3),
    (native.FP4, 128, 128, 4, 1),
    (native.FP4, 37, 96, 7, 1),
    (native.FP4, 144, 1056, 2, 1),
    (native.FP4, 64, 32, 33, 4),
]


@pytest.mark.parametrize(("format", "rows", "cols", "tokens", "groups"), SHAPES)
def test_product_of_the_rounded_operands(
    context: native.Context, fake: Fake, format: int, rows: int, cols: int, tokens: int, groups: int
) -> None:
    make = cases.Maker(rows + cols)
    spec = make.weight(format, rows, cols)
    x = make.floats(tokens, groups * cols)
    x *= np.exp2(make.rng.integers(-20, 20, x.shape)).astype(np.float32)
    x[0, :3] = [-0.0, 1e-40, 0.0]
    y = np.full((tokens, rows), 7, np.float32)
    context.stage(NAMES[format], context.weight(format, rows, cols, spec.codes, spec.scales), x, groups, y)
    codes, scales, values = rounded(x, groups)
    want = expected_product(spec, values, groups)
    scale = expected_product(spec, np.abs(values), groups)  # not a bound of the sum: of its largest terms
    assert np.abs(y - want).max() <= 2.0**-23 * np.abs(scale).max()
    np.testing.assert_allclose(y, want, rtol=2.0**-23, atol=0)

    got, got_scales = fake.operand(1)  # the last group's activations
    assert got.shape == (-(-tokens // 16) * 16, codes.shape[2])
    np.testing.assert_array_equal(got[:tokens], codes[:, -1])
    assert not got[tokens:].any()
    np.testing.assert_array_equal(got_scales, tiled(scales[:, -1]))

    group_rows = rows // groups
    got, got_scales = fake.operand(0)
    np.testing.assert_array_equal(
        reference.decode_e4m3(got[:group_rows, :cols]),
        reference.decode_weight(format, rows, cols, spec.codes, np.full_like(spec.scales, 127))[-group_rows:],
    )
    assert not got[group_rows:].any() and not got[:, cols:].any()
    assert spec.scales is not None
    of_runs = spec.scales if format == native.FP4 else np.repeat(np.repeat(spec.scales, 128, 0)[:rows], 4, 1)
    np.testing.assert_array_equal(got_scales, tiled(of_runs[-group_rows:, : -(-cols // 32)]))


def test_rounding_at_its_seams(context: native.Context, fake: Fake) -> None:
    runs: list[NDArray[np.float32]] = []
    for top in (448.0, 449.0, 447.9, 0.0, 1e-5, 3e38, 2.0**-100, 1.0):
        run = np.zeros(32, np.float32)
        run[0] = top
        runs.append(run)
    middles = (E4M3[:-1] + E4M3[1:]) / 2  # every tie, each with its neighbours
    every = np.concatenate([E4M3, middles, np.nextafter(middles, 0), np.nextafter(middles, 1e9)])
    every = np.concatenate([every, np.zeros(-len(every) % 31)]).reshape(-1, 31)
    runs += [np.concatenate([[448], row]).astype(np.float32) for row in every]  # 448: the scale is 1
    x = np.concatenate(runs).reshape(1, -1)
    x = np.concatenate([x, -x])
    weight = np.zeros((16, x.shape[1]), np.uint8)
    bound = context.weight(native.FP8, 16, x.shape[1], weight, np.full((1, -(-x.shape[1] // 128)), 127, np.uint8))
    context.stage("fast_matmul_fp8", bound, x, 1, np.zeros((2, 16), np.float32))
    codes, scales, _ = rounded(x, 1)
    got, got_scales = fake.operand(1)
    np.testing.assert_array_equal(got[:2], codes[:, 0])
    np.testing.assert_array_equal(got_scales, tiled(scales[:, 0]))
    # By hand: the largest of a run is 448, 449, nothing, and 1: scales 2^0, 2^1, 2^-22 (1e-4/448), 2^-8.
    assert [int(scales[0, 0, run]) for run in (0, 1, 3, 7)] == [127, 128, 105, 119]
    assert [int(codes[0, 0, 32 * run]) for run in (0, 1, 3, 7)] == [0x7E, 0x76, 0x00, 0x78]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_run_that_is_not_finite_makes_its_sums_nan(context: native.Context, bad: float) -> None:
    make = cases.Maker(3)
    spec, x = make.weight(native.FP4, 16, 96), make.floats(3, 96)
    x[1, 40] = bad
    y = np.zeros((3, 16), np.float32)
    context.stage("fast_matmul_fp4", context.weight(native.FP4, 16, 96, spec.codes, spec.scales), x, 1, y)
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()


def test_a_nan_code_of_the_weight_stays_one(context: native.Context) -> None:
    codes = np.full((16, 32), 0x38, np.uint8)
    codes[3, 5] = 0xFF
    y = np.zeros((1, 16), np.float32)
    weight = context.weight(native.FP8, 16, 32, codes, np.full((1, 1), 127, np.uint8))
    context.stage("fast_matmul_fp8", weight, np.ones((1, 32), np.float32), 1, y)
    assert np.isnan(y[0, 3]) and (np.delete(y[0], 3) == 32).all()


def test_weight_and_activations_come_in_pieces(context: native.Context, fake: Fake) -> None:
    """10 MiB of workspace hold 256 rows of this weight beside the scratch, and not all tokens of x, at a time."""
    make = cases.Maker(8)
    rows, cols, tokens = 400, 19968, 112
    spec, x = make.weight(native.FP4, rows, cols), make.floats(tokens, cols)
    before = fake.count(2)
    y = np.zeros((tokens, rows), np.float32)
    context.stage("fast_matmul_fp4", context.weight(native.FP4, rows, cols, spec.codes, spec.scales), x, 1, y)
    weight = reference.decode_weight(native.FP4, rows, cols, spec.codes, spec.scales)
    want = rounded(x, 1)[2] @ weight.T
    assert np.abs(y - want).max() <= 2.0**-23 * np.abs(want).max()
    assert fake.count(2) - before == 2


def test_matrices_on_the_device(context: native.Context) -> None:
    make = cases.Maker(9)
    spec, x = make.weight(native.FP8, 40, 64), make.floats(3, 64)
    weight, want = context.weight(native.FP8, 40, 64, spec.codes, spec.scales), np.zeros((3, 40), np.float32)
    context.stage("fast_matmul_fp8", weight, x, 1, want)
    data, y = ctypes.c_void_p(), np.zeros((3, 40), np.float32)
    context.service("buffer_create", ctypes.c_uint64(4 * 3 * (70 + 50)), ctypes.byref(data))
    assert data.value
    x_there = native.Matrix(data.value, 3, 64, 70, 0, 1)
    y_there = native.Matrix(data.value + 4 * 3 * 70, 3, 40, 50, 0, 1)
    context._call("buffer_copy", context.handle, None, ctypes.byref(native.matrix(x)), ctypes.byref(x_there))
    context.stage("fast_matmul_fp8", weight, x_there, 1, y_there)
    context._call("buffer_copy", context.handle, None, ctypes.byref(y_there), ctypes.byref(native.matrix(y)))
    assert y.tobytes() == want.tobytes()


def test_other_devices_decline(fast_path: Path, fake: Fake) -> None:
    make = cases.Maker(10)
    spec, x = make.weight(native.FP8, 16, 32), make.floats(1, 32)
    for device in AMPERE:
        y = np.full((1, 16), 7, np.float32)
        with native.Context(native.Library(fast_path), device=device) as context:
            weight = context.weight(native.FP8, 16, 32, spec.codes, spec.scales)
            with pytest.raises(native.Refused, match=r"compute capability 8\.6; block scaling") as refused:
                context.stage("fast_matmul_fp8", weight, x, 1, y)
        assert (refused.value.status, refused.value.code) == (native.DECLINED, REASON_DEVICE)
        assert (y == 7).all()


def test_refusals_leave_the_result_alone(context: native.Context, fake: Fake) -> None:
    make = cases.Maker(11)
    spec, x, y = make.weight(native.FP8, 48, 64), make.floats(2, 64), np.full((2, 48), 7, np.float32)
    weight = context.weight(native.FP8, 48, 64, spec.codes, spec.scales)

    def refused(*values: object, status: int = native.DECLINED, code: int = REASON_SHAPE) -> str:
        with pytest.raises(native.Refused) as caught:
            context.stage("fast_matmul_fp8", *values)
        assert (caught.value.status, caught.value.code) == (status, code)
        assert (y == 7).all()
        return caught.value.text

    fake.library.fake_next(-1)
    assert (
        refused(weight, x, 1, y) == "libcublasLt.so.13 has no block-scaled product of 16 tokens, 48 rows and 64 columns"
    )
    fake.library.fake_next(13)
    text = refused(weight, x, 1, y, status=native.FAILED, code=SITE_DEVICE)
    assert text == "block-scaled product: cuBLAS error 13 (CUBLAS_STATUS_EXECUTION_FAILED)"
    assert (
        refused(weight, np.zeros((2, 128), np.float32), 2, y) == "2 groups of 24 rows, expected a multiple of 16 rows"
    )
    empty = context.weight(native.FP8, 48, 0, np.zeros((48, 0), np.uint8), np.zeros((1, 0), np.uint8))
    assert refused(empty, np.zeros((2, 0), np.float32), 1, y) == "a weight without columns"
    many = np.zeros((60000, 64), np.float32)
    text = refused(weight, many, 1, np.zeros((60000, 48), np.float32), code=REASON_MEMORY)
    assert text.startswith("60000 tokens need 15") and text.endswith("bytes of workspace, it has 10485760")
    assert refused(weight, x[:, :63], 1, y, status=native.FAILED, code=101) == "x has 63 cols, expected 64"
    context.stage("fast_matmul_fp8", weight, x, 1, y)  # and it still serves
    assert not (y == 7).any()


ALONE = r"""
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import native, numpy as np
from coli.backends._probe import open_library
if sys.argv[3]:
    open_library(pathlib.Path(sys.argv[3]))
with native.Context(native.Library(sys.argv[2]), device=int(sys.argv[4])) as context:
    weight = context.weight(native.FP8, 16, 32, np.zeros((16, 32), np.uint8), np.full((1, 1), 127, np.uint8))
    y = np.full((1, 16), 7, np.float32)
    for _ in range(2):
        try:
            context.stage("fast_matmul_fp8", weight, np.ones((1, 32), np.float32), 1, y)
            print("served", y.tolist())
        except native.Refused as refused:
            print(refused.status, refused.code, (y == 7).all(), refused.text)
    context.stage("matmul_fp8", weight, np.ones((1, 32), np.float32), 1, y)
    print("exact", y.any())
"""


def ask_alone(fast_path: Path, cublas: Path | None, device: int) -> list[str]:
    """Call the stage twice, then the exact one, in a process of its own: an opened library stays in a process."""
    here = str(Path(native.__file__).parent)
    words = [sys.executable, "-c", ALONE, here, str(fast_path), str(cublas or ""), str(device)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second, exact = done.stdout.splitlines()
    assert first == second and exact == "exact False"
    return first.split(" ", 3)


def test_opened_by_its_path_it_is_found_by_its_name(fast_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "site packages ü"
    folder.mkdir()
    assert ask_alone(fast_path, build_fake_cublas(folder), BLACKWELL)[0] == "served"


DISPATCHED = r"""
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from coli.backends._probe import open_library, query_table
from coli.backends.abi.structs import workspace_bytes
from coli.backends.dispatch import Dispatcher, Format
from coli.backends.loader import Opened
from coli.errors import StageError
path, cublas, told = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), []
def is_open():
    return str(cublas) in pathlib.Path("/proc/self/maps").read_text()
opened = Opened("cuda-shim", path, query_table(open_library(path)))
with Dispatcher([opened], 1, workspace_bytes(1), told.append, cublas) as stages:
    x, y = np.ones((1, 32), np.float32), np.zeros((1, 16), np.float32)
    codes, scales = np.full((16, 32), 0x38, np.uint8), np.full((1, 1), 127, np.uint8)
    weight = stages.bind("w", Format.FP8_BLOCK, 16, 32, codes, scales)
    fp4 = stages.bind("v", Format.FP4_GROUP, 16, 32, codes[:, :16].copy(), np.full((16, 1), 127, np.uint8))
    assert stages.upload(weight) and stages.upload(fp4)
    stages.matmul_fp8(weight, x, 1, y)
    print(y[0, 0], is_open())
    for stage, of in (("fast_matmul_fp8", weight), ("fast_matmul_fp4", fp4), ("fast_matmul_fp8", weight)):
        try:
            getattr(stages, stage)(of, x, 1, y)
        except StageError as error:
            print(error.code, is_open())
    print([(one.stage, one.backend == str(cublas), one.reason) for one in told])
"""


def dispatch(fast_path: Path, cublas: Path) -> list[str]:
    words = [sys.executable, "-c", DISPATCHED, str(Path(native.__file__).parent), str(fast_path), str(cublas)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_dispatcher_opens_it_before_the_first_fast_product(fast_path: Path, tmp_path: Path) -> None:
    exact, *fast, told = dispatch(fast_path, build_fake_cublas(tmp_path))
    assert exact == "32.0 False"  # 32 products of 1, and the file is not open yet
    assert fast == ["stage.unserved True"] * 3  # the shim's first device is of 8.6
    assert told == "[]"


def test_the_dispatcher_tells_once_that_it_does_not_open(fast_path: Path, tmp_path: Path) -> None:
    (tmp_path / "libcublasLt.so.13").write_bytes(b"")
    _, *fast, told = dispatch(fast_path, tmp_path / "libcublasLt.so.13")
    assert fast == ["stage.unserved False"] * 3
    assert told == f"[('fast_matmul_fp8', True, '{tmp_path}/libcublasLt.so.13: file too short')]"


@pytest.mark.parametrize(
    ("options", "device", "reason", "text"),
    [
        (
            None,
            BLACKWELL,
            REASON_LIBRARY,
            "libcublasLt.so.13 cannot be opened: libcublasLt.so.13: cannot open shared object file: "
            "No such file or directory",
        ),
        (
            ("-DFAKE_VERSION=120604",),
            BLACKWELL,
            REASON_LIBRARY,
            "libcublasLt.so.13 is cuBLAS 12.6.4, expected 13.0 or a later one of that major",
        ),
        (("-DFAKE_LACKS",), BLACKWELL, REASON_LIBRARY, "libcublasLt.so.13 has no cublasLtMatmul"),
        (
            (),
            HOPPER,
            REASON_DEVICE,
            "device 7 has compute capability 9.0; block scaling in tensor cores needs 10.0 or later",
        ),
    ],
)
def test_what_is_missing_is_named(
    fast_path: Path, tmp_path: Path, options: tuple[str, ...] | None, device: int, reason: int, text: str
) -> None:
    cublas = None if options is None else build_fake_cublas(tmp_path, *options)
    status, code, untouched, said = ask_alone(fast_path, cublas, device)
    assert (int(status), int(code), untouched, said) == (native.DECLINED, reason, "True", text)


def test_its_stages_are_there(fast_path: Path) -> None:
    library = native.Library(fast_path)
    assert all(library.slots[name].function for name in ("fast_matmul_fp8", "fast_matmul_fp4"))
    for _, _, name, arguments in native.slot_list():
        assert library.slots[name].signature == native.signature(f"{name}({arguments})")
