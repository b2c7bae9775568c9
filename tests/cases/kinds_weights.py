"""Kind weights: what the doctor finds in the files of a checkpoint, and whether the engine says the same."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prepared import Prepared
from registered import registry_of

from coli.doctor.facts.checkpoint import CheckpointFacts, Problem, probe_checkpoint
from coli.doctor.facts.problem import of_error
from coli.engine.checkpoint import Checkpoint
from coli.engine.safetensors import examine_header, read_header
from coli.errors import CheckpointError
from coli.families.registry import Registry

# Reading may take as much as the files, and the interpreter a little.
ALLOWED_BYTES = 4 << 20
STATUSES = ("ok", "note", "warn", "fail")


def weights_kind(machine: Prepared) -> dict[str, Any]:
    """Examine each file that the case's facts name, or the model that its folder holds."""
    expect, case = machine.expect, machine.case
    files = sum(path.stat().st_size for path in case.rglob("*") if path.is_file())
    named = {key: place for key in expect if (place := _place(case, key)) is not None}
    probe_checkpoint(case)  # what is loaded once is not what a file takes
    tracemalloc.start()
    try:
        if named:
            registry = registry_of(case)
            each = {key: _one(place, expect[key], registry) for key, place in named.items()}
            found = {key: _said(each[key], expect[key]) for key in each}
            found["status"] = max((facts["status"] for facts in each.values()), key=STATUSES.index)
        else:
            found = _model(_folder(case), expect, registry_of(case))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > files + ALLOWED_BYTES:
        found["must_not"] = [f"allocate {peak} bytes for {files} bytes of files"]
    return found


def _place(case: Path, key: str) -> Path | None:
    places = (case / key, case / f"{key}.safetensors")
    return next((place for place in places if place.exists()), None)


def _folder(case: Path) -> Path:
    """The case itself is the model or the cache, unless all it holds is one folder."""
    inner = [path for path in case.iterdir() if path.is_dir()]
    return inner[0] if len(inner) == 1 and not any(case.glob("*.safetensors")) else case


def _one(place: Path, expect: Any, registry: Registry) -> dict[str, Any]:
    if place.is_dir():
        return _model(place, expect if isinstance(expect, dict) else {}, registry)
    header, problems = examine_header(place)
    tensors = header.tensors if header else {}
    return _of_problems([of_error(error) for error in problems], expect) | {
        "tensors": len(tensors),
        "header_bytes": header.header_bytes if header else None,
        "tensor_bytes": {name: info.nbytes for name, info in tensors.items()},
        "total_bytes": sum(info.nbytes for info in tensors.values()),
        "names": list(tensors),
        "same_in_doctor_and_engine": _engine_refuses(place) == bool(problems),
    }


def _said(facts: dict[str, Any], expect: Any) -> Any:
    """A case writes `ok` or `fail:kind` where that is all it asks."""
    if not isinstance(expect, str):
        return facts
    return f"{facts['status']}:{facts['error_kind']}" if facts["error_kind"] else facts["status"]


def _model(folder: Path, expect: dict[str, Any], registry: Registry) -> dict[str, Any]:
    facts = probe_checkpoint(folder, registry=registry)
    # A folder of files alone is no model, which is not what the case is about.
    parts = (
        ("weights",) if facts.config.value is None and facts.hub.value is None else ("weights", "location", "config")
    )
    problems = [problem for problem in facts.problems if problem.part in parts]
    headers = [examine_header(shard.path)[0] for shard in facts.shards if shard.path is not None]
    tensors = {name: info for header in headers if header for name, info in header.tensors.items()}
    found = _of_problems(problems, expect)
    listed = found.pop("tensors")
    found |= {
        "tensors": listed if listed else len(tensors),
        "tensor_bytes": {name: info.nbytes for name, info in tensors.items()},
        "total_bytes": facts.weight_bytes.value,
        "used": len(facts.shards),
        "used_files": [shard.name for shard in facts.shards],
        "ignored": list(facts.ignored),
        "resolved_snapshot": facts.hub.value.revision if facts.hub.value else None,
        "same_in_doctor_and_engine": _same(folder, facts, problems),
    }
    if facts.hub.value is not None and facts.folder.value is not None:
        snapshot = facts.folder.value
        for other in (snapshot, snapshot.parent.parent, snapshot.parent.parent.parent):
            again = probe_checkpoint(other, registry=registry)
            if again.folder.value != snapshot or again.shards != facts.shards:
                found["must_not"] = [f"depend on the path: {other} gives {again.folder.value}"]
    return found


def _of_problems(problems: Sequence[Problem], expect: Any) -> dict[str, Any]:
    failed = [problem for problem in problems if problem.status in ("warn", "fail")]
    kinds = list(dict.fromkeys(problem.kind for problem in failed))
    # Of several kinds a case names the one that it is about.
    asked = expect.get("error_kind") if isinstance(expect, dict) else None
    kind = asked if asked in kinds else kinds[0] if kinds else None
    these = [problem for problem in failed if problem.kind == kind]
    data = {key: value for problem in reversed(these) for key, value in problem.data.items()}
    missing = next((p.data["missing"] for p in failed if "missing" in p.data), ())
    absent = next((p.data["absent"] for p in failed if "absent" in p.data), {})
    misplaced = next((p.data["files"] for p in failed if p.kind == "misplaced-tensor"), {})
    files = list(dict.fromkeys(p.data.get("file", Path(p.subject).name) for p in these if p.kind != "missing-shard"))
    worst = max((problem.status for problem in problems), key=STATUSES.index, default="ok")
    return data | {
        "status": "ok" if worst == "note" else worst,
        "error_kind": kind,
        "error_kinds": kinds,
        "file": (files or [*missing, None])[0],
        "files": files or list(missing),
        "real_sizes": [problem.data["real_bytes"] for problem in these if "real_bytes" in problem.data],
        "missing": list(missing),
        "absent": list(absent),
        "misplaced": {name: list(places) for name, places in misplaced.items()},
        "tensors": _in_order([n for p in these for n in p.data.get("tensors", _tensor(p))], expect),
        "actual_bytes": data.get("file_bytes"),
        "unknown_dtypes": [p.data["dtype"] for p in failed if p.kind == "unknown-dtype"],
        "have_bytes": data.get("have_bytes"),
        "bytes_present": data.get("have_bytes"),
    }


def _tensor(problem: Problem) -> tuple[str, ...]:
    return (problem.data["tensor"],) if "tensor" in problem.data else ()


def _in_order(names: Sequence[str], expect: Any) -> list[str]:
    """Which of two tensors that share their bytes is named first says nothing."""
    wanted = expect.get("tensors") if isinstance(expect, dict) else None
    unique = list(dict.fromkeys(names))
    return wanted if isinstance(wanted, list) and sorted(wanted) == sorted(unique) else unique


def _same(folder: Path, facts: CheckpointFacts, problems: Sequence[Problem]) -> bool:
    codes = {problem.code for problem in problems if problem.status == "fail"}
    if facts.config.value is None and facts.hub.value is None:
        return any(_engine_refuses(shard.path) for shard in facts.shards if shard.path) == bool(codes)
    try:
        Checkpoint.open(folder).close()
    except CheckpointError as error:
        return error.code in codes
    return not codes


def _engine_refuses(path: Path) -> bool:
    try:
        read_header(path)
    except CheckpointError:
        return True
    return False


KINDS = {"weights": weights_kind}
