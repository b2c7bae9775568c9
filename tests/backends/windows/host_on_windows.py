"""Runs on Windows: the host extension, the dispatcher and the loaded backend compute. Prints one JSON document.

python host_on_windows.py LIBRARIES VECTORS INPUT OUTPUT: replays a vector file through the dispatcher, and writes what
the host's own double code gives for INPUT (an .npz with x, frequencies) to OUTPUT.
"""

# ruff: noqa: E402  numpy cannot be imported before the runtime is complete

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, "C:\\site")


# An _Fcomplex is a structure of two floats and comes in rcx: movd xmm0, ecx; ret. And: shift it by 32 first.
_STUBS = {"crealf": "66 0f 6e c1 c3", "cimagf": "48 89 c8 48 c1 e8 20 66 0f 6e c0 c3"}


def complete_runtime() -> None:
    """Write into wine 8's C runtime the functions that numpy calls when it is imported and that are stubs there."""
    if not hasattr(ctypes.WinDLL("ntdll"), "wine_get_version"):
        return
    for name, text in _STUBS.items():
        code, before = bytes.fromhex(text), ctypes.c_uint32()
        address = ctypes.cast(getattr(ctypes.WinDLL("ucrtbase"), name), ctypes.c_void_p)
        if not ctypes.WinDLL("kernel32").VirtualProtect(address, len(code), 0x40, ctypes.byref(before)):
            raise ctypes.WinError()
        ctypes.memmove(address, code, len(code))


complete_runtime()

import numpy as np

from coli.backends import _host, loader, vectors
from coli.backends.abi.structs import workspace_bytes
from coli.backends.candidates import Search
from coli.backends.dispatch import Dispatcher


def argument(dispatcher: Dispatcher, value: Any) -> Any:
    """Return an argument of a recorded call as the dispatcher takes it."""
    if isinstance(value, vectors.Integer):
        return value.value
    if isinstance(value, vectors.Floating):
        return float(np.uint32(value.bits).view(np.float32))
    if isinstance(value, vectors.Matrix):
        kind = np.int32 if value.type else np.float32
        return np.frombuffer(bytearray(value.data), kind).reshape(value.rows, value.cols)
    if isinstance(value, vectors.Weight):
        codes, scales = np.frombuffer(value.codes, np.uint8), np.frombuffer(value.scales, np.uint8)
        return dispatcher.bind("w", value.format, value.rows, value.cols, codes, scales if len(scales) else None)
    return [argument(dispatcher, item) for item in value.items] if isinstance(value, vectors.Weights) else value


def main(libraries: Path, file: Path, given: Path, out: Path) -> dict[str, Any]:
    """Load the best library and replay."""
    loaded = loader.load(search=Search(package_folder=libraries, environment=dict(os.environ)))
    equal: Counter[str] = Counter()
    differing: list[str] = []
    for case in vectors.read_vectors(file.read_bytes()):
        with Dispatcher(loaded.chain, 2, workspace_bytes(2)) as dispatcher:
            values = [argument(dispatcher, value) for value in case.arguments]
            getattr(dispatcher, case.stage)(*values)
            for value, recorded in zip(values, case.arguments, strict=True):
                if isinstance(recorded, vectors.Matrix) and recorded.expected is not None:
                    if value.tobytes() == recorded.expected:
                        equal[case.stage] += 1
                    else:
                        differing.append(case.stage)
    inputs = np.load(given)
    cosine, sine = _host.rope_table(inputs["frequencies"], 7, 3, 1000)
    np.savez(out, exp=_host.exp(inputs["x"]), cosine=cosine, sine=sine)
    return {
        "backend": loaded.name,
        "library": _host.Library(loaded.address).name,
        "equal": equal,
        "differing": differing,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*map(Path, sys.argv[1:]))))
