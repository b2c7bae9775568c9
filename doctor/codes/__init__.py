"""A page for every code: what it means, why it matters, how to fix it. The TOML files here have the texts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coli.errors import UsageError
from coli.settings.names import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Page", "find_page", "load_pages"]


@dataclass(frozen=True)
class Page:
    """What `coli explain` shows. ``seen_in``: where the code comes from, if that is not plain."""

    code: str
    what: str
    why: str
    fix: str
    seen_in: str = ""


def load_pages() -> dict[str, Page]:
    """Return all pages by code: those of the files, the rules of the build matrix and the causes of failed builds."""
    pages: dict[str, Page] = {}
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for code, page in tomllib.loads(path.read_text(encoding="utf-8")).items():
            pages[code] = Page(code, page["what"], page["why"], page["fix"])
    return pages | _rules() | _causes()


def _rules() -> dict[str, Page]:
    from coli.build_matrix.matrix import load_matrix

    seen_in = "a rule of the build matrix; `coli build --explain CELL` applies it"
    return {
        f"build.{rule.id}": Page(
            f"build.{rule.id}",
            f"The build matrix refuses: {rule.id.replace('-', ' ')}.",
            rule.reason,
            rule.fix,
            seen_in,
        )
        for rule in load_matrix().rules.values()
    }


def _causes() -> dict[str, Page]:
    from coli.build_matrix.classify import CLASSES

    seen_in = "the log of a build that failed"
    return {
        f"log.{one.id}": Page(f"log.{one.id}", one.cause, "The build stopped at it.", one.fix, seen_in)
        for one in CLASSES
    }


def find_page(code: str, pages: Mapping[str, Page]) -> Page:
    """Return the page of ``code``. Raises UsageError with the nearest one for a code that is not known.

    A gate's code may have `backend.` before it, as errors show it; a rule or a cause may be given without its section.
    """
    wanted = code.strip().strip("[]`").casefold()
    tried = [wanted, wanted.removeprefix("backend."), f"build.{wanted}", f"log.{wanted}"]
    found = next((pages[name] for name in tried if name in pages), None)
    if found is not None:
        return found
    section = [name for name in pages if name.startswith(f"{wanted}.")]
    close = None if section else nearest(wanted, pages)
    raise UsageError(
        code,
        "there is no page for this code",
        expected=f"one of {', '.join(section)}" if section else "a code that a report or an error shows",
        fix=f"did you mean {close}?" if close else "name one of them" if section else "`coli explain` lists all codes",
        code="usage.code",
    )
