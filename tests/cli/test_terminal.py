from __future__ import annotations

import io

import pytest

from coli.cli.terminal import Terminal


class Screen(io.StringIO):
    encoding = "utf-8"

    def __init__(self, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


def test_escape_sequences_of_a_model_never_reach_a_terminal() -> None:
    screen, file = Screen(True), Screen(False)
    for stream in (screen, file):
        Terminal(stream).write("a\x1b[2Jb\n\tc\x07")
    assert screen.getvalue() == "a\\x1b[2Jb\n\tc\\x07"
    assert file.getvalue() == "a\x1b[2Jb\n\tc\x07"


def test_color_only_where_it_is_wanted_and_shown() -> None:
    for tty, color, expected in ((True, True, True), (True, False, False), (False, True, False)):
        stream = Screen(tty)
        Terminal(stream, color=color).facts([("family", "x")])
        assert ("\x1b[" in stream.getvalue()) is expected


def test_long_facts_are_not_cut_and_markup_is_text() -> None:
    stream = Screen(False)
    Terminal(stream).facts([("why", "[bold]" + "x" * 300 + "[/bold]")])
    assert stream.getvalue() == "why  [bold]" + "x" * 300 + "[/bold]\n"


def test_progress_is_wiped_and_only_on_a_terminal() -> None:
    screen, file = Screen(True), Screen(False)
    for stream in (screen, file):
        terminal = Terminal(stream)
        for done in (100, 101, 102, 400):  # of 400: 25 % three times
            terminal.progress("reading", done, 400)
    assert file.getvalue() == ""
    assert screen.getvalue() == "\rreading  25%" + "\r" + " " * len("reading 100%") + " \r"


def test_terminal_that_takes_ascii_only() -> None:
    stream = Screen(False)
    stream.encoding = "ascii"  # type: ignore[misc]
    Terminal(stream).table(("a",), [("b",)])
    assert stream.getvalue().isascii()


def test_a_narrow_terminal_never_cuts_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    columns, rows = ("backend", "file"), [("cpu", "/a/path/of/thirty/characters/x"), ("gpu", "one\ntwo")]
    narrow, pipe = Screen(True), Screen(False)
    Terminal(narrow, color=False).table(columns, rows)
    assert narrow.getvalue() == (
        "backend  cpu\nfile     /a/path/of/thirty/characters/x\n\nbackend  gpu\nfile     one\n         two\n\n"
    )
    Terminal(pipe).table(columns, [("cpu", "x" * 300)])
    assert "x" * 300 in pipe.getvalue() and "│" in pipe.getvalue()
    monkeypatch.setenv("COLUMNS", "60")
    wide = Screen(True)
    Terminal(wide, color=False).table(columns, rows)
    assert "│ cpu     │ /a/path/of/thirty/characters/x │" in wide.getvalue()


def test_long_lines_are_broken_between_words_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "host compiler: g++-13 (gcc 13.3): the newest that is accepted (/a/path/that/is/never/cut/crt/host_config.h)"
    monkeypatch.setenv("COLUMNS", "50")
    screen, pipe = Screen(True), Screen(False)
    Terminal(screen).paragraph(text, 2)
    assert screen.getvalue().splitlines() == [
        "  host compiler: g++-13 (gcc 13.3): the newest",
        "    that is accepted",
        "    (/a/path/that/is/never/cut/crt/host_config.h)",
    ]
    Terminal(pipe).paragraph(text, 2)
    assert pipe.getvalue() == f"  {text}\n"
