"""Show what the order of docs/numerics.md costs: ``python bench/orders/run.py [LIBRARY...] [--nvdisasm PATH]``.

For each library and format the share of the read bandwidth (one token) and of the fma peak (64 tokens), both limits
measured in the same run around each kernel; then, when nvcc is there, the machine code of the same loops for three GPU
architectures.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "backends"))
import native  # noqa: E402

from coli.backends.candidates import PACKAGE_LIB  # noqa: E402

THREADS = 2
COLS = 4096
FORMATS = {"fp4": (native.FP4, 0.5), "fp8": (native.FP8, 1.0), "bf16": (native.BF16, 2.0)}


def probe(folder: Path, level: str) -> ctypes.CDLL:
    """Compile orders.cpp for a level and load it."""
    bytes_, march = {"x86-64-v4": (64, "x86-64-v4"), "x86-64-v3": (32, "x86-64-v3")}[level]
    library = folder / f"probe-{level}.so"
    flags = ["-O3", "-std=c++17", "-ffp-contract=fast", f"-DBYTES={bytes_}", f"-march={march}", "-shared", "-fPIC"]
    wide = ["-mprefer-vector-width=512"] if bytes_ == 64 else []
    subprocess.run(
        [shutil.which("c++") or "c++", *flags, *wide, str(HERE / "orders.cpp"), "-o", str(library), "-lpthread"],
        check=True,
    )
    loaded = ctypes.CDLL(str(library))
    loaded.read_rate.restype = loaded.fma_rate.restype = ctypes.c_double
    loaded.read_rate.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int]
    return loaded


def measure(context: native.Context, limits: ctypes.CDLL, name: str) -> str:
    """Return one row of the table: the best of several rounds, limits and kernel in turn."""
    format_, size = FORMATS[name]
    random = np.random.default_rng(1)
    best = {"read": 0.0, "fma": 0.0, "matvec": 0.0, "batch": 0.0}
    rows = int((192 << 20) / (COLS * size))
    codes = random.integers(0, 256, int(rows * COLS * size), dtype=np.uint8)
    if format_ == native.FP8:
        codes &= 0xF7
    if format_ == native.BF16:
        codes = (codes.view(np.uint16) & 0x3FFF).view(np.uint8)
    shape = rows * COLS // 32 if format_ == native.FP4 else -(-rows // 128) * (COLS // 128)
    scales = None if format_ == native.BF16 else random.integers(120, 130, shape, dtype=np.uint8)
    weight = context.weight(format_, rows, COLS, codes, scales)
    part = rows // 16
    first = context.weight(
        format_,
        part // 128 * 128,
        COLS,
        codes[: int(part // 128 * 128 * COLS * size)],
        None
        if scales is None
        else scales[: part // 128 * 128 * COLS // 32 if format_ == native.FP4 else part // 128 * (COLS // 128)],
    )
    x = random.normal(size=(64, COLS)).astype(np.float32)
    y1, y64 = np.zeros((1, rows), np.float32), np.zeros((64, first.rows), np.float32)
    for _ in range(7):
        best["read"] = max(best["read"], limits.read_rate(codes.ctypes.data, codes.nbytes, THREADS))
        best["fma"] = max(best["fma"], limits.fma_rate(THREADS))
        start = time.perf_counter()
        context.stage(f"matmul_{name}", weight, x[:1], 1, y1)
        best["matvec"] = max(best["matvec"], codes.nbytes / (time.perf_counter() - start))
        start = time.perf_counter()
        context.stage(f"matmul_{name}", first, x, 1, y64)
        best["batch"] = max(best["batch"], 2.0 * 64 * first.rows * COLS / (time.perf_counter() - start))
    read, fma, matvec, batch = (best[key] / 1e9 for key in ("read", "fma", "matvec", "batch"))
    return (
        f"| {context.library.name} | {name} | {matvec:.1f} of {read:.1f} GB/s | {matvec / read:.0%} "
        f"| {batch:.0f} of {fma:.0f} GFLOP/s | {batch / fma:.0%} |"
    )


WEIGHTS = {"dot_fp4": 32, "dot_fp8": 16, "dot_bf16": 8}


def machine_code(folder: Path, nvcc: str, nvdisasm: str) -> list[str]:
    """Return rows of the table of GPU code: wide loads, and slots per weight of the longest loop body."""
    rows = []
    for arch in ("sm_80", "sm_90", "sm_120"):
        cubin = folder / f"{arch}.cubin"
        exact = ["--fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"]
        subprocess.run(
            [nvcc, f"-arch={arch}", "-cubin", "-O3", *exact, str(HERE / "orders.cu"), "-o", str(cubin)], check=True
        )
        text = subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
        for name, body in re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\.text\.|\Z)", text, re.MULTILINE | re.DOTALL):
            lines = re.findall(r"^(\.L_x_\d+):|/\*([0-9a-f]{4,5})\*/\s+(.*?)\s*;", body, re.MULTILINE)
            labels: dict[str, int] = {}
            code: list[str] = []
            loops: list[tuple[int, int]] = []
            for label, _, instruction in lines:
                if label:
                    labels[label] = len(code)
                    continue
                code.append(instruction)
                back = re.search(r"BRA.*`\((\.L_x_\d+)\)", instruction)
                if back and back[1] in labels:
                    loops.append((labels[back[1]], len(code)))
            if name == "not_contracted":
                kept = sum("FFMA" in line for line in code) == 0 and any("FMUL" in line for line in code)
                rows.append(f"| {arch} | a*b + c apart | {'FMUL, FADD' if kept else 'CONTRACTED'} | | |")
                continue
            begin, end = max((loop for loop in loops if loop[1] - loop[0] < 4000), key=lambda loop: loop[1] - loop[0])
            loop = code[begin:end]
            fma = sum("FFMA" in line for line in loop)
            wide, narrow = (
                sum("LDG.E.128" in line for line in loop),
                sum("LDG.E" in line and "128" not in line for line in loop),
            )
            extra = {"dot_fp4": 2 * 32 + 1, "dot_fp8": 2 * 16 + 1, "dot_bf16": 8}[
                name
            ]  # fma of one pass: products, decoding, factor
            passes = max(1, round(fma / extra))
            slots = len(loop) / (passes * WEIGHTS[name])
            loads = f"{wide // passes} x LDG.E.128, {narrow // passes} narrow a pass"
            rows.append(f"| {arch} | {name} | {loads} | {fma} FFMA in {passes} passes | {slots:.1f} |")
    return rows


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", type=Path, nargs="*", help="default: the installed x86-64-v4 and v3")
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm"))
    arguments = parser.parse_args()
    libraries = arguments.libraries or sorted(PACKAGE_LIB.glob("libcoli_cpu_x86_64_v*.so"), reverse=True)
    with tempfile.TemporaryDirectory() as folder:
        if libraries:
            print("| library | format | one token | share of read bandwidth | 64 tokens | share of fma peak |")
            print("|---|---|---|---|---|---|")
        for path in libraries:
            library = native.Library(path)
            limits = probe(Path(folder), library.name.removeprefix("cpu-"))
            for name in FORMATS:
                with native.Context(library, THREADS) as context:
                    print(measure(context, limits, name), flush=True)
        nvcc = shutil.which("nvcc")
        if nvcc is None or arguments.nvdisasm is None:
            print("GPU code: not run, needs nvcc and nvdisasm")
            return
        print("\n| architecture | loop | loads | fma | slots per weight |\n|---|---|---|---|---|")
        print("\n".join(machine_code(Path(folder), nvcc, arguments.nvdisasm)))


if __name__ == "__main__":
    main()
