"""What a checkpoint is and what is wrong with it: every problem of every file, by the engine's own readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coli.backends.devices.facts import UNKNOWN, Fact
from coli.families.config_facts import ConfigFacts
from coli.families.registry import Registry

__all__ = [
    "ChatFacts",
    "CheckpointFacts",
    "DeepFacts",
    "DtypeSum",
    "FamilyFacts",
    "HubState",
    "IndexFacts",
    "MirrorFacts",
    "Part",
    "Problem",
    "Progress",
    "RoleBytes",
    "ShardFacts",
    "Status",
    "TokenizerFacts",
    "probe_checkpoint",
]

Status = Literal["ok", "note", "warn", "fail"]
Part = Literal["location", "config", "family", "weights", "roles", "tokenizer", "chat", "values", "mirror"]
"""What a problem is about. `weights`: files, headers and index; `values`: what `deep` found in the data."""

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes to do."""


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it should be.

    ``code`` is stable (`checkpoint.truncated`, `family.unknown-type`); ``subject`` a file, tensor or key; ``data``
    holds names and numbers, for example ``missing_bytes``.
    """

    code: str
    status: Status
    part: Part
    subject: str
    summary: str
    evidence: str | None = None
    fix: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def kind(self) -> str:
        """Return the code without its section: `truncated`."""
        return self.code.partition(".")[2] or self.code


@dataclass(frozen=True)
class FamilyFacts:
    """The family of the config. ``found_by``: model_type or architectures; ``engine``: None for names only."""

    id: str
    name: str
    model_type: str
    found_by: str
    variant: str | None
    revision: str | None
    context: int | None
    engine: str | None
    provider: str
    capabilities: tuple[str, ...]
    why: tuple[str, ...]


@dataclass(frozen=True)
class ShardFacts:
    """One weight file that the model consists of. ``state``: `ok`, or the kind of its first problem.

    ``path`` is what is read, behind links; ``file_bytes`` None when the file is not there; ``tensors`` and
    ``data_bytes`` are None when its header cannot be read.
    """

    name: str
    state: str
    path: Path | None
    file_bytes: int | None
    header_bytes: int | None
    tensors: int | None
    data_bytes: int | None


@dataclass(frozen=True)
class IndexFacts:
    """model.safetensors.index.json: files and tensors that it names, and the bytes that it claims."""

    files: int
    tensors: int
    claimed_bytes: int | None


@dataclass(frozen=True)
class DtypeSum:
    """Tensors and bytes of one dtype."""

    dtype: str
    tensors: int
    nbytes: int


@dataclass(frozen=True)
class RoleBytes:
    """Tensors and bytes of one role (``scale_bytes`` of them scales); ``dtypes`` of its weights."""

    kind: str
    tensors: int
    nbytes: int
    scale_bytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class TokenizerFacts:
    """tokenizer.json. ``vocabulary``: one more than the highest id."""

    vocabulary: int


@dataclass(frozen=True)
class ChatFacts:
    """The chat format: ``module`` of the family that renders it, and the ``revision`` of the release."""

    module: str
    revision: str | None


@dataclass(frozen=True)
class HubState:
    """A repository in a Hugging Face cache. ``incomplete``: unfinished downloads, by file name and bytes present."""

    repository: str
    revision: str
    snapshots: tuple[str, ...]
    incomplete: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class MirrorFacts:
    """A copy of the weight files on another disk: the names that are ``same`` in size, ``missing``, ``different``."""

    path: Path
    same: tuple[str, ...]
    missing: tuple[str, ...]
    different: tuple[str, ...]


@dataclass(frozen=True)
class DeepFacts:
    """How far the data was read: bytes read of all bytes, and the quantized tensors whose codes were looked at."""

    read_bytes: int
    data_bytes: int
    checked_tensors: int


@dataclass(frozen=True)
class CheckpointFacts:
    """A checkpoint, as far as it could be read. ``problems`` in the order of reading, all of them.

    ``given`` is the path that was asked for, ``folder`` the one that holds config.json. ``weight_bytes``: all tensors
    of the files that are used. ``ignored``: weight files that belong to no model. ``unused``: parts that a text engine
    does not use (vision ...) and code that is never run.
    """

    given: Path
    folder: Fact[Path] = UNKNOWN
    hub: Fact[HubState] = UNKNOWN
    config: Fact[ConfigFacts] = UNKNOWN
    family: Fact[FamilyFacts] = UNKNOWN
    index: Fact[IndexFacts] = UNKNOWN
    shards: tuple[ShardFacts, ...] = ()
    weight_bytes: Fact[int] = UNKNOWN
    dtypes: tuple[DtypeSum, ...] = ()
    roles: Fact[tuple[RoleBytes, ...]] = UNKNOWN
    layers: Fact[int] = UNKNOWN
    experts_per_layer: Fact[int] = UNKNOWN
    expert_bytes: Fact[int] = UNKNOWN
    embedding_bytes: Fact[int] = UNKNOWN
    tokenizer: Fact[TokenizerFacts] = UNKNOWN
    chat: Fact[ChatFacts] = UNKNOWN
    generation_config: Fact[Mapping[str, Any]] = UNKNOWN
    ignored: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    mirrors: tuple[MirrorFacts, ...] = ()
    deep: Fact[DeepFacts] = UNKNOWN
    problems: tuple[Problem, ...] = ()

    @property
    def status(self) -> Status:
        """Return the worst status of the problems."""
        order: tuple[Status, ...] = ("ok", "note", "warn", "fail")
        return max((problem.status for problem in self.problems), key=order.index, default="ok")


def probe_checkpoint(
    path: Path,
    *,
    plugins: tuple[str, ...] | None = None,
    registry: Registry | None = None,
    mirrors: Sequence[Path] = (),
    deep: bool = False,
    progress: Progress | None = None,
) -> CheckpointFacts:
    """Examine a model folder, a Hugging Face cache or a part of one; reads headers and texts, never raises.

    ``plugins``: the allow list of `Registry.load`; ``registry``: used instead. ``mirrors``: folders with copies of the
    files. ``deep``: read all weights through, reporting to ``progress``.
    """
    raise NotImplementedError
