from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT_F32: int
FORMAT_BF16: int
FORMAT_FP8_BLOCK: int
FORMAT_FP4_GROUP: int
SITE_ARGUMENT: int
SITE_NONFINITE: int
SITE_SCALE: int
SITE_MEMORY: int
SITE_DEVICE: int

class Declined(Exception):
    code: int
    text: str

class Failed(Exception):
    code: int
    text: str

class Library:
    def __init__(self, table_address: int) -> None: ...
    @property
    def name(self) -> str: ...

class Context:
    def __init__(self, library: Library, threads: int, workspace_bytes: int) -> None: ...
    def device_info(self) -> dict[str, Any]: ...
    def memory_info(self) -> dict[str, int]: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    # The stages, one method each, positional arguments as in coli_slots.inc.
    def __getattr__(self, stage: str) -> Callable[..., None]: ...

class Weight:
    def __init__(
        self, context: Context, format: int, rows: int, cols: int, codes: object, scales: object | None = None
    ) -> None: ...
    def refill(self, codes: object, scales: object | None = None) -> None: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def format(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...

def rope_table(
    frequencies: NDArray[np.float64], first: int, step: int, count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
def exp(x: NDArray[np.float64]) -> NDArray[np.float64]: ...
