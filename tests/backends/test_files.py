"""Questions about files that cannot be answered are answered with no."""

from __future__ import annotations

from pathlib import Path

from coli.backends.files import globbed, is_file, is_folder, is_there, real_path


def test_names_that_cannot_be(tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 5000), tmp_path / "a\0b"):
        assert not is_file(path)
        assert not is_folder(path)
        assert not is_there(path)
        assert globbed(path, "*") == []
        real_path(path)


def test_circles_of_links(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    assert not is_file(circle)
    assert not is_there(circle)
    assert real_path(circle).name == "circle"


def test_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("b")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert [path.name for path in globbed(tmp_path, "[ab]")] == ["a", "b"]
    assert is_file(tmp_path / "link")
    assert is_folder(tmp_path / "a")
    assert not is_folder(tmp_path / "b")
    assert not is_there(tmp_path / "dangling")
    assert real_path(tmp_path / "link") == tmp_path.resolve() / "b"
