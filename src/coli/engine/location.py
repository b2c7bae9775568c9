"""Where a checkpoint lies: a plain folder, or a snapshot in a Hugging Face cache with its links."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from coli.errors import CheckpointError

__all__ = ["child", "find_snapshot", "readable"]

_REVISION = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
_REPOSITORY = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*/[0-9A-Za-z][0-9A-Za-z._-]*")  # owner/name, as hubs have it
_GGUF = "GGUF is not read: download the release of the model that has config.json and .safetensors files"
_TEXT_LINK = re.compile(rb"\.\.[/\\]\.\.[/\\]blobs[/\\]([0-9A-Za-z]{6,64})\s*")  # no dots: never out of the folder


_FIXES = {
    errno.EACCES: "check the permissions of the file and its folders",
    errno.EMFILE: "raise the limit on open files (ulimit -n): a model needs one for each weight file",
    errno.EIO: "check the disk: it reports an error",
}


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a CheckpointError that names ``path``."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            str(path),
            "it cannot be read",
            observed=error.strerror or str(error),
            fix=_FIXES.get(error.errno or 0),
            code="checkpoint.unreadable",
        ) from error


def find_snapshot(path: Path) -> Path:
    """Return the folder that holds config.json: ``path`` itself, or the snapshot of the cache folder that it is.

    Raises CheckpointError saying what the path is instead.
    """
    with readable(path):
        return _find(path)


def _find(path: Path) -> Path:
    if not path.exists():
        dangling = path.is_symlink()
        raise CheckpointError(
            str(path),
            "the model folder does not exist",
            observed=f"a link to {path.readlink()}, which is not there" if dangling else None,
            fix=f"coli downloads nothing: `hf download {path}` fetches a model and prints its folder"
            if _REPOSITORY.fullmatch(str(path))
            else "give the folder that holds config.json",
            code="checkpoint.no-folder",
        )
    if not path.is_dir():
        raise CheckpointError(
            str(path),
            "a model is a folder with config.json and its weight files, not one file",
            fix=_GGUF if path.suffix == ".gguf" else f"give the folder: {path.parent}",
            code="checkpoint.not-a-folder",
        )
    if os.path.lexists(path / "config.json"):
        return path
    if (path / "snapshots").is_dir():
        return _snapshot(path)
    root = path / "hub" if (path / "hub").is_dir() else path
    models = sorted(entry for entry in root.iterdir() if entry.name.startswith("models--") and entry.is_dir())
    if len(models) == 1:
        return _snapshot(models[0])
    if models:
        raise CheckpointError(
            str(path),
            "this cache holds more than one model",
            observed=_listed([model.name for model in models]),
            fix=f"give one of them, for example {models[0]}",
            code="checkpoint.many-models",
        )
    present = sorted(entry.name for entry in path.iterdir())
    has_gguf = any(name.endswith(".gguf") for name in present)
    raise CheckpointError(
        str(path),
        "the folder has no config.json",
        observed=_listed(present) or "an empty folder",
        expected="config.json, tokenizer.json and .safetensors files",
        fix=_GGUF if has_gguf else "give the folder that holds config.json, or download the rest of the model",
        code="checkpoint.no-config",
    )


def _snapshot(repository: Path) -> Path:
    snapshots = sorted(entry.name for entry in (repository / "snapshots").iterdir() if entry.is_dir())
    revision = None
    reference = repository / "refs" / "main"
    if reference.is_file():
        with reference.open("rb") as file:
            revision = file.read(256).decode("utf-8", "replace").strip()
        if not _REVISION.fullmatch(revision):
            raise CheckpointError(
                str(reference),
                "this is not the name of a revision",
                observed=repr(revision),
                code="checkpoint.revision",
            )
    elif len(snapshots) == 1:
        revision = snapshots[0]
    if revision in snapshots and revision is not None:
        folder = repository / "snapshots" / revision
        if os.path.lexists(folder / "config.json"):
            return folder
        raise CheckpointError(
            str(folder),
            "the snapshot has no config.json: the download was interrupted or only some files were asked for",
            observed=_listed(sorted(entry.name for entry in folder.iterdir())) or "an empty folder",
            fix="download the model again; what is there is kept",
            code="checkpoint.no-config",
        )
    raise CheckpointError(
        str(repository),
        "the snapshot that refs/main names is not there" if revision else "refs/main is missing and no single snapshot",
        observed=f"snapshots: {_listed(snapshots) or 'none'}" + (f"; refs/main: {revision}" if revision else ""),
        fix="download the model again, or give one folder below snapshots",
        code="checkpoint.no-snapshot",
    )


def child(folder: Path, name: str) -> Path:
    """Return the file that ``name`` in ``folder`` stands for, after links.

    Systems without symbolic links hold a snapshot's links as small text files: followed too, into the repository's own
    blobs. Raises CheckpointError for a link whose target is not there, with the bytes of an unfinished download beside
    it.
    """
    path = folder / name
    target = path
    if path.is_symlink():
        target = Path(os.path.normpath(folder / path.readlink()))
    elif folder.parent.name == "snapshots" and path.is_file() and path.stat().st_size <= 128:
        match = _TEXT_LINK.fullmatch(path.read_bytes())
        if match:
            target = folder.parent.parent / "blobs" / match[1].decode()
            path = target
    if path.exists():
        if not path.is_file():  # before anyone opens it: opening a FIFO would wait for a writer
            raise CheckpointError(str(folder / name), "this must be a regular file", code="checkpoint.not-a-file")
        return path
    partial = sorted(target.parent.glob(f"{target.name}*.incomplete")) if target.parent.is_dir() else []
    if partial:
        raise CheckpointError(
            str(folder / name),
            "the download of this file is unfinished",
            observed=f"{partial[0].stat().st_size} bytes in {partial[0].name}",
            fix="download the model again; the download resumes where it stopped",
            code="checkpoint.incomplete-download",
            data={"have_bytes": partial[0].stat().st_size, "partial": partial[0].name},
        )
    raise CheckpointError(
        str(folder / name),
        "this is a link to a file that is not there",
        observed=str(target),
        fix="download the model again; what is there is kept",
        code="checkpoint.dangling-link",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
