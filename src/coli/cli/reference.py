"""Reference results as recorded beside an oracle: reference.json with tokens, reference.npz with logits."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coli.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Block", "Reference", "read_reference"]

_JSON_LIMIT = 64 << 20  # bytes
_ARRAYS_LIMIT = 4 << 30  # bytes of all arrays of one prompt set, uncompressed
_IDS_LIMIT = 1 << 20  # ids of one prompt


@dataclass(frozen=True)
class Block:
    """Hold expected logits of consecutive positions: ``logits`` [n, vocab], or [n, k] of the token ``ids`` [n, k]."""

    position: int
    logits: NDArray[np.float32]
    ids: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Reference:
    """Hold one prompt: ids, greedy answer, where known the most probable token per prompt position, and logits."""

    name: str
    ids: tuple[int, ...]
    greedy: tuple[int, ...]
    top1: tuple[int, ...]
    blocks: tuple[Block, ...]

    @property
    def first_position(self) -> int:
        """Return the first position whose logits are needed."""
        return 0 if self.top1 else min([len(self.ids) - 1, *(block.position for block in self.blocks)])

    def tokens(self) -> Iterator[tuple[int, int]]:
        """Yield (position, most probable token), in order of position."""
        yield from enumerate(self.top1)
        # top1 of the last prompt position is the first greedy token; it is compared once more, which does no harm.
        yield from enumerate(self.greedy, len(self.ids) - 1)


def read_reference(folder: Path) -> list[Reference]:
    """Read reference.json and, where present, reference.npz in ``folder``.

    Known arrays per prompt NAME: `NAME.logits` (last prompt positions), `NAME.last_logits`, `NAME.greedy_logits`,
    `NAME.greedy_top5_ids` with `NAME.greedy_top5_logits`. Raises UsageError for anything else than such files.
    """
    path = folder / "reference.json"
    prompts = _read_json(path)
    arrays = _read_arrays(folder / "reference.npz", {str(prompt.get("name")) for prompt in prompts})
    return [_reference(path, prompt, arrays) for prompt in prompts]


def _refuse(subject: object, rule: str, observed: str | None = None, expected: str | None = None) -> UsageError:
    return UsageError(str(subject), rule, observed=observed, expected=expected, code="verify.reference")


def _read_json(path: Path) -> list[dict[str, Any]]:
    import json

    try:
        with path.open("rb") as stream:
            raw = stream.read(_JSON_LIMIT + 1)
    except OSError as error:
        raise _refuse(path, "cannot be read", error.strerror, "a folder with reference.json") from None
    if len(raw) > _JSON_LIMIT:
        raise _refuse(path, "is too large", expected="at most 64MiB")
    try:
        prompts = json.loads(raw)["prompts"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refuse(
            path, "is not a reference", f"{type(error).__name__}: {error}", 'an object with "prompts"'
        ) from None
    if not isinstance(prompts, list) or not prompts or not all(isinstance(prompt, dict) for prompt in prompts):
        raise _refuse(path, "is not a reference", expected='"prompts": a list of at least one object')
    return prompts


def _read_arrays(path: Path, names: set[str]) -> dict[str, NDArray[Any]]:
    import numpy as np

    if not path.exists():
        return {}
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
        if total > _ARRAYS_LIMIT:
            raise _refuse(path, "is too large", f"{total} bytes", f"at most {_ARRAYS_LIMIT} bytes of arrays")
        with np.load(path, allow_pickle=False) as archive_arrays:
            # Traces of single layers lie in the same file: only the prompts' own arrays are read.
            return {key: archive_arrays[key] for key in archive_arrays.files if key.rpartition(".")[0] in names}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _refuse(path, "is not a file of arrays", str(error), "an .npz file without pickled objects") from None


def _ids(path: Path, name: str, prompt: dict[str, Any], key: str, *, needed: bool) -> tuple[int, ...]:
    values = prompt.get(key, [])
    fits = isinstance(values, list) and len(values) <= _IDS_LIMIT
    if not fits or not all(type(value) is int and value >= 0 for value in values) or (needed and not values):
        raise _refuse(f"{path}: {name}.{key}", "is not a list of token ids", repr(values)[:80])
    return tuple(values)


def _reference(path: Path, prompt: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Reference:
    name = str(prompt.get("name"))
    ids = _ids(path, name, prompt, "ids", needed=True)
    greedy = _ids(path, name, prompt, "greedy", needed=True)
    top1 = _ids(path, name, prompt, "top1", needed=False)
    if top1 and len(top1) != len(ids):
        raise _refuse(f"{path}: {name}.top1", "has another length than ids", str(len(top1)), str(len(ids)))
    last = len(ids) - 1
    blocks = []
    if (logits := arrays.get(f"{name}.logits")) is not None:
        blocks.append(_block(f"{name}.logits", len(ids) - len(logits) if logits.ndim == 2 else 0, logits, len(ids)))
    if (logits := arrays.get(f"{name}.last_logits")) is not None:
        blocks.append(_block(f"{name}.last_logits", last, logits.reshape(1, -1), 1))
    if (logits := arrays.get(f"{name}.greedy_logits")) is not None:
        blocks.append(_block(f"{name}.greedy_logits", last, logits, len(greedy)))
    if (logits := arrays.get(f"{name}.greedy_top5_logits")) is not None:
        picks = arrays.get(f"{name}.greedy_top5_ids")
        blocks.append(_block(f"{name}.greedy_top5_logits", last, logits, len(greedy), picks))
    return Reference(name, ids, greedy, top1, tuple(blocks))


def _block(name: str, position: int, logits: NDArray[Any], most_rows: int, picks: NDArray[Any] | None = None) -> Block:
    import numpy as np

    if logits.ndim != 2 or logits.dtype != np.float32 or not 0 < len(logits) <= most_rows or logits.shape[1] == 0:
        raise _refuse(
            name, "has a wrong shape or type", f"{logits.dtype} {logits.shape}", f"float32, up to {most_rows} rows"
        )
    if picks is None and name.endswith("top5_logits"):
        raise _refuse(name, "has no token ids beside it", expected=name.replace("_logits", "_ids"))
    if picks is not None and (picks.shape != logits.shape or picks.dtype.kind != "i" or int(picks.min()) < 0):
        raise _refuse(name, "does not match its token ids", f"{picks.dtype} {picks.shape}", f"integers {logits.shape}")
    return Block(position, logits, None if picks is None else picks.astype(np.int64))
