"""Caches and scratch of a DeepSeek V4 engine, allocated in the shapes of `budget`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from coli.engine.memory import aligned_matrix

from .budget import activation_shapes, state_shapes
from .config import Geometry

__all__ = ["LayerState", "Scratch", "new_states"]

Floats = npt.NDArray[np.float32]
_INTEGERS = frozenset({"picks", "selected"})


class LayerState:
    """Raw ring, compressed entries and open windows of a layer. Positions say what is valid; nothing is cleared."""

    __slots__ = (
        "entries",
        "gate_state",
        "index_entries",
        "index_gate_state",
        "index_kv_state",
        "kv_state",
        "ring",
    )

    def __init__(self, shapes: dict[str, tuple[int, int]]) -> None:
        for name in self.__slots__:
            shape = shapes.get(name)
            setattr(self, name, None if shape is None else aligned_matrix(*shape))

    ring: Floats
    entries: Floats
    kv_state: Floats
    gate_state: Floats
    index_entries: Floats
    index_kv_state: Floats
    index_gate_state: Floats


def new_states(geometry: Geometry, context: int, chunk: int) -> list[LayerState]:
    """Allocate the caches of every layer."""
    return [LayerState(state_shapes(geometry, layer, context, chunk)) for layer in range(geometry.layers)]


class Scratch:
    """Activation matrices for at most `chunk` tokens; `rows(t)` gives the views for t tokens."""

    def __init__(self, geometry: Geometry, context: int, chunk: int) -> None:
        self._whole = {
            name: _zeros(shape, np.int32 if name in _INTEGERS else np.float32)
            for name, shape in activation_shapes(geometry, context, chunk).items()
        }
        self._views: dict[int, SimpleNamespace] = {}

    def rows(self, tokens: int) -> Any:
        """Return a namespace of [tokens, cols] views, made once per size (decode asks for one token each time)."""
        views = self._views.get(tokens)
        if views is None:
            # "scores" is a tile of its own height, cut to columns by its user.
            views = SimpleNamespace(**{name: a if name == "scores" else a[:tokens] for name, a in self._whole.items()})
            if len(self._views) > 4:
                self._views.clear()
            self._views[tokens] = views
        return views


def _zeros(shape: tuple[int, int], dtype: type[Any]) -> npt.NDArray[Any]:
    """Return a matrix whose pages are there: a short prompt then needs the memory that a long one does."""
    matrix = aligned_matrix(*shape, dtype)
    matrix.fill(0)
    return matrix
