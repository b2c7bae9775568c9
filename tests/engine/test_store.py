from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import wait
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import coli.engine.store
from coli.engine.checkpoint import Checkpoint
from coli.engine.ledger import Item, Ledger
from coli.engine.safetensors import TensorInfo
from coli.engine.slab import slab_layout
from coli.engine.store import ExpertKey, ExpertStore, ExpertTensors, HeldExpert, expert_sizes
from coli.errors import BudgetError, CheckpointError

LAYERS, EXPERTS, PARTS = 3, 8, ("w1", "w2", "w3")
Bytes = dict[str, bytes]


def names_of(layer: int, expert: int) -> ExpertTensors:
    prefix = f"layers.{layer}.ffn.experts.{expert}"
    return {part: (f"{prefix}.{part}.weight", f"{prefix}.{part}.scale") for part in PARTS}


@cache
def tensors_of(layer: int) -> dict[str, np.ndarray]:
    """Bytes that tell layer, expert and tensor apart; odd sizes, so that nothing is aligned by luck."""
    random_bytes = np.random.default_rng(layer)
    tensors = {}
    for expert in range(EXPERTS):
        for part, (codes, scales) in names_of(layer, expert).items():
            tensors[codes] = random_bytes.integers(0, 255, 331 if part == "w2" else 215, np.uint8).astype(np.int8)
            tensors[scales] = random_bytes.integers(0, 255, 13, np.uint8)
    return tensors


def write(folder: Path, layout: str) -> Path:
    """Write the experts. `released`: as in released files; `scattered`: tensors of an expert in two files."""
    files: dict[str, dict[str, np.ndarray]] = {}
    for layer in range(LAYERS):
        for number, (name, tensor) in enumerate(tensors_of(layer).items()):
            part = layer if layout == "released" else number % 2
            files.setdefault(f"model-{part + 1:05d}.safetensors", {})[name] = tensor
    index = {}
    for file, tensors in files.items():
        safetensors.numpy.save_file(tensors, folder / file)
        index |= dict.fromkeys(tensors, file)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(str({"weight_map": index}).replace("'", '"'))
    return folder


