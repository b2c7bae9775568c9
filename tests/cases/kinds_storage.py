"""Kind storage: where paths lie (coli.doctor.facts), and how the engine reads when the system refuses direct reads."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import safetensors.numpy
from prepared import Prepared

from coli.doctor.facts.file_systems import decide_file_system_class
from coli.doctor.facts.storage import StorageFacts, probe_storage
from coli.engine.checkpoint import Checkpoint
from coli.engine.mounts import Mount, probe_mounts
from coli.errors import CheckpointError

_DIRECT = getattr(os, "O_DIRECT", 0)


def storage_facts(machine: Prepared) -> dict[str, Any]:
    script = machine.case / "io.json"
    if script.is_file():
        return read_with(json.loads(script.read_text("utf-8")), machine.root)
    mounts = probe_mounts(machine.root)
    # A key that is a path asks for the kind of its disk, or what it has instead of one; other keys are about the place
    # of the model: where the case says, or else the mount that is worth a case.
    asked = {path: look(machine, path) for path in machine.expect if path.startswith("/")}
    found = {path: facts.kind.value or facts.fs_class.value for path, facts in asked.items()}
    model = look(machine, machine.expected.get("model_path") or f"{_of_interest(mounts).rstrip('/')}/models/x")
    return {
        **found,
        "fs.type": model.fs_type.value,
        "fs.class": model.fs_class.value,
        "fs.mount": model.mount_point.value,
        "disk.kind": model.kind.value,
        "devices": list(model.devices),
        "status": status(model),
    }


def _of_interest(mounts: Sequence[Mount]) -> str:
    """Return the first remote mount, else the first that holds files and is neither the root's nor for booting."""
    classes = {mount.point: decide_file_system_class(mount).value for mount in mounts}
    remote = [point for point, kind in classes.items() if kind == "remote"]
    system = re.compile(r"/(?:$|(?:boot|run|proc|sys)(?:/|$)|dev$)")
    others = [point for point, kind in classes.items() if kind and not system.match(point)]
    return [*remote, *sorted(others, key=lambda point: classes[point] == "memory"), "/"][0]


def look(machine: Prepared, path: str) -> StorageFacts:
    (facts,) = probe_storage("model", Path(path), machine.root)
    return facts


def status(facts: StorageFacts) -> str:
    """Return ok, or warn where a model would stream slowly; of an unknown disk nothing is said."""
    slow = facts.fs_class.value == "remote" or facts.kind.value in ("hdd", "usb")
    return "warn" if slow else "ok"


def read_with(script: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Read a checkpoint while the system refuses what the script says, and compare with the reference library."""
    tail = script.get("tail_bytes", 1500)
    arrays = {
        name: np.arange(size, dtype=np.uint64).view(np.uint8)[:size].copy()
        for name, size in (("a", 3 << 20), ("b", (5 << 20) + 77), ("c", (1 << 20) + tail))
    }
    (folder / "config.json").write_text('{"model_type": "x"}')
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    told: list[str] = []
    try:
        with refusing(script), Checkpoint.open(folder) as checkpoint:
            checkpoint.read_directly(told.append)
            identical = all(np.array_equal(checkpoint.read(name), arrays[name]) for name in (*arrays, *arrays))
            notes = [note for note in checkpoint.notes if note.code == "io.buffered"]
            mode = checkpoint.io_mode
    except CheckpointError as error:
        return {"load": "fail", "status": "fail", "error_kind": error.code.partition(".")[2], "io_mode": None}
    return {
        "load": "ok" if identical else "wrong bytes",
        "io_mode": mode,
        "bytes_identical": identical,
        "messages_about_it": len(told),
        "status": "warn" if notes else "ok",
    }


@contextmanager
def refusing(script: dict[str, Any]) -> Iterator[None]:
    """Make open and preadv of the model's file fail as the script says."""
    real_open, real_preadv = os.open, os.preadv
    direct: set[int] = set()

    def failing(name: str) -> None:
        word = script.get(name)
        if word not in (None, "ok"):
            raise OSError(getattr(errno, word), os.strerror(getattr(errno, word)))

    def play_open(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        mine = str(path).endswith(".safetensors")
        if mine:
            failing("open_direct" if flags & _DIRECT else "open_plain")
        # The file system below the tests may have no direct reads of its own.
        descriptor = real_open(path, flags & ~_DIRECT if mine else flags, *rest, **options)
        direct.discard(descriptor)
        if mine and flags & _DIRECT:
            direct.add(descriptor)
        return descriptor

    def play_preadv(descriptor: int, buffers: Any, offset: int, *rest: Any) -> int:
        if descriptor in direct:
            failing("read_direct")
            block = script.get("logical_block", 512)
            aligned = all(len(buffer) % block == 0 for buffer in buffers) and offset % block == 0
            if not aligned:
                raise OSError(errno.EINVAL, "the read is not aligned")
            end = os.fstat(descriptor).st_size
            if script.get("read_tail") and offset + sum(map(len, buffers)) > end:
                failing("read_tail")
        else:
            failing("read_plain")
        return real_preadv(descriptor, buffers, offset, *rest)

    patches = [mock.patch("os.open", play_open), mock.patch("os.preadv", play_preadv)]
    if "logical_block" in script:  # what statx says of the disk of the case
        patches.append(mock.patch("coli.engine.direct._statx_alignment", lambda descriptor: script["logical_block"]))
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


KINDS = {"storage": storage_facts}
