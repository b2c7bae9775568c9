"""Choosing the next token: greedy, or drawn in a way that gives the same tokens on every machine.

Only operations with one defined result are used: comparison, stable sort, division, products, and sums in order
(`cumsum`; a plain `sum` adds in pairs, in an order that depends on the build). The exponential is given by the caller
for the same reason. The random numbers are Philox4x32-10 (Salmon et al., SC 2011): key = seed, counter = number of the
draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from coli.errors import CheckpointError, StageError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Exponential = Callable[[NDArray[np.float64]], NDArray[np.float64]]

__all__ = ["Sampler", "SamplingChoice", "SamplingOptions", "philox", "resolve_sampling", "uniform"]

_MASK = 0xFFFFFFFF
_LOWEST_EXPONENT = -50.0  # exp of it times any vocabulary is below 2^-53, the step of a draw


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return Philox4x32-10 of four counter words under two key words, 32 bits each."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & _MASK, (first >> 32) ^ c3 ^ k1, first & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, number: int) -> float:
    """Return draw ``number`` of a seed: a multiple of 2^-53 in [0, 1)."""
    words = philox((number & _MASK, (number >> 32) & _MASK, 0, 0), (seed & _MASK, (seed >> 32) & _MASK))
    return float((words[0] << 32 | words[1]) >> 11) * 2.0**-53


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen. Temperature 0: the best one; top_k 0, top_p 1, min_p 0 keep all. Raises UsageError."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        _require("temperature", self.temperature, "0 (greedy) to 100", lambda value: 0 <= value <= 100)
        _require("top_p", self.top_p, "above 0, at most 1", lambda value: 0 < value <= 1)
        _require("top_k", self.top_k, "0 (all) or more", lambda value: value >= 0, whole=True)
        _require("min_p", self.min_p, "0 to 1", lambda value: 0 <= value <= 1)
        _require("seed", self.seed, "0 to 2^64 - 1", lambda value: 0 <= value < 2**64, whole=True)


def _require(name: str, value: Any, expected: str, holds: Callable[[Any], bool], *, whole: bool = False) -> None:
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value) or not holds(value):
        raise UsageError(
            f"--{name.replace('_', '-')}",
            f"it must be {'a whole number, ' if whole else ''}{expected}",
            observed=repr(value),
            expected=expected,
            code=f"usage.{name.replace('_', '-')}",
        )


@dataclass(frozen=True)
class SamplingChoice:
    """Resolved options and, by name, where each value came from: `given`, `generation_config.json` or `default`."""

    options: SamplingOptions
    origins: dict[str, str]


def resolve_sampling(given: Mapping[str, Any], generation_config: Mapping[str, Any] | None) -> SamplingChoice:
    """Join what the user gave (None: not given) with generation_config.json.

    `do_sample: false` makes the file's choice greedy; `do_sample: true` without a temperature means 1. Raises
    UsageError for a value that was given, CheckpointError for one of the file.
    """
    source = "generation_config.json"
    file = generation_config or {}
    names = ("temperature", "top_p", "top_k", "min_p")
    chosen: dict[str, Any] = {name: file[name] for name in names if file.get(name) is not None}
    if file.get("do_sample") is False:
        chosen = {"temperature": 0.0}
    elif file.get("do_sample") is True:
        chosen.setdefault("temperature", 1.0)
    try:
        SamplingOptions(**chosen)
    except UsageError as error:
        name = error.subject.removeprefix("--").replace("-", "_")
        raise CheckpointError(
            f"{source}: {name}",
            error.rule,
            observed=error.observed,
            expected=error.expected,
            fix=f"correct the file, or give {error.subject}",
            code="checkpoint.generation-config",
        ) from error
    origins = {name: source if name in chosen else "default" for name in asdict(SamplingOptions())}
    for name, value in given.items():
        if value is not None:
            chosen[name] = value
            origins[name] = "given"
    return SamplingChoice(SamplingOptions(**chosen), origins)


class Sampler:
    """Choose tokens one after another; the n-th choice depends on the options, the seed, n and the logits only.

    ``exp``: float64 array to float64 array, the same bits on every machine.
    """

    def __init__(self, options: SamplingOptions, *, exp: Exponential) -> None:
        self._options = options
        self._exp = exp
        self._draws = 0

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """Return the id of the next token. ``logits``: [vocabulary]. Raises StageError for NaN or infinity.

        In this order: temperature (tokens e^50 times less likely than the best are dropped), the top_k best (ties to
        the lower id), softmax, the fewest best whose sum reaches top_p, those with at least min_p times the best's
        probability, one draw among the rest.
        """
        import numpy as np

        options = self._options
        if not np.isfinite(logits).all():
            raise StageError(
                "logits", "they must be finite", observed=f"token choice {self._draws}", code="stage.not-finite"
            )
        draw = uniform(options.seed, self._draws)
        self._draws += 1
        if options.temperature == 0:
            return int(np.argmax(logits))  # the first of equals
        values = np.asarray(logits, np.float64)
        with np.errstate(over="ignore"):  # a tiny temperature gives -infinity, which is dropped
            exponents = (values - values.max()) / options.temperature
        order = np.flatnonzero(exponents >= _LOWEST_EXPONENT)
        order = order[np.argsort(-values[order], kind="stable")]
        if options.top_k:
            order = order[: options.top_k]
        weights = self._exp(exponents[order])
        probabilities = weights / np.cumsum(weights)[-1]
        if options.top_p < 1:
            sums = np.cumsum(probabilities)
            probabilities = probabilities[: int(np.searchsorted(sums, options.top_p, side="left")) + 1]
        if options.min_p > 0:
            probabilities = probabilities[probabilities >= probabilities[0] * options.min_p]
        sums = np.cumsum(probabilities)
        index = int(np.searchsorted(sums, draw * sums[-1], side="right"))
        return int(order[min(index, len(sums) - 1)])
