"""The terminal renderer: facts, tables and notes, in colour where there is a terminal, with an ASCII twin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from coli.printable import printable
from coli.settings import Resolved

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Terminal"]

_PIPE_WIDTH = 120  # columns where there is no terminal to ask


class Terminal:
    """Write to ``stream``. With ``ascii`` only ASCII symbols and lines, with ``color`` False no escape sequences."""

    def __init__(self, stream: IO[str], *, ascii: bool = False, color: bool = True) -> None:
        self._stream = stream
        self._ascii = ascii or not _takes_box_characters(stream)
        self._color = color and stream.isatty()
        self._console: Console | None = None
        self._progress = ""

    @classmethod
    def from_settings(cls, stream: IO[str], settings: Resolved) -> Terminal:
        """Return the renderer that the settings `ascii` and `no_color` ask for."""
        return cls(stream, ascii=settings["ascii"], color=not settings["no_color"])

    def write(self, text: str) -> None:
        """Write ``text`` and flush, for streamed answers. Control characters never reach a terminal."""
        self._stream.write(_without_controls(text) if self._stream.isatty() else text)
        self._stream.flush()

    def line(self, text: str = "") -> None:
        """Write one line of plain text."""
        self.write(text + "\n")

    def paragraph(self, text: str, indent: int = 0) -> None:
        """Write one line of plain text; on a terminal it is broken between words, further lines two columns deeper.

        No word is cut: a path can be copied. What is not a terminal gets the line whole.
        """
        before = " " * indent
        if not self._stream.isatty():
            self.line(before + text)
            return
        from textwrap import wrap

        for part in wrap(
            text,
            max(self.width, 40),
            initial_indent=before,
            subsequent_indent=before + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        ):
            self.line(part)

    def note(self, text: str) -> None:
        """Write one line of secondary text."""
        from rich.text import Text

        self._print(Text(text, style="dim"))

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how far something is, on a terminal only; the line is wiped when it is done."""
        if not self._stream.isatty():
            return
        shown = "\r" + " " * (len(what) + 6) + "\r" if done >= total else f"\r{what} {100 * done // total:3}%"
        if shown != self._progress:  # told after every tensor: a slow terminal would be the bottleneck
            self._progress = shown
            self._stream.write(shown)
            self._stream.flush()

    @property
    def width(self) -> int:
        """Return the columns of the terminal, or those that are taken where there is none."""
        return self._rich().width

    @property
    def is_ascii(self) -> bool:
        """Say whether only ASCII characters may be written."""
        return self._ascii

    def pieces(self, lines: Iterable[Sequence[tuple[str, str]]]) -> None:
        """Write lines that are made of pieces, each a text and its style. They are as wide as they are."""
        from rich.text import Text

        for line in lines:
            self._print(Text.assemble(*line))

    def facts(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Write `name  value` lines with the values aligned; values are never cut."""
        pairs = list(pairs)
        width = max((len(name) for name, _ in pairs), default=0)
        from rich.text import Text

        for name, value in pairs:
            # Further lines of a value stand below its first one.
            self._print(
                Text.assemble(
                    (f"{name:<{width}}", "bold"),
                    "  ",
                    printable(value, "\n").replace("\n", "\n" + " " * (width + 2)),
                )
            )

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: frozenset[str] = frozenset()
    ) -> None:
        """Write a table. ``numeric`` names the columns that are aligned to the right.

        No word is cut, since somebody may want to copy a path or a name: where a terminal is too narrow, each row
        becomes a block of `column  value` lines; what is not a terminal gets a wider table.
        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        rows = [tuple(printable(cell, "\n") for cell in row) for row in rows]
        least = _least_width(columns, rows)
        if self._stream.isatty() and self._rich().width < least:
            for row in rows:
                self.facts([pair for pair in zip(columns, row, strict=True) if pair[1]])
                self.line()
            return
        table = Table(box=box.ASCII if self._ascii else box.ROUNDED, header_style="bold", show_edge=True)
        for column in columns:
            table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._rich().width = max(self._rich().width, least)
        self._print(table)

    def stages(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the stage table of a run, then every fallback with its reason."""
        rows = list(rows)
        total = sum(row["seconds"] for row in rows) or 1.0
        self.table(
            ("stage", "backend", "calls", "seconds", "share", "fallbacks"),
            [
                (
                    str(row["stage"]),
                    str(row["backend"]),
                    str(row["calls"]),
                    f"{row['seconds']:.3f}",
                    f"{100 * row['seconds'] / total:.0f}%",
                    str(sum(fallback["count"] for fallback in row["fallbacks"])),
                )
                for row in rows
            ],
            numeric=frozenset(("calls", "seconds", "share", "fallbacks")),
        )
        for row in rows:
            for fallback in row["fallbacks"]:
                self.line(f"{row['stage']}: {fallback['backend']} declined {fallback['count']}x: {fallback['reason']}")
        absent: dict[str, list[str]] = {}
        for row in rows:
            for backend in row["absent_in"]:
                absent.setdefault(str(backend), []).append(str(row["stage"]))
        for backend, stages in absent.items():
            self.line(f"{backend} has no code for: {', '.join(stages)}")

    def _rich(self) -> Console:
        if self._console is None:
            from rich.console import Console

            width = None if self._stream.isatty() else _PIPE_WIDTH
            self._console = Console(
                file=self._stream,
                width=width,
                color_system="auto" if self._color else None,
                force_terminal=self._color,
                highlight=False,
                emoji=False,
                markup=False,
                soft_wrap=False,
            )
        return self._console

    def _print(self, what: Any) -> None:
        self._rich().print(what, soft_wrap=not hasattr(what, "columns"))
        self._stream.flush()


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the columns of a terminal that a table needs without cutting a word."""
    from rich.cells import cell_len

    words = [
        [cell_len(word) for text in column for word in text.split()] for column in zip(columns, *rows, strict=True)
    ]
    return sum(max(lengths, default=0) + 3 for lengths in words) + 1  # a border and two spaces each


def _takes_box_characters(stream: IO[str]) -> bool:
    try:
        "╭─│".encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _without_controls(text: str) -> str:
    # A model may write an escape sequence; on a terminal that is a command, so it is shown instead.
    return "".join(letter if letter >= " " or letter in "\n\t" else f"\\x{ord(letter):02x}" for letter in text)
