"""What a model folder holds: configs, index, headers and the table of all tensors, with everything that is wrong.

`Checkpoint.open` refuses a folder that has problems; the doctor shows them. Both read it here.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from coli.engine.foreign import foreign_file
from coli.engine.location import child, readable
from coli.engine.safetensors import Header, TensorInfo, examine_header
from coli.errors import CheckpointError
from coli.families.config_file import decode_text, read_config

__all__ = ["INDEX", "Contents", "Index", "Note", "combined", "read_contents", "read_index"]

INDEX_LIMIT_BYTES = 256 << 20
INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_NUMBERED = re.compile(r"model-\d{5}-of-(\d{5})\.safetensors")
_SHOWN = 20


class Note(NamedTuple):
    """Something odd that changes nothing: ``code`` is stable, ``subject`` a file or tensor, ``data`` for programs."""

    code: str
    subject: str
    text: str
    data: Mapping[str, Any] = {}


class Index(msgspec.Struct):
    """The decoded index: the file of each tensor."""

    weight_map: dict[str, str]
    metadata: dict[str, Any] | None = None


@dataclass
class Contents:
    """What was read, as far as it could be. ``names``: the weight files of the model, whether they are there or not."""

    folder: Path
    config: dict[str, Any] | None = None
    generation_config: dict[str, Any] | None = None
    index: Index | None = None
    names: Sequence[str] = ()
    headers: dict[str, Header] = field(default_factory=dict)
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    problems: list[CheckpointError] = field(default_factory=list)


def read_contents(folder: Path) -> Contents:
    """Read the texts and the headers of a model folder; no weights. Collects every CheckpointError, raises none."""
    found = Contents(folder)
    found.config = _read_config(found, "config.json")
    if os.path.lexists(folder / "generation_config.json"):
        found.generation_config = _read_config(found, "generation_config.json")
    try:
        with readable(folder):
            present = sorted(entry.name for entry in folder.iterdir())
    except CheckpointError as error:
        found.problems.append(error)
        return found
    try:
        found.index = read_index(folder)
        found.names = sorted(set(found.index.weight_map.values())) if found.index else _without_index(found, present)
    except CheckpointError as error:
        found.problems.append(error)
        found.names = [name for name in present if _NUMBERED.fullmatch(name)]
    broken = _read_headers(found, present)
    _join(found, broken)
    used = set(found.names)
    found.ignored = [n for n in present if n not in used and n.endswith((".safetensors", ".incomplete"))]
    found.notes += [Note("checkpoint.ignored-file", n, "not part of the model, ignored") for n in found.ignored]
    return found


def combined(folder: Path, problems: Sequence[CheckpointError]) -> CheckpointError:
    """Return one error for all: a user who must fetch ten files should learn it at once."""
    first = problems[0]
    if len(problems) == 1:
        return first
    lines = [f"{_name(p.subject, folder)}: {p.rule}" + (f" ({p.observed})" if p.observed else "") for p in problems]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"and {len(problems) - _SHOWN} more"]
    return CheckpointError(
        str(folder),
        f"{len(problems)} problems with the files of the model",
        observed="\n            ".join(lines),
        fix=first.fix,
        code=first.code,
        data={"codes": [problem.code for problem in problems]},
    )


def _name(subject: str, folder: Path) -> str:
    return subject.removeprefix(f"{folder}{os.sep}") if subject != str(folder) else folder.name


def _read_config(found: Contents, name: str) -> dict[str, Any] | None:
    try:
        if name == "config.json" and not os.path.lexists(found.folder / name):
            path = found.folder / name
        else:
            path = child(found.folder, name)
        try:
            file = read_config(path)
        except CheckpointError as error:
            if not path.is_file():
                raise
            with readable(path):
                raise foreign_file(path) or error from None
    except CheckpointError as error:
        found.problems.append(error)
        return None
    found.notes.extend(Note("checkpoint.config", name, text) for text in file.notes)
    return file.data


def read_index(folder: Path) -> Index | None:
    """Read the index of a folder, None when it has none. Raises CheckpointError."""
    if not os.path.lexists(folder / INDEX):
        return None
    path = child(folder, INDEX)
    try:
        with readable(path), path.open("rb") as file:
            raw = file.read(min(path.stat().st_size, INDEX_LIMIT_BYTES) + 1)
        if len(raw) > INDEX_LIMIT_BYTES:
            raise ValueError(f"larger than {INDEX_LIMIT_BYTES} bytes")
        index = msgspec.json.decode(raw if raw.startswith(b"{") else decode_text(path, raw)[0], type=Index)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError) as error:
        with readable(path):
            other = foreign_file(path)
        raise other or _bad_index(
            path,
            "the index must be a JSON object whose weight_map gives the file of each tensor",
            str(error) if raw.strip() else "an empty file",
        ) from error
    if not index.weight_map:
        raise _bad_index(path, "the weight_map is empty", None, empty=True)
    for name in set(index.weight_map.values()):
        # An index is untrusted: it must not make the program open files outside of the folder.
        if Path(name).name != name or "\\" in name or "\0" in name or not name.endswith(".safetensors"):
            raise _bad_index(path, "the index must name .safetensors files in its own folder", repr(name[:200]))
    return index


def _bad_index(path: Path, rule: str, observed: str | None, **data: Any) -> CheckpointError:
    return CheckpointError(
        str(path), rule, observed=observed, fix="download this file again", code="checkpoint.index", data=data
    )


def _without_index(found: Contents, present: Sequence[str]) -> list[str]:
    """Return the files of a model that has no index: one file, or numbered ones, whose index is missing."""
    if _SINGLE in present:
        return [_SINGLE]
    numbered = [name for name in present if _NUMBERED.fullmatch(name)]
    if numbered:
        found.problems.append(
            CheckpointError(
                str(found.folder / INDEX),
                "the index of the weight files is missing",
                observed=f"{len(numbered)} weight files, {numbered[0]} to {numbered[-1]}",
                fix=f"download {INDEX} from the same place",
                code="checkpoint.missing-index",
            )
        )
        return _complete(numbered)
    unfinished = [name for name in present if name.startswith(f"{_SINGLE}.")]
    if unfinished or _downloading(found.folder, _SINGLE):
        return [_SINGLE]
    others = [
        name for name in present if name.endswith((".safetensors", ".bin", ".pt", ".pth", ".gguf", ".incomplete"))
    ]
    raise CheckpointError(
        str(found.folder),
        "the folder holds no weights",
        observed=", ".join(others[:8]) or "no weight files of any kind",
        expected=f"{INDEX} with its files, or {_SINGLE}",
        fix="download the safetensors files of the model",
        code="checkpoint.no-weights",
    )


def _complete(numbered: Sequence[str]) -> list[str]:
    """Return all names of a numbered set, from what `-of-00046` says; the given ones when they disagree."""
    counts = {int(match[1]) for name in numbered if (match := _NUMBERED.fullmatch(name))}
    if len(counts) != 1 or not len(numbered) <= max(counts) <= 4096:
        return list(numbered)
    return [f"model-{number:05d}-of-{max(counts):05d}.safetensors" for number in range(1, max(counts) + 1)]


def _read_headers(found: Contents, present: Sequence[str]) -> set[str]:
    """Read every header; return the files whose tensors are not known."""
    broken: set[str] = set()
    missing: list[str] = []
    there = set(present)
    for name in found.names:
        if name not in there and not os.path.lexists(found.folder / name):
            broken.add(name)
            partial = _unfinished(found.folder, name, present)
            if partial is None:
                missing.append(name)
            else:
                _add(found, name, _half(found.folder / name, partial))
            continue
        if f"{name}.aria2" in there:  # the file has its full length already, and holes
            _add(found, name, _half(found.folder / name, found.folder / f"{name}.aria2"))
        try:
            header, problems = examine_header(child(found.folder, name))
        except CheckpointError as error:
            header, problems = None, (error,)
        _add(found, name, *problems)
        if header is None:
            broken.add(name)
        else:
            found.headers[name] = header
    if missing:
        found.problems.append(_missing(found, missing))
    return broken


def _add(found: Contents, name: str, *problems: CheckpointError) -> None:
    """Add problems of one file; the path in a problem may be that of a blob in a cache."""
    for problem in problems:
        problem.data = {**problem.data, "file": name}
        found.problems.append(problem)


def _missing(found: Contents, missing: Sequence[str]) -> CheckpointError:
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return CheckpointError(
        str(found.folder),
        f"{len(missing)} of {len(found.names)} weight files are missing",
        observed=f"not there: {', '.join(missing[:_SHOWN])}{more}",
        fix=_how_to_fetch(found.folder, missing),
        code="checkpoint.missing-shard",
        data={"missing": tuple(missing), "present": len(found.names) - len(missing)},
    )


def _unfinished(folder: Path, name: str, present: Sequence[str]) -> Path | None:
    """Return what a downloader left of a file that is not there: the tools write beside it, or in a folder apart."""
    for other in present:
        if other.startswith(f"{name}.") and other.endswith((".incomplete", ".part", ".partial", ".crdownload", ".tmp")):
            return folder / other
    return _downloading(folder, name)


def _downloading(folder: Path, name: str) -> Path | None:
    # `hf download --local-dir` names the part by a hash of the name of its metadata, older versions by the name.
    apart = folder / ".cache" / "huggingface" / "download"
    digest = base64.urlsafe_b64encode(hashlib.sha1(f"{name}.metadata".encode(), usedforsecurity=False).digest())
    try:
        entries = sorted(entry.name for entry in apart.iterdir())
    except OSError:
        return None
    starts = (f"{digest.decode()}.", f"{name}.")
    return next((apart / e for e in entries if e.startswith(starts) and e.endswith(".incomplete")), None)


def _half(path: Path, partial: Path) -> CheckpointError:
    try:
        have = partial.stat().st_size
    except OSError:
        have = 0
    return CheckpointError(
        str(path),
        "the download of this file is unfinished",
        observed=f"{have} bytes in {partial.name}",
        fix="download the model again; the download resumes where it stopped",
        code="checkpoint.incomplete-download",
        data={"have_bytes": have, "partial": partial.name},
    )


def _how_to_fetch(folder: Path, missing: Sequence[str]) -> str:
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        # In a cache the hub's own tool knows the place; files copied beside its links would be a second truth.
        name = repository.removeprefix("models--").replace("--", "/", 1)
        return f"`hf download {name}` fetches what is missing; what is there is kept"
    return (
        f"download just {'that file' if len(missing) == 1 else 'those files'}, for example "
        f"`hf download REPOSITORY {missing[0]} --local-dir {folder}`"
    )


def _join(found: Contents, broken: set[str]) -> None:
    """Join the headers into one table; where the index says something else, the headers are right."""
    weight_map: Mapping[str, str] = found.index.weight_map if found.index else {}
    place: dict[str, str] = {}
    unlisted = 0
    for file, header in found.headers.items():
        for name, info in header.tensors.items():
            claimed = weight_map.get(name)
            if name in place:  # two files hold it: only the index can tell which one counts
                if claimed not in (file, place[name]):
                    found.problems.append(_twice(found.folder, name, place[name], file))
                    continue
                text = f"in {place[name]} and {file}; the index names {claimed}"
                found.notes.append(Note("checkpoint.tensor-twice", name, text))
                if claimed != file:
                    continue
            unlisted += found.index is not None and claimed is None
            place[name] = file
            found.tensors[name] = info
    if unlisted:
        text = f"{unlisted} tensors in the files are not in the index"
        found.notes.append(Note("checkpoint.unlisted-tensors", INDEX, text))
    if found.index is not None:
        _compare(found, found.index, place, broken)


def _twice(folder: Path, name: str, first: str, second: str) -> CheckpointError:
    return CheckpointError(
        f"{folder}: {name}",
        "two weight files hold this tensor and the index names neither",
        observed=f"{first} and {second}",
        fix="remove the files of the other release from the folder",
        code="checkpoint.tensor-twice",
        data={"tensors": (name,), "files": (first, second)},
    )


def _compare(found: Contents, index: Index, place: Mapping[str, str], broken: set[str]) -> None:
    # What a file that cannot be read would hold is not known to be absent.
    absent = {name: file for name, file in index.weight_map.items() if name not in place and file not in broken}
    misplaced = {name: (file, place[name]) for name, file in index.weight_map.items() if place.get(name, file) != file}
    if absent:
        shown = ", ".join(f"{name} ({file})" for name, file in list(absent.items())[:10])
        found.problems.append(
            CheckpointError(
                str(found.folder / INDEX),
                f"{len(absent)} tensors of the index are in none of the weight files",
                observed=shown
                + (f" and {len(absent) - 10} more" if len(absent) > 10 else "")
                + (
                    f"; {len(misplaced)} others are in another file than it says, first {next(iter(misplaced))}"
                    if misplaced
                    else ""
                ),
                fix="index and weight files are of different releases: download both again",
                code="checkpoint.absent-tensor",
                data={"absent": absent},
            )
        )
    for name, (said, real) in misplaced.items():
        text = f"the index says {said}, it is in {real}"
        found.notes.append(Note("checkpoint.misplaced-tensor", name, text, {"files": (said, real)}))
    claimed = (index.metadata or {}).get("total_size")
    total = sum(info.nbytes for info in found.tensors.values())
    if isinstance(claimed, int) and claimed != total and not found.problems:
        text = f"the index says {claimed} bytes, the tensors have {total}"
        found.notes.append(Note("checkpoint.total-size", INDEX, text))
