"""Checks of the disks that a model, its mirrors and the caches lie on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from coli.doctor.checks.finding import Check, Evidence, Finding, not_known, seen
from coli.doctor.facts.machine import MachineFacts
from coli.doctor.facts.storage import StorageFacts
from coli.units import render_size

__all__ = ["CHECKS"]

# Typical rates of reading whole records, in bytes per second; only a measurement says what this disk does.
_TYPICAL = {"hdd": "0.1 to 0.2 GB/s", "usb": "0.4 to 1 GB/s", "mmc": "0.1 to 0.3 GB/s", "ssd": "about 0.5 GB/s"}
_SLOW = {"hdd": "a spinning disk", "usb": "a disk on USB", "mmc": "a memory card"}
_LEAST_CACHE_BYTES = 2 << 30
_SLOW_BYTES_PER_S = 0.7e9  # what SATA reaches at most


def _of(facts: MachineFacts, *roles: str) -> list[StorageFacts]:
    return [storage for storage in facts.storage or () if storage.role in roles]


def _place(storage: StorageFacts) -> str:
    place = storage.mount_point.value or storage.path
    return f"{storage.role} on {place}"


def _kind(facts: MachineFacts) -> Iterator[Finding]:
    places = _of(facts, "model", "mirror")
    if not places:
        yield not_known("storage", "the disk of the model", "no path was looked at")
    for storage in places:
        yield from _of_kind(storage, None if facts.measured is not None else "measure it")


def _of_kind(storage: StorageFacts, advice: str | None) -> Iterator[Finding]:
    file_system, kind = storage.fs_type.value, storage.kind.value
    shown = _place(storage)
    evidence = [seen(f"{storage.mount_source.value or '?'}, {file_system or '?'}", storage.fs_type)]
    if storage.resolved.value is not None and storage.resolved.value != storage.path:
        evidence.insert(0, seen(f"{storage.path} leads to {storage.resolved.value}", storage.resolved))
    evidence += [
        seen(f"{disk.name}: {disk.model.value or 'model not known'}, {disk.kind.value or 'kind not known'}", disk.kind)
        for disk in storage.disks
    ]
    fix = "copy it to a local NVMe disk"
    commands = (f"cp -a {shlex.quote(storage.path)} /path/on/a/local/nvme/disk/",)
    if storage.fs_class.value == "remote":
        windows = file_system in ("9p", "drvfs") and (storage.mount_point.value or "").startswith("/mnt/")
        if windows:
            yield Finding(
                "storage.windows-drive",
                "warn",
                f"{shown}: a Windows drive, reached through the 9p bridge",
                tuple(evidence),
                fix="copy it into the Linux file system of WSL, for example your home folder",
                commands=(f"cp -a {shlex.quote(storage.path)} ~/",),
                cost="reading experts is about ten times slower than from WSL's own disk",
            )
            return
        yield Finding(
            "storage.remote",
            "warn",
            f"{shown}: a remote file system ({file_system})",
            tuple(evidence),
            fix=fix,
            commands=commands,
            cost="every expert that is not in memory comes over the network",
        )
    elif storage.fs_class.value == "memory":
        yield Finding(
            "storage.memory",
            "warn",
            f"{shown}: a file system in memory ({file_system})",
            tuple(evidence),
            fix="move it to a disk: what lies here takes the memory that the expert cache needs",
            commands=commands,
            cost=f"the model takes its whole size of RAM{_free(storage)}",
        )
    elif kind in _SLOW:
        yield Finding(
            f"storage.{kind}",
            "warn",
            f"{shown}: {_SLOW[kind]}, which reads {_TYPICAL[kind]}",
            tuple(evidence),
            fix=fix,
            commands=commands,
            cost="every expert that is not in memory is waited for; an NVMe disk reads 3 to 7 GB/s",
        )
    elif kind is None:
        yield Finding(
            "storage.not-known",
            "skip",
            f"not known: what kind of disk the {shown} is ({file_system or 'file system not known'}: "
            f"{storage.kind.source})",
            (*evidence, Evidence(storage.kind.source, "storage")),
            fix=advice,
            commands=_measure(storage.path, advice),
        )
    elif kind == "ssd":
        yield Finding(
            "storage.sata",
            "note",
            f"{shown}: an SSD that is not NVMe, which reads {_TYPICAL[kind]}",
            tuple(evidence),
            fix="an NVMe disk reads 3 to 7 GB/s; copy the model there if there is one",
            cost="experts that are not in memory come about ten times slower than from NVMe",
        )
    elif kind == "virtual":
        yield Finding(
            "storage.virtual",
            "note",
            f"{shown}: a virtual disk, whose host does not tell what is below",
            tuple(evidence),
            fix=advice,
            commands=_measure(storage.path, advice),
        )
    else:
        yield Finding("storage.kind", "ok", f"{shown}: {kind.upper()}, {file_system}", tuple(evidence))


def _measure(path: str, advice: str | None) -> tuple[str, ...]:
    return (f"coli doctor {shlex.quote(path)} --measure",) if advice else ()


def _free(storage: StorageFacts) -> str:
    return "" if storage.free_bytes.value is None else f"; {render_size(storage.free_bytes.value)} are free there"


def _direct(facts: MachineFacts) -> Iterator[Finding]:
    places = _of(facts, "model", "mirror")
    if not places:
        yield not_known("storage", "direct reads", "no path was looked at")
    for storage in places:
        direct = storage.direct_reads
        if not direct.known:
            yield Finding(
                "storage.not-known",
                "skip",
                f"not known: whether the {_place(storage)} can be read past the page cache ({direct.source})",
                (seen("O_DIRECT", direct),),
            )
        elif direct.value:
            alignment = storage.direct_alignment_bytes.value
            shown = f"{_place(storage)}: direct reads work" + (f", in units of {alignment} bytes" if alignment else "")
            yield Finding("storage.direct", "ok", shown, (seen("O_DIRECT", direct),))
        else:
            yield Finding(
                "storage.no-direct",
                "note",
                f"{_place(storage)}: {storage.fs_type.value or 'the file system'} takes no direct reads",
                (seen("O_DIRECT", direct),),
                fix="nothing has to be done: files are read through the page cache; ext4 and xfs read directly",
                cost="some memory and a copy for what is read",
            )


def _space(facts: MachineFacts) -> Iterator[Finding]:
    places = _of(facts, "cache", "data")
    if not places:
        yield not_known("storage", "free space", "no path was looked at")
    for storage in places:
        free = storage.free_bytes.value
        if storage.read_only.value:
            yield Finding(
                "storage.read-only",
                "warn",
                f"{_place(storage)} is read-only",
                (seen("read-only", storage.read_only),),
                fix="point XDG_CACHE_HOME and XDG_DATA_HOME at folders that can be written",
                commands=("export XDG_CACHE_HOME=/tmp/coli-cache XDG_DATA_HOME=/tmp/coli-data",),
                cost="nothing is kept from one start to the next, and no backend can be installed",
            )
        elif free is None:
            yield not_known("storage", f"how much is free for the {_place(storage)}", storage.free_bytes.source)
        elif free < _LEAST_CACHE_BYTES:
            yield Finding(
                "storage.full",
                "warn",
                f"{_place(storage)}: {render_size(free)} free",
                (seen(f"{free} bytes", storage.free_bytes),),
                fix="free some space; building CUDA backends takes about 2 GiB",
                commands=(f"du -xh -d1 {shlex.quote(storage.mount_point.value or '/')} | sort -h | tail",),
                cost="building a backend stops half way",
            )
        else:
            yield Finding(
                "storage.space",
                "ok",
                f"{_place(storage)}: {render_size(free)} free",
                (seen(f"{free} bytes", storage.free_bytes),),
            )


def _bandwidth(facts: MachineFacts) -> Iterator[Finding]:
    measured = facts.measured
    if measured is None:
        command = (f"coli doctor {shlex.quote(facts.model or 'MODEL')} --measure",) if facts.here else ()
        yield Finding("storage.not-measured", "skip", "not measured: how fast the disk reads experts", commands=command)
        return
    if measured.not_kept is not None:
        yield Finding(
            "storage.not-kept",
            "warn",
            "what was measured could not be kept",
            (Evidence(measured.not_kept, "file system"),),
            fix="free some space, or point XDG_CACHE_HOME at a folder that can be written; then measure again",
            cost="`coli plan` goes on guessing",
        )
    rate = measured.disk_bytes_per_s
    if rate.value is None:
        # To measure again would come to the same: the reason is part of what is said.
        yield not_known("storage", f"how fast {measured.storage} reads experts", rate.source)
        return
    shown = f"{measured.storage} reads experts at {rate.value / 1e9:.2f} GB/s"
    evidence = (seen(f"{rate.value:.0f} bytes/s, measured {measured.date}", rate),)
    if rate.value < _SLOW_BYTES_PER_S:
        yield Finding(
            "storage.slow",
            "warn",
            shown,
            evidence,
            fix="copy the model to an NVMe disk; those read 3 to 7 GB/s",
            cost="every expert that is not in memory is waited for",
        )
    else:
        yield Finding("storage.bandwidth", "ok", shown, evidence)


CHECKS = (
    Check("storage.kind", (), ("storage",), "whether the model lies on a fast local disk", _kind, model=True),
    Check("storage.direct", (), ("storage",), "whether the disk can be read past the page cache", _direct, model=True),
    Check(
        "storage.bandwidth",
        (),
        ("storage", "measured"),
        "how fast experts are read, as measured",
        _bandwidth,
        model=True,
    ),
    Check("storage.space", (), ("storage",), "whether cache and data folders have space", _space),
)
