"""What is written where: links, devices, pipes, and places that refuse."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from coli.atomic_file import write_atomically


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "file"
    target.write_text("old")
    target.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in target.parent.iterdir()) == ["file"]


def test_a_new_file_is_its_owners(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "ü")
    assert (tmp_path / "file").read_bytes() == b"\xc3\xbc"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    # Stands for /dev/null, which root would otherwise replace by a file.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_atomically(pipe, "text")
    reader.join(10)
    assert read == ["text"]
    assert pipe.is_fifo()


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write_atomically(path, "text")
    assert path.read_text() == "text"


@pytest.mark.parametrize("place", ["folder", "absent/file"])
def test_a_refusal_names_what_was_asked_for(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / place
    with pytest.raises(OSError) as refused:
        write_atomically(path, "text")
    assert refused.value.filename == str(path)
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]
