"""What lies in the place of a file of the model when it is something well known: a pointer, a web page, a pickle."""

from __future__ import annotations

import re
from pathlib import Path

from coli.errors import CheckpointError

__all__ = ["SNIFF_BYTES", "foreign_content", "foreign_file"]

SNIFF_BYTES = 512

_LFS_START = re.compile(rb"version https?://(?:git-lfs\.github\.com|hawser\.github\.com|git-media\.io)/", re.ASCII)
_LFS_SIZE = re.compile(rb"^size (\d{1,19})\s*$", re.ASCII | re.MULTILINE)
_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (b"GGUF", "a GGUF file"),
    (b"PK\x03\x04", "a zip archive, as PyTorch writes its .bin and .pt files"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x80\x02", "a pickle, as PyTorch wrote its older files"),
)
_PAGES = (b"<!doctype html", b"<html", b"<head", b"<?xml", b"<body")
_MESSAGES = (b'{"error', b"entry not found", b"invalid username", b"access to model", b"repository not found")


def foreign_file(path: Path) -> CheckpointError | None:
    """Look at the first bytes of a file for something known that is not the file itself. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        return foreign_content(path, file.read(SNIFF_BYTES), path.stat().st_size)


def foreign_content(path: Path, start: bytes, file_bytes: int) -> CheckpointError | None:
    """Name what lies in the place of ``path``, from its first bytes, if it is something known."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if _LFS_START.match(text):
        match = _LFS_SIZE.search(text)
        size = f", which stands for {int(match[1])} bytes" if match else ""
        return CheckpointError(
            str(path),
            "this is a Git LFS pointer, not the file itself: the content was not fetched",
            observed=f"a text of {file_bytes} bytes{size}",
            expected=f"{int(match[1])} bytes" if match else None,
            fix="run `git lfs install` and `git lfs pull` in the clone, or download the file itself",
            code="checkpoint.git-lfs-pointer",
            data={"real_bytes": int(match[1]) if match else None, "file_bytes": file_bytes},
        )
    lower = text[:64].lower()
    if lower.startswith(_PAGES):
        return CheckpointError(
            str(path),
            "this is a web page that was saved in the place of the file",
            observed=f"{file_bytes} bytes of HTML",
            fix="download the file itself (log in first, if the model asks for it)",
            code="checkpoint.html-page",
        )
    if lower.startswith(_MESSAGES):
        return CheckpointError(
            str(path),
            "this is a server's error message that was saved in the place of the file",
            observed=repr(text[:80].decode("utf-8", "replace")),
            fix="download the file itself (log in first, if the model asks for it)",
            code="checkpoint.error-page",
        )
    for magic, what in _FOREIGN:
        if start.startswith(magic):
            return CheckpointError(
                str(path),
                f"this is {what}, not a file of a safetensors model",
                fix="use the safetensors release of the model",
                code="checkpoint.other-format",
            )
    return None
