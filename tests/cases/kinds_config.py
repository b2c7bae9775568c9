"""Kind config: facts of config.json from coli.families, and of the model's files from the doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adapter import Row
from prepared import Prepared
from registered import registry_of

from coli.doctor.facts.checkpoint import probe_checkpoint
from coli.engine.contents import INDEX, read_index
from coli.errors import CheckpointError, ColiError, FamilyError
from coli.families.config_facts import examine_config
from coli.families.config_file import read_config
from coli.families.registry import Registry


def config_kind(machine: Prepared) -> dict[str, Any]:
    """Read each config that the case's facts name, or the one at its top."""
    expect, case = machine.expect, machine.case
    registry = registry_of(case)
    if "table" in expect:
        return {"table": _types(json.loads((case / expect["table"]).read_text("utf-8")), registry)}
    named = {key: place for key in expect if isinstance(expect[key], dict) and (place := _place(case, key))}
    if named:
        return {key: _facts(place, expect[key], registry) for key, place in named.items()}
    before = _files_around(case)
    facts = _facts(case, expect, registry)
    probe_checkpoint(case, registry=registry)
    facts["marker_file_exists"] = bool(_files_around(case) - before) or any(case.rglob("MARKER*"))
    return facts


def _files_around(case: Path) -> set[Path]:
    """Return what code of the case could have left behind: in its folder, or where this runs."""
    return {path for path in (*case.rglob("*"), *Path.cwd().iterdir()) if "__pycache__" not in path.parts}


def _place(case: Path, key: str) -> Path | None:
    return next((place for place in (case / key, case / f"{key}.json") if place.exists()), None)


def _facts(path: Path, expect: dict[str, Any], registry: Registry) -> dict[str, Any]:
    """Return the facts of a config, alone or in a folder with weights."""
    errors: list[ColiError] = []
    facts: dict[str, Any] = {}
    try:
        file = read_config(path)
    except CheckpointError as error:
        return _refused([error], expect)
    found, problems = examine_config(file.data, str(file.path))
    errors += problems
    facts |= {
        "model_type": found.model_type,
        "architectures": list(found.architectures),
        "text.layers": found.layers,
        "text.experts": found.experts,
        "text.experts_per_token": found.experts_per_token,
        "text.hidden": found.hidden,
        "text.vocab": found.vocab,
        "text.context": found.context,
        "text.source": found.text_source,
        "theta": found.rope.theta,
        "rope": found.rope.kind,
        "factor": found.rope.factor,
        "original": found.rope.original_positions,
        "dtype": found.dtype,
        "tied": found.tied,
        "unused": list(found.other_parts),
        "remote_code": list(found.remote_code),
        "notes": [*file.notes, *found.notes],
    }
    facts |= dict.fromkeys(("method", "format", "block", "scale", "experts", "mixed"))
    if found.quantization is not None:
        said = found.quantization._asdict()
        facts |= {key: list(value) if isinstance(value, tuple) else value for key, value in said.items()}
        facts["ignore"] = facts["ignored"]
    try:
        resolution = registry.resolve(file.data)
        facts |= {
            "model_type": resolution.model_type,
            "family": resolution.descriptor.id,
            "family_from": resolution.found_by,
        }
    except FamilyError as error:
        facts |= {"family": None, "family_from": None, "error_kind": error.code.removeprefix("family.")}
        facts |= {"nearest": error.data.get("nearest", ()), "known": list(error.data.get("known", ()))}
        if _asks_for_a_family(expect):
            errors.append(error)
    if path.is_dir():
        facts |= _files(path, expect, registry, errors)
    return facts | (_refused(errors, expect) if errors else {"status": "ok"})


def _asks_for_a_family(expect: dict[str, Any]) -> bool:
    """A config may be fine while no family knows it: only a case about families calls that a failure."""
    return any(key.startswith(("family", "error_kind")) for key in expect)


def _files(folder: Path, expect: dict[str, Any], registry: Registry, errors: list[ColiError]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        index = read_index(folder)
        if index is not None:
            found |= {"index.tensors": len(index.weight_map), "index.files": len(set(index.weight_map.values()))}
    except CheckpointError as error:
        if not error.data.get("empty"):  # a text that is read well, of a folder without weights
            errors.append(error)
    if any(folder.glob("*.safetensors")):
        facts = probe_checkpoint(folder, registry=registry)
        found["embedding_bytes_counted"] = facts.embedding_bytes.value
        found["unused"] = list(facts.unused)
        for problem in facts.problems:
            if (
                problem.part in ("weights", "roles")
                and problem.status == "fail"
                and not problem.subject.endswith(INDEX)
            ):
                errors.append(CheckpointError(problem.subject, problem.summary, code=problem.code))
    return found


def _refused(errors: list[ColiError], expect: dict[str, Any]) -> dict[str, Any]:
    """Say how the config was refused; of several reasons, the one that the case is about."""
    kinds = [error.code.partition(".")[2] for error in errors]
    number = kinds.index(expect["error_kind"]) if expect.get("error_kind") in kinds else 0
    data = errors[number].data
    field, asked = str(data.get("field", "")), expect.get("field")
    if isinstance(asked, str) and field.endswith(f".{asked}"):
        field = asked  # the case leaves out what the field is nested under
    return {"status": "fail", "error_kind": kinds[number], "field": field or None, "name": data.get("name")}


def _types(table: Any, registry: Registry) -> list[Row]:
    rows = []
    for model_type, wanted, *_ in table["cases"] if isinstance(table, dict) else table:
        config = {"model_type": model_type, "architectures": ["DeepseekV3ForCausalLM"]}
        if isinstance(model_type, dict):
            config = model_type
        try:
            found = registry.resolve(config).descriptor.id
        except FamilyError as error:
            found = error.code
        # What is refused as unknown and what as no type at all is close at times: a blank is either.
        refused = wanted.startswith(("unknown", "error")) and found.startswith("family.")
        rows.append(Row(repr(model_type), wanted, found, found == wanted or refused))
    return rows


KINDS = {"config": config_kind}
