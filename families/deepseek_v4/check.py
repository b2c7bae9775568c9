"""What the engine would refuse of a checkpoint, found without an engine: geometry, types and shapes of all tensors."""

from __future__ import annotations

from typing import Any

from coli.engine.checkpoint import Checkpoint
from coli.errors import CheckpointError

from .config import Geometry
from .weights import check_dense, check_experts

__all__ = ["examine"]


def examine(config: dict[str, Any], checkpoint: Checkpoint) -> list[CheckpointError]:
    """Check a text config and the tensors under the family's own names; return the first problem of each kind."""
    try:
        geometry = Geometry.from_config(config, str(checkpoint.path / "config.json"))
    except CheckpointError as error:
        return [error]
    problems = []
    for check in (check_dense, check_experts):
        try:
            check(checkpoint, geometry)
        except CheckpointError as error:
            problems.append(error)
    return problems
