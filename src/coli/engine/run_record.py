"""What the last run of a model really took, written when it closes: `coli plan --audit` compares it with the plan."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from coli.atomic_file import write_atomically
from coli.engine.ledger import TierReport

__all__ = ["Decoded", "RunRecord", "peak_resident_bytes", "read_run_record", "write_run_record"]

SCHEMA = "coli.run-record/1"
_LIMIT_BYTES = 1 << 20


_Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
_Some = Annotated[int, Meta(ge=1, lt=1 << 31)]


class Decoded(msgspec.Struct, frozen=True):
    """Passes of a model: how many, and the tokens and seconds of those that decoded one token."""

    passes: _Count = 0
    tokens: _Count = 0
    seconds: Annotated[float, Meta(ge=0.0)] = 0.0

    def plus(self, tokens: int, position: int, seconds: float) -> Decoded:
        """Return these passes and one more over ``tokens`` at ``position``; one token that follows others is decode."""
        decode = tokens == 1 and position > 0
        return Decoded(self.passes + 1, self.tokens + decode, self.seconds + seconds * decode)


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Bytes; ``tiers`` is the report of the ledger, ``peak_resident_bytes`` the system's own number."""

    schema: str = SCHEMA
    model: str
    family: str
    context: _Some
    prefill_chunk: _Some
    threads: _Some
    io: str
    peak_resident_bytes: _Count
    tiers: dict[str, TierReport]
    decoded: Decoded
    expert_slabs: _Count
    experts: _Count
    expert_hits: _Count
    expert_misses: _Count

    def __post_init__(self) -> None:
        """Refuse numbers that no ledger reports; a file may hold anything."""
        for tier in self.tiers.values():
            numbers = [tier["limit_bytes"] or 0, tier["reserved_bytes"], tier["peak_bytes"]]
            numbers += [number for item in tier["items"] for number in (item["count"], item["bytes"])]
            if not all(0 <= number < 1 << 62 for number in numbers):
                raise ValueError("a tier has numbers that cannot be")


def peak_resident_bytes() -> int:
    """Return the most memory that this process ever held."""
    with contextlib.suppress(OSError):
        # Of this program: getrusage also counts what was held before exec.
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        if found := re.search(r"^VmHWM:\s+(\d{1,15}) kB", status, re.MULTILINE):
            return int(found.group(1)) << 10
    import psutil

    info = psutil.Process().memory_info()
    return int(getattr(info, "peak_wset", info.rss))


def write_run_record(folder: Path, record: RunRecord) -> None:
    """Write the record of a model's last run, whole or not at all. A folder that nobody may write stays as it is."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(_place(folder, record.model), msgspec.json.encode(record).decode())


def read_run_record(folder: Path, model: Path) -> RunRecord | None:
    """Return the record of the last run of ``model`` (its folder), None when there is none that can be read."""
    try:
        with _place(folder, str(model)).open("rb") as file:
            record = msgspec.json.decode(file.read(_LIMIT_BYTES), type=RunRecord)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if record.schema == SCHEMA and record.model == str(model) else None


def _place(folder: Path, model: str) -> Path:
    return folder / f"{hashlib.sha256(model.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"
