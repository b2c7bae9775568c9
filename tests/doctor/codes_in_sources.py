"""Collect every code of the sources from their syntax trees: each needs a page."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from coli.backends.devices.facts import DriverState
from coli.doctor.checks.table import SECTIONS

ROOT = Path(__file__).parents[2]
FOLDERS = ("src/coli", "families", "backends", "build_matrix", "doctor")

# Calls whose argument number N is a code, what stands before it, and the only file where the name means that.
POSITIONS = {
    "Problem": (0, "", ""),
    "Note": (0, "checkpoint.", ""),
    "note": (0, "checkpoint.", "doctor/facts/checkpoint.py"),
    "ManifestError": (0, "manifest.", ""),
    "ContainerError": (0, "container.", ""),
    "_error": (2, "build.", "build_matrix/wheels.py"),
    "_refuse": (3, "checkpoint.", "families/config_facts.py"),
    "Verdict": (1, "", "families/probe.py"),
}
_SITES = ("argument", "nonfinite", "scale", "memory", "device")
_STATES = tuple(state for state in get_args(DriverState) if state != "ok")
_SAMPLING = ("temperature", "top-k", "top-p", "min-p", "seed")

_CODE_PATHS = (
    "no-device",
    "flavour",
    "no-code",
    "below-minimum",
    "ptx-unknown",
    "capability-unknown",
    "driver-too-old-for-ptx",
)

# Codes that are put together: what the source says -> what comes out. One that is not here fails the test.
_MADE: dict[str, tuple[str, ...]] = {
    'f"backend.{finding.code}"': (),  # the gates, which are collected where they judge
    'f"backend.{gate.code}"': (),
    'f"budget.{tier}"': ("budget.ram", "budget.vram"),
    'f"build.{chosen.rule}"': (),  # the rules, which are read from matrix.toml
    'f"build.{rule}"': (),
    'f"build.{self.rule}"': (),
    'f"build.{code}"': (),  # the calls of _error, collected
    'f"checkpoint.{code}"': (),  # the calls of note and _refuse, collected
    'f"driver.{driver.state}"': tuple(f"driver.{state}" for state in _STATES),
    "driver.state": tuple(f"driver.{state}" for state in _STATES),
    """f"stage.bind-{_SITE_NAMES.get(error.code, 'declined')}\"""": tuple(
        f"stage.bind-{site}" for site in (*_SITES, "declined")
    ),
    """f"stage.{_SITE_NAMES.get(error.code, 'failed')}\"""": tuple(f"stage.{site}" for site in (*_SITES, "failed")),
    """f"usage.{name.replace('_', '-')}\"""": tuple(f"usage.{name}" for name in _SAMPLING),
    "f'missing-{what}'": ("missing-layers", "missing-experts"),
    """f"usage.{option.strip('-')}\"""": ("usage.threads", "usage.prefill-chunk", "usage.ctx"),
    'f"storage.{kind}"': ("storage.hdd", "storage.usb", "storage.mmc"),
    'f"toolkit.{finding.code}"': (),  # the findings of find_toolkits, collected
    'f"{section}.not-known"': tuple(f"{section}.not-known" for section in (*SECTIONS, "gpu")),
    # Gates whose code comes from a table or another module.
    "codes[0] if codes else 'no-device'": tuple(f"architecture.{code}" for code in _CODE_PATHS),
}
MADE = {ast.unparse(ast.parse(text)): codes for text, codes in _MADE.items()}

# Codes that no call shows: those of a child process that ended early, and of a table of slots.
_LATE = ("open", "handshake", "slots", "canary")
ELSEWHERE = (
    *(f"{gate}.{end}" for gate in _LATE for end in ("crash", "hang", "exit", "not-started")),
    *(f"slots.{code}" for code in ("order", "signature", "older-minor", "absent")),
)


def codes_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each code and the place where it stands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    gates = {
        id(call): gate
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and (gate := _gate_of(function))
        for call in ast.walk(function)
    }
    for node in ast.walk(tree):
        place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call):
            yield from ((code, place) for code in _of_call(node, path, gates.get(id(node), "")))
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code":
                    yield from ((code, place) for code in _values(line.value))


def _gate_of(function: ast.FunctionDef) -> str | None:
    """Return the name of the gate that a function judges: it gives it to a variable first."""
    for line in function.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "gate":
            return ast.literal_eval(line.value) if isinstance(line.value, ast.Constant) else None
    return None


def _of_call(call: ast.Call, path: Path, gate: str) -> Iterator[str]:
    name = ast.unparse(call.func).rpartition(".")[2]
    for keyword in call.keywords:
        if keyword.arg == "code":
            yield from _values(keyword.value)
    if not call.args:
        return
    if name == "refused" and len(call.args) > 1:
        named = call.args[0].value if isinstance(call.args[0], ast.Constant) else gate
        for code in _values(call.args[1]):
            yield code if "." in code else f"{named}.{code}"
    elif name == "Finding":
        if path.name == "toolkits.py":
            yield from (f"toolkit.{code}" for code in _values(call.args[0]))
        elif "doctor" in path.parts:
            yield from _values(call.args[0])
    elif name in POSITIONS and (POSITIONS[name][2] in path.as_posix()):
        position, before, _ = POSITIONS[name]
        if len(call.args) > position:
            yield from (code if "." in code else before + code for code in _values(call.args[position]))


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
    elif isinstance(node, ast.JoinedStr) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
        yield f"not known how it is put together: {text}"


@functools.cache
def every_code() -> dict[str, str]:
    """Return each code of the sources with one place where it stands."""
    found = dict.fromkeys(ELSEWHERE, "backends/gates.py")
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for code, place in codes_in(path):
                if code != "ok":  # of a verdict: nothing is wrong
                    found.setdefault(code, place)
    return found
