"""The file of a machine, `coli.machine/1`: its facts and the raw inputs, both without what tells whose it is."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from coli.atomic_file import write_atomically
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.record.plain import from_plain, to_plain
from coli.doctor.record.raw import RawFacts
from coli.doctor.record.redact import Redactor
from coli.errors import UsageError

__all__ = ["SCHEMA", "read_machine", "to_record", "write_machine"]

SCHEMA = "coli.machine/1"
_MAX_BYTES = 64 << 20


def write_machine(path: Path, facts: MachineFacts, raw: RawFacts, environment: Mapping[str, str]) -> None:
    """Write facts and raw inputs to ``path``. ``environment``: its home, user and secrets are replaced."""
    document = to_record(facts, raw, redactor_of(environment))
    write_atomically(path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")


def redactor_of(environment: Mapping[str, str]) -> Redactor:
    """Return what replaces the names of this user and machine."""
    user = environment.get("USER") or environment.get("LOGNAME") or environment.get("USERNAME")
    hosts = {socket.gethostname(), environment.get("HOSTNAME", ""), environment.get("COMPUTERNAME", "")}
    home = environment.get("HOME") or environment.get("USERPROFILE")
    return Redactor(home, user, sorted(hosts - {""}), environment)


def to_record(facts: MachineFacts, raw: RawFacts, redactor: Redactor) -> dict[str, Any]:
    """Return the document. Pure."""
    plain, inputs = to_plain(facts), to_plain(raw)
    redactor.learn([json.dumps(plain), *(tool.output for tool in raw.tools), *(file.text for file in raw.files)])
    for gpu in (plain.get("devices") or {}).get("gpus", ()):
        for holder in gpu["holders"]:
            if holder["name"]["value"] is not None:
                holder["name"]["value"] = redactor.process(holder["name"]["value"])
    document: dict[str, Any] = {"schema": SCHEMA, "facts": redactor.plain(plain), "raw": redactor.plain(inputs)}
    document["facts"]["here"] = False
    return document


def read_machine(path: Path) -> MachineFacts:
    """Read the facts of a machine. Raises UsageError for a file that is not of this form."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            str(path),
            "the file of a machine cannot be read",
            observed=error.strerror,
            fix="name a file that `coli doctor --record FILE` wrote",
            code="usage.machine-file",
        ) from None
    if len(data) > _MAX_BYTES:
        raise UsageError(
            str(path), "the file of a machine is too large", expected="at most 64MiB", code="usage.machine-file"
        )
    try:
        document = json.loads(data)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            found = document.get("schema") if isinstance(document, dict) else type(document).__name__
            raise ValueError(f"schema {found!r}")
        return from_plain(document.get("facts"), MachineFacts)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise UsageError(
            str(path),
            "it is not the file of a machine",
            observed=str(error)[:300],
            expected=f"{SCHEMA}, as `coli doctor --record FILE` writes it",
            fix="record the machine again with this version of coli",
            code="usage.machine-file",
        ) from None
