"""Where each stage of a model will run, and why: the dispatcher's rule on the loader's evidence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coli.backends.trace import CandidateTrace, Trace
from coli.engine.budget import Demand, Product

__all__ = ["StageRow", "predict_stages"]


@dataclass(frozen=True)
class StageRow:
    """A stage, the name of a backend that will serve it, and the reason.

    ``weights`` of the ``of`` weights that the stage multiplies by are served there; None for a stage without any, and
    where the model's weights are not known.
    """

    stage: str
    backend: str
    why: str
    weights: int | None = None
    of: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for `--json`."""
        return {"stage": self.stage, "backend": self.backend, "why": self.why, "weights": self.weights, "of": self.of}


def predict_stages(
    trace: Trace, stages: Sequence[str], demand: Demand | None = None, copies: frozenset[str] = frozenset()
) -> tuple[StageRow, ...]:
    """Return a row for each stage and backend that will serve it, none when no backend can be used.

    A call goes to the first backend of the chain that serves it; what a library serves, its canary told. A device
    serves a product only with weights that have a copy there: ``copies`` names the items that the plan puts on it.
    The last backend is a CPU's, which serves all. Without ``demand`` every weight counts as one that has a copy.
    """
    chain = [trace.candidates[index] for index in trace.chain]
    if not chain:
        return ()
    products: dict[str, list[Product]] = {}
    for one in demand.products if demand is not None else ():
        products.setdefault(one.stage, []).append(one)
    idle = demand.idle_stages if demand is not None else frozenset()
    return tuple(
        row for stage in stages if stage not in idle for row in _rows(stage, chain, products.get(stage, ()), copies)
    )


def _rows(
    stage: str, chain: Sequence[CandidateTrace], products: Sequence[Product], copies: frozenset[str]
) -> list[StageRow]:
    last = chain[-1].candidate.name
    count = len(products) or None
    before: list[str] = []
    for backend in chain[:-1]:
        name = backend.candidate.name
        place = ", ".join(device.name for device in backend.devices) or "its device"
        if stage not in backend.stages:
            before.append(f"{name} leaves it to the CPU")
            continue
        if not products:
            return [StageRow(stage, name, f"on {place}")]
        # Only the first device of a chain gets copies; with one it serves, without one the CPU does.
        held = sum(one.copy is not None and one.copy.name in copies for one in products)
        if held == count:
            return [StageRow(stage, name, f"on {place}", count, count)]
        if held:
            rest = f"no room on {place} for these weights"
            return [
                StageRow(stage, name, f"on {place}", held, count),
                StageRow(stage, last, rest, len(products) - held, count),
            ]
        before.append(f"no room on {place} for its weights")
    return [StageRow(stage, last, "; ".join(before) or f"{last} serves every stage", count, count)]
