"""Opening and closing again and again, and openings that fail, leave nothing behind."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import coli
from coli.engine.checkpoint import Checkpoint
from coli.errors import ColiError

# The allocator keeps what it likes, but not every time: a leaked tiny model is 2.5 MB, a leaked workspace 10 MB.
SLACK_BYTES = 16 << 20


def held() -> tuple[int, int, int]:
    """Return open descriptors, threads and resident bytes of this process."""
    gc.collect()
    process = psutil.Process()
    return process.num_fds(), process.num_threads(), process.memory_info().rss


def assert_nothing_is_left(action: Callable[[], None], cycles: int) -> None:
    for _ in range(3):  # what is loaded once: libraries, caches, the allocator's arenas
        action()
    descriptors, threads, resident = held()
    for _ in range(cycles):
        action()
    after = held()
    assert after[:2] == (descriptors, threads)
    assert after[2] - resident < SLACK_BYTES


def test_open_generate_close(oracle_path: Path) -> None:
    def cycle() -> None:
        with coli.open(oracle_path, threads=2, context=64) as model:
            assert len(list(model.generate([0, 5, 7], max_tokens=2))) == 2
            next(iter(model.generate([0, 5, 7], max_tokens=20)))  # and one that nobody finishes

    assert_nothing_is_left(cycle, 100)


def _truncate_last_shard(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[-1]
    shard.write_bytes(shard.read_bytes()[:-1])


def _damage_a_scale(folder: Path) -> None:
    """Set a scale of the last shard with the backbone to a code that is refused when the weight is bound."""
    with Checkpoint.open(folder) as checkpoint:
        info = checkpoint["layers.6.attn.wo_b.scale"]
    with info.path.open("r+b") as file:
        file.seek(info.offset)
        file.write(b"\xff")


@pytest.mark.parametrize(
    ("damage", "options", "code"),
    [
        (_truncate_last_shard, {}, "checkpoint."),
        (_damage_a_scale, {}, "stage.bind-scale"),
        (None, {"ram": 1 << 20}, "budget."),
        (None, {"backend": "cpu-none"}, "backend."),
        (None, {"context": 10**9}, "usage.context"),
    ],
    ids=["truncated", "scale", "ram", "backend", "context"],
)
def test_openings_that_fail(
    damage: Callable[[Path], None] | None, options: dict[str, object], code: str, oracle_path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(oracle_path, folder)
    if damage is not None:
        damage(folder)

    def cycle() -> None:
        # Without pytest.raises, which keeps the traceback, and with it the memory, until the collector comes.
        try:
            coli.open(folder, threads=2, **options)  # type: ignore[arg-type]
        except ColiError as refusal:
            assert refusal.code.startswith(code)
        else:
            raise AssertionError("it opened")

    assert_nothing_is_left(cycle, 25)
