"""Collect every code of the sources from their syntax trees: each needs a page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from coli.backends.devices.facts import DriverState
from coli.backends.trace import GATES

ROOT = Path(__file__).parents[2]
FOLDERS = ("src/coli", "families", "backends", "build_matrix", "doctor")
CODE = re.compile(r"[a-z][a-z0-9]*(?:\.[a-z0-9][a-z0-9-]*)*")

# Calls whose argument number N (or keyword `code`) is a code, with what stands before it.
POSITIONS = {
    "Finding": (0, ""),
    "Problem": (0, ""),
    "Note": (0, "checkpoint."),
    "ManifestError": (0, "manifest."),
    "ContainerError": (0, "container."),
}
_SITES = ("argument", "nonfinite", "scale", "memory", "device")
_STATES = tuple(state for state in get_args(DriverState) if state != "ok")
_SAMPLING = ("temperature", "top-k", "top-p", "min-p", "seed")

# Codes that are put together: what the source says -> what comes out. One that is not here fails the test.
MADE: dict[str, tuple[str, ...]] = {
    "f'backend.{finding.code}'": (),  # the gates, below
    "f'backend.{gate.code}'": (),
    "f'backend.{gate.code}' if gate is not None else 'backend.none'": ("backend.none",),
    "f'budget.{tier}'": ("budget.ram", "budget.vram"),
    "f'build.{chosen.rule}'": (),  # the rules, read from matrix.toml
    "f'build.{rule}'": (),
    "f'build.{self.rule}'": (),
    "f'build.{code}'": ("build.download", "build.hash", "build.unpack", "build.bundle"),
    "f'driver.{driver.state}'": tuple(f"driver.{state}" for state in _STATES),
    "f'stage.bind-{_SITE_NAMES.get(error.code, 'declined')}'": tuple(
        f"stage.bind-{site}" for site in (*_SITES, "declined")
    ),
    "f'stage.{_SITE_NAMES.get(error.code, 'failed')}'": tuple(f"stage.{site}" for site in (*_SITES, "failed")),
    "f'usage.{name.replace('_', '-')}'": tuple(f"usage.{name}" for name in _SAMPLING),
    "f'usage.{option.strip('-')}'": ("usage.threads", "usage.prefill-chunk", "usage.ctx"),
}
# Variables that carry a code which is written elsewhere as one of the above.
CARRIED = {"code", "error.code", "first.code", "verdict.code", "problem.code", "finding.code", "self.code"}


def codes_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each code and the place where it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call):
            yield from ((code, place) for code in _of_call(node, path))
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                    if line.targets[0].id == "code" and isinstance(line.value, ast.Constant):
                        yield str(line.value.value), place


def _of_call(call: ast.Call, path: Path) -> Iterator[str]:
    name = ast.unparse(call.func).rpartition(".")[2]
    for keyword in call.keywords:
        if keyword.arg == "code":
            yield from _values(keyword.value)
    if name == "refused" and len(call.args) > 1:
        yield from _of_gate(call)
    elif name == "Finding" and "build_matrix/toolkits" in path.as_posix() and call.args:
        yield from (f"toolkit.{code}" for code in _values(call.args[0]))
    elif name == "Finding" and "doctor" not in path.parts:
        return
    elif name in POSITIONS and call.args:
        position, before = POSITIONS[name]
        for code in _values(call.args[position]):
            yield code if "." in code else before + code


def _of_gate(call: ast.Call) -> Iterator[str]:
    gate, code = ast.unparse(call.args[0]), call.args[1]
    function = gate.strip("'") if gate.startswith("'") else ""
    for value in _values(code):
        yield f"{function}.{value}" if function else f"?.{value}"


def _values(node: ast.expr) -> Iterator[str]:
    text = ast.unparse(node)
    if text in MADE:
        yield from MADE[text]
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _values(node.body)
        yield from _values(node.orelse)
    elif isinstance(node, ast.JoinedStr):
        yield f"not known how it is put together: {text}"
    elif text not in CARRIED and not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        yield f"not known what it is: {text}"


def every_code() -> dict[str, str]:
    """Return each code of the sources with one place where it stands."""
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for code, place in codes_in(path):
                found.setdefault(code, place)
    return found


__all__ = ["CODE", "GATES", "ROOT", "every_code"]
