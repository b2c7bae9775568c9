"""Where each stage of a model will run, and why: the dispatcher's rule on the loader's evidence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coli.backends.trace import CandidateTrace, Trace

__all__ = ["StageRow", "predict_stages"]


@dataclass(frozen=True)
class StageRow:
    """A stage, the name of the backend that will serve it, and the reason."""

    stage: str
    backend: str
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for `--json`."""
        return {"stage": self.stage, "backend": self.backend, "why": self.why}


def predict_stages(trace: Trace, stages: Sequence[str]) -> tuple[StageRow, ...]:
    """Return a row for each stage, none when no backend can be used.

    A call goes to the first backend of the chain that serves it; what a library serves, its canary told. The last one
    is a CPU backend, which serves all.
    """
    chain = [trace.candidates[index] for index in trace.chain]
    return tuple(_row(stage, chain, trace) for stage in stages) if chain else ()


def _row(stage: str, chain: Sequence[CandidateTrace], trace: Trace) -> StageRow:
    before: list[str] = []
    for backend in chain[:-1]:
        name = backend.candidate.name
        if stage in backend.stages:
            return StageRow(stage, name, f"on {', '.join(device.name for device in backend.devices) or 'its device'}")
        before.append(f"{name} leaves it to the CPU")
    last = chain[-1].candidate.name
    return StageRow(stage, last, "; ".join(before) or f"{last} serves every stage")
