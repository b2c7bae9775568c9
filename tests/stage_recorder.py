"""Record the stage calls of an open model: what went in, what came out, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from coli.backends import vectors
from coli.backends.abi import SLOTS
from coli.backends.dispatch import Dispatcher, Weight

_STAGES = {slot.name: slot for slot in SLOTS if slot.kind == "stage"}


@dataclass(frozen=True)
class StageCall:
    """One call: copies of the arguments before and after it, by name; ``where`` is what the engine was doing."""

    stage: str
    where: str
    before: dict[str, Any]
    after: dict[str, Any]

    def to_case(self) -> vectors.Case:
        """Return it as a case for the replay driver, with the bytes after the call as the expected ones."""
        return vectors.Case(self.stage, tuple(self._argument(a.type, a.name) for a in _STAGES[self.stage].arguments))

    def _argument(self, type_: str, name: str) -> vectors.Argument:
        value = self.before[name]
        if value is None or isinstance(value, (vectors.Weight, vectors.Weights)):
            return value
        if isinstance(value, np.ndarray):
            rows, cols = value.shape if value.ndim == 2 else (1, value.size)
            expected = None if type_.startswith("const ") else self.after[name].tobytes()
            return vectors.Matrix(int(value.dtype == np.int32), rows, cols, value.tobytes(), expected)
        if type_ == "float":
            return vectors.Floating(int(np.float32(value).view(np.uint32)))
        return vectors.Integer(int(value))


@contextmanager
def recorded_stages(dispatcher: Dispatcher) -> Iterator[list[StageCall]]:
    """Record every stage call inside the block."""
    calls: list[StageCall] = []
    originals = {name: getattr(dispatcher, name) for name in _STAGES}

    def recording(name: str) -> Any:
        names = [argument.name for argument in _STAGES[name].arguments]

        def stage(*arguments: Any) -> None:
            before = {key: _copy(value) for key, value in zip(names, arguments, strict=True)}
            originals[name](*arguments)
            after = {key: _copy(value) for key, value in zip(names, arguments, strict=True)}
            calls.append(StageCall(name, dispatcher.where, before, after))

        return stage

    for name in originals:
        setattr(dispatcher, name, recording(name))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(dispatcher, name, original)


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).copy()
    if isinstance(value, Weight):
        scales = b"" if value._scales is None else np.asarray(value._scales).tobytes()
        return vectors.Weight(int(value.format), value.rows, value.cols, np.asarray(value._codes).tobytes(), scales)
    return vectors.Weights(tuple(_copy(item) for item in value)) if isinstance(value, list) else value
