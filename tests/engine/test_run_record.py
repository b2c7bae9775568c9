"""A record of a run that somebody or a full disk damaged is none, and what reads it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coli.engine.run_record import Decoded, RunRecord, read_run_record, write_run_record

SOUND: dict[str, Any] = {
    "model": "/models/a",
    "family": "deepseek_v4",
    "context": 64,
    "prefill_chunk": 16,
    "threads": 2,
    "io": "buffered",
    "peak_resident_bytes": 1 << 26,
    "tiers": {
        "ram": {
            "limit_bytes": 1 << 30,
            "reserved_bytes": 5,
            "peak_bytes": 6,
            "items": [{"name": "runtime", "count": 1, "bytes": 5}],
        }
    },
    "decoded": Decoded(2, 1, 0.5),
    "expert_slabs": 3,
    "experts": 4,
    "expert_hits": 5,
    "expert_misses": 6,
}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    record = RunRecord(**SOUND)
    write_run_record(tmp_path / "runs", record)
    assert read_run_record(tmp_path / "runs", Path("/models/a")) == record
    assert [path.suffix for path in (tmp_path / "runs").iterdir()] == [".json"]


@pytest.mark.parametrize(
    "damage",
    [
        {"context": -5},
        {"threads": 0},
        {"prefill_chunk": 10**12},
        {"peak_resident_bytes": 10**30},
        {"decoded": {"passes": 1, "tokens": -1, "seconds": 1}},
        {"tiers": {"ram": {}}},
        {"tiers": {"ram": SOUND["tiers"]["ram"] | {"limit_bytes": "x"}}},
        {"tiers": {"ram": SOUND["tiers"]["ram"] | {"peak_bytes": -1}}},
        {"tiers": {"ram": SOUND["tiers"]["ram"] | {"items": 5}}},
        {"tiers": {"ram": SOUND["tiers"]["ram"] | {"items": [{}]}}},
    ],
)
def test_a_damaged_record_is_none(tmp_path: Path, damage: dict[str, Any]) -> None:
    write_run_record(tmp_path, RunRecord(**SOUND))
    (path,) = tmp_path.iterdir()
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | damage), encoding="utf-8")
    assert read_run_record(tmp_path, Path("/models/a")) is None
