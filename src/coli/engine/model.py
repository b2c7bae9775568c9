"""An open model: checkpoint, tokenizer, engine and backend behind one object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from coli.backends.dispatch import Dispatcher
from coli.backends.loader import Loaded, load, workspace_bytes
from coli.engine.checkpoint import Checkpoint
from coli.engine.generation import TextStream, generate_ids
from coli.engine.host_cpu import default_threads
from coli.engine.host_memory import probe_host_memory, resident_bytes
from coli.engine.ledger import Item, Ledger
from coli.engine.sampling import Sampler, Sampling
from coli.engine.tokenizer import Tokenizer
from coli.errors import UsageError

__all__ = ["Model", "open_model"]

# Logits in float32 and what sampling makes of them in float64 (probabilities, order, sums), per vocabulary entry.
_BYTES_PER_LOGIT = 4 + 6 * 8
# What stays outside any limit that we set ourselves: other programs breathe, the page cache must not starve.
_RESERVE_SHARE = 16
_RESERVE_LEAST_BYTES = 512 << 20


class Model:
    """One model, one sequence at a time. Use as a context manager, or call close()."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        resolution: Any,
        tokenizer: Tokenizer | None,
        engine: Any,
        dispatcher: Dispatcher,
        loaded: Sequence[Loaded],
        ledger: Ledger,
        resources: ExitStack,
    ) -> None:
        self.checkpoint = checkpoint
        self.engine = engine
        self.resolution = resolution
        self._tokenizer = tokenizer
        self._dispatcher = dispatcher
        self._loaded = loaded
        self._ledger = ledger
        self._resources = resources