@pytest.fixture(scope="module", params=["released", "scattered"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoint]:
    with Checkpoint.open(write(tmp_path_factory.mktemp(request.param), request.param)) as opened:
        yield opened


ALL: dict[ExpertKey, ExpertTensors] = {(i, j): names_of(i, j) for i in range(LAYERS) for j in range(EXPERTS)}
SLAB = 4096


def make(checkpoint: Checkpoint, slabs: int, readers: int = 2) -> tuple[ExpertStore, Ledger]:
    ledger = Ledger({"ram": SLAB * slabs})
    item = Item("expert cache", "ram", SLAB, count=len(ALL), minimum=3)
    return ExpertStore(checkpoint, ALL, ledger, item, readers=readers), ledger


def content(held: HeldExpert) -> dict[str, tuple[bytes, bytes]]:
    found = {}
    for part, (codes, scales) in held.parts.items():
        assert scales is not None
        found[part] = (codes.tobytes(), scales.tobytes())
    return found


def expected(layer: int, expert: int) -> dict[str, tuple[bytes, bytes]]:
    tensors = tensors_of(layer)
    return {
        part: (tensors[a].tobytes(), tensors[b or ""].tobytes()) for part, (a, b) in names_of(layer, expert).items()
    }


@pytest.mark.parametrize("slabs", [3, 4, 7, 24, 100])
@pytest.mark.parametrize("readers", [1, 3])
def test_any_capacity_gives_the_same_bytes(checkpoint: Checkpoint, slabs: int, readers: int) -> None:
    store, ledger = make(checkpoint, slabs, readers)
    assert store.capacity == min(slabs, 24)
    choices = random.Random(5)
    for _ in range(60):
        layer, ids = choices.randrange(LAYERS), choices.sample(range(EXPERTS), 3)
        held = store.acquire(layer, ids)
        assert [expert.expert for expert in held] == sorted(ids)
        for expert in held:
            assert content(expert) == expected(layer, expert.expert)
            for codes, scales in expert.parts.values():
                assert scales is not None
                assert codes.ctypes.data % 64 == scales.ctypes.data % 64 == 0
        store.release(held)
    counts = store.statistics()
    assert counts.hits + counts.misses == 180
    assert counts.bytes_read == counts.misses * sum(expert_sizes(checkpoint, ALL[0, 0]))
    assert ledger.reserved("ram") == store.capacity * SLAB
    store.close()
    assert ledger.reserved("ram") == 0


def test_a_slab_starts_on_a_page(checkpoint: Checkpoint) -> None:
    store, _ = make(checkpoint, 4)
    for held in store.acquire(0, [1, 2, 3]):
        assert held.parts["w1"][0].ctypes.data % 4096 == 0
    store.close()


def test_the_least_recently_used_expert_goes_first(checkpoint: Checkpoint) -> None:
    store, _ = make(checkpoint, 3)
    for ids in ([0], [1], [2], [0], [3]):  # 3 takes the place of 1
        store.release(store.acquire(0, ids))
    assert store.statistics()[:3] == (1, 4, 1)
    for ids in ([0], [2], [3]):
        store.release(store.acquire(0, ids))
    assert store.statistics()[:3] == (4, 4, 1)
    store.release(store.acquire(0, [1]))  # in the place of 0
    store.release(store.acquire(0, [2, 3]))
    assert store.statistics()[:3] == (6, 5, 2)
    store.close()


def test_the_generation_of_a_slab_changes_with_its_bytes(checkpoint: Checkpoint) -> None:
    store, _ = make(checkpoint, 3)
    seen: dict[tuple[int, int], dict[str, tuple[bytes, bytes]]] = {}
    views: dict[int, object] = {}
    choices = random.Random(6)
    for _ in range(80):
        held = store.acquire(choices.randrange(LAYERS), choices.sample(range(EXPERTS), 2))
        for expert in held:
            known = seen.setdefault((expert.slot, expert.generation), content(expert))
            assert known == content(expert)
            assert views.setdefault(expert.slot, expert.parts["w1"][0]) is expert.parts["w1"][0]  # handles stay bound
        store.release(held)
    assert {slot for slot, _ in seen} == {0, 1, 2}
    assert len(seen) == store.statistics().misses
    store.close()


def test_pinned_experts_are_never_given_up(checkpoint: Checkpoint) -> None:
    store, _ = make(checkpoint, 3)
    held = store.acquire(1, [4, 6])
    before = [content(expert) for expert in held]
    for other in range(EXPERTS):
        store.release(store.acquire(0, [other]))
    assert [content(expert) for expert in held] == before
    with pytest.raises(ValueError, match="4 experts cannot be held at once"):
        store.acquire(0, [0, 1])
    again = store.acquire(1, [4, 5, 6])  # held twice, counted once
    store.release(again)
    assert [content(expert) for expert in held] == before
    store.release(held)
    assert len(store.acquire(0, [0, 1, 2])) == 3
    store.close()


def test_groups_go_through_all_experts_in_order(checkpoint: Checkpoint) -> None:
    store, _ = make(checkpoint, 3)
    sizes, order = [], []
    for group in store.groups(2, [7, 0, 3, 3, 1, 5, 6, 2]):
        sizes.append(len(group))
        for expert in group:
            order.append(expert.expert)
            assert content(expert) == expected(2, expert.expert)
    assert (sizes, order) == ([3, 3, 1], [0, 1, 2, 3, 5, 6, 7])
    assert len(store.acquire(0, [0, 1, 2])) == 3  # nothing stayed pinned
    store.close()


def test_adjacent_tensors_are_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoint.open(write(tmp_path, "released")) as checkpoint:
        store, _ = make(checkpoint, 3)
        runs: list[list[str]] = []
        read_run = Checkpoint.read_run

        def spy(self: Checkpoint, infos: list[TensorInfo], views: list[memoryview]) -> None:
            runs.append([info.name.split(".", 5)[5] for info in infos])
            read_run(self, infos, views)

        monkeypatch.setattr(Checkpoint, "read_run", spy)
        store.acquire(0, [2])
        assert sorted(runs) == [["w1.scale", "w2.scale", "w3.scale"], ["w1.weight", "w2.weight", "w3.weight"]]
        store.close()


@pytest.mark.parametrize("readers", [1, 3])
def test_a_failed_read_names_the_tensor_and_leaves_the_store_usable(tmp_path: Path, readers: int) -> None:
    with Checkpoint.open(write(tmp_path, "released")) as checkpoint:
        store, _ = make(checkpoint, 4, readers)
        store.release(store.acquire(0, [0, 1, 2]))
        held = store.acquire(1, [0])
        last = max(
            (i for n, i in checkpoint.tensors.items() if n.startswith("layers.2.")), key=lambda info: info.offset
        )
        os.truncate(last.path, last.offset)
        broken = int(last.name.split(".")[4])
        for _ in range(3):
            with pytest.raises(CheckpointError) as caught:
                store.acquire(2, [broken, (broken + 1) % EXPERTS])
            assert caught.value.code == "checkpoint.short-read"
            assert caught.value.subject == f"{last.path}: {last.name}"
        with pytest.raises(CheckpointError):
            store.acquire(2, [(broken + 1) % EXPERTS, broken])
        assert content(held[0]) == expected(1, 0)
        store.release(held)
        for layer, ids in ((0, [0, 1, 2, 3]), (1, [4, 5, 6, 7])):
            again = store.acquire(layer, ids)
            assert [content(expert) for expert in again] == [expected(layer, expert) for expert in ids]
            store.release(again)
        store.close()


def test_after_a_failure_no_reader_still_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoint.open(write(tmp_path, "released")) as checkpoint:
        store, _ = make(checkpoint, 4, readers=2)
        done: list[str] = []

        def slow(self: Checkpoint, infos: list[TensorInfo], views: list[memoryview]) -> None:
            if "scale" in infos[0].name:
                raise CheckpointError("file: tensor", "it cannot be read")
            time.sleep(0.05)  # long enough that a store which does not wait would be seen
            done.append(infos[0].name)

        monkeypatch.setattr(Checkpoint, "read_run", slow)
        with pytest.raises(CheckpointError):
            store.acquire(0, [0, 1])
        assert len(done) == 2
        store.close()


def test_an_interruption_waits_for_the_readers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoint.open(write(tmp_path, "released")) as checkpoint:
        store, _ = make(checkpoint, 3, readers=2)
        running: list[str] = []

        def slow(self: Checkpoint, infos: list[TensorInfo], views: list[memoryview]) -> None:
            running.append(infos[0].name)
            time.sleep(0.02)
            running.remove(infos[0].name)

        def interrupted(futures: object) -> None:
            monkeypatch.setattr(coli.engine.store, "wait", wait)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "read_run", slow)
            monkeypatch.setattr(coli.engine.store, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.acquire(0, [0, 1, 2])
            assert running == []
        assert [content(held) for held in store.acquire(0, [0, 1, 2])] == [expected(0, i) for i in range(3)]
        store.close()


@pytest.mark.parametrize("readers", [1, 2])
def test_ctrl_c_at_any_line_costs_neither_slabs_nor_bytes(tmp_path: Path, readers: int) -> None:
    """The chat goes on after Ctrl-C: whatever line it cut, the next sequence finds a whole store."""
    with Checkpoint.open(write(tmp_path, "released")) as checkpoint:
        store, _ = make(checkpoint, 4, readers)
        store.release(store.acquire(0, [0, 1, 2]))
        lines = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal lines
            if frame.f_code.co_filename != coli.engine.store.__file__:
                return None
            if event == "line":
                lines -= 1
                if lines == 0:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        for cut in range(1, 1000):
            layer, ids = cut % LAYERS, [cut % 5, cut % 5 + 1, cut % 5 + 3]
            lines = cut
            sys.settrace(trace)
            try:
                store.release(store.acquire(layer, ids))
                whole = True
            except KeyboardInterrupt:
                whole = False
            finally:
                sys.settrace(before)
            store.unpin_all()
            held = store.acquire(layer, [0, 2, 5, 7])  # as many as there are slabs
            assert [content(expert) for expert in held] == [expected(layer, expert) for expert in (0, 2, 5, 7)]
            store.release(held)
            if whole:
                break
        assert 30 < cut < 999
        store.close()


def test_a_hit_of_a_failed_call_is_not_left_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoint.open(write(tmp_path, "released")) as checkpoint:
        store, _ = make(checkpoint, 3)
        store.release(store.acquire(0, [0]))
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "read_run", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                store.acquire(0, [0, 1])
        assert len(store.acquire(1, [0, 1, 2])) == 3
        store.close()


def test_less_than_one_tokens_experts_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(BudgetError) as caught:
        make(checkpoint, 2)
    assert caught.value.fix == f"--ram {3 * SLAB}B or more"


def test_a_missing_tensor_is_named_when_the_store_is_made(checkpoint: Checkpoint) -> None:
    experts = {**ALL, (3, 0): names_of(3, 0)}
    ledger = Ledger({})
    with pytest.raises(CheckpointError, match=r"layers\.3\.ffn\.experts\.0\.w1\.weight"):
        ExpertStore(checkpoint, experts, ledger, Item("expert cache", "ram", SLAB, count=25, minimum=3))
    assert ledger.reserved("ram") == 0


def test_weights_without_scales_have_none(checkpoint: Checkpoint) -> None:
    experts: dict[ExpertKey, ExpertTensors] = {(0, 0): {part: (pair[0], None) for part, pair in names_of(0, 0).items()}}
    store = ExpertStore(checkpoint, experts, Ledger({}), Item("expert cache", "ram", SLAB, count=1, minimum=1))
    parts = store.acquire(0, [0])[0].parts
    assert all(scales is None for _, scales in parts.values())
    assert parts["w2"][0].tobytes() == expected(0, 0)["w2"][0]
    store.close()


def test_wrong_calls_are_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match="smaller than a slab"):
        ExpertStore(checkpoint, ALL, Ledger({}), Item("expert cache", "ram", 512, count=24, minimum=3))
    store, _ = make(checkpoint, 3)
    with pytest.raises(ValueError, match="layer 0 has no expert 8"):
        store.acquire(0, [1, 8])
    assert len(store.acquire(0, [0, 1, 2])) == 3
    store.close()
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.acquire(0, [0])


def test_slab_layout_by_hand() -> None:
    assert slab_layout([1, 64, 65, 0, 3]) == ((0, 64, 128, 256, 256), 4096)
    assert slab_layout([4096, 1]) == ((0, 4096), 8192)
    assert slab_layout([]) == ((), 4096)
    flash = [2048 * 2048, 4096 * 1024, 2048 * 2048, 2048 * 128, 4096 * 64, 2048 * 128]  # no padding at all
    assert slab_layout(flash)[1] == sum(flash) == 13_369_344
