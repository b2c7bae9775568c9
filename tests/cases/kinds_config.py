"""Kind config: facts of config.json from coli.families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adapter import Row
from prepared import Prepared

from coli.engine.checkpoint import Checkpoint
from coli.errors import CheckpointError, FamilyError
from coli.families.config_facts import config_facts
from coli.families.config_file import read_config
from coli.families.descriptor import Descriptor
from coli.families.registry import BUILT_IN, Family, Registry


def config_kind(machine: Prepared) -> dict[str, Any]:
    """Read each config that the case's facts name, or the one at its top."""
    expect, case = machine.expect, machine.case
    if "table" in expect:
        return {"table": _types(json.loads((case / expect["table"]).read_text("utf-8")))}
    named = {key: place for key in expect if isinstance(expect[key], dict) and (place := _place(case, key))}
    if named:
        return {key: _facts(place) for key, place in named.items()}
    facts = _facts(case / "config.json")
    facts["marker_file_exists"] = any(case.rglob("MARKER*"))
    return facts


def _place(case: Path, key: str) -> Path | None:
    return next((place for place in (case / key, case / f"{key}.json") if place.exists()), None)


def _facts(path: Path) -> dict[str, Any]:
    try:
        file = read_config(path)
        found = config_facts(file.data, str(file.path))
    except CheckpointError as error:
        return _refused(error)
    facts: dict[str, Any] = {
        "status": "ok",
        "model_type": found.model_type,
        "text.layers": found.layers,
        "text.experts": found.experts,
        "text.source": found.text_source,
        "theta": found.rope.theta,
        "rope": found.rope.kind,
        "factor": found.rope.factor,
        "dtype": found.dtype,
        "tied": found.tied,
    }
    if found.quantization is not None:
        said = found.quantization._asdict()
        facts |= {key: list(value) if isinstance(value, tuple) else value for key, value in said.items()}
    try:
        resolution = Registry.load(()).resolve(file.data)
        facts |= {"model_type": resolution.model_type, "family_from": resolution.found_by}
    except FamilyError as error:
        facts["error_kind"] = error.code.removeprefix("family.")
    if path.is_dir():
        facts |= _embedding(path)
    return facts


def _refused(error: CheckpointError) -> dict[str, Any]:
    words = {"field": error.rule.split()[0], "name": error.observed}
    return {"status": "fail", "error_kind": error.code.removeprefix("checkpoint."), **words}


def _embedding(folder: Path) -> dict[str, Any]:
    """A tied checkpoint has the embedding once, and it is counted once."""
    try:
        with Checkpoint.open(folder) as checkpoint:
            sizes = [one.nbytes for name, one in checkpoint.tensors.items() if "embed" in name or "lm_head" in name]
    except CheckpointError as error:
        return _refused(error)
    return {"embedding_bytes_counted": sum(sizes)}


def _types(table: dict[str, Any]) -> list[Row]:
    registry = Registry([_names_only(name) for name in table["registered"]])
    rows = []
    for model_type, wanted in table["cases"]:
        config = {"model_type": model_type, "architectures": ["DeepseekV3ForCausalLM"]}
        try:
            found = registry.resolve(config).descriptor.id
        except FamilyError as error:
            found = error.code
        unknown = wanted.startswith("unknown") and found == "family.unknown-type"
        broken = "-type" not in wanted and found in ("family.no-model-type", "family.model-type")
        rows.append(Row(repr(model_type), wanted, found, found == wanted or unknown or broken))
    return rows


def _names_only(name: str) -> Family:
    descriptor = Descriptor(id=name, api=">=1", name=name, origin="case", model_types=(name,), architectures=())
    return Family(descriptor, BUILT_IN)


KINDS = {"config": config_kind}
