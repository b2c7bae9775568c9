"""Checks of host compilers and the C library: what building a backend needs beside a toolkit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coli.build_matrix.choose import ChosenToolkit
from coli.build_matrix.compilers import accepted, glibc_known_to, host_bounds, newest_accepted
from coli.build_matrix.matrix import load_matrix
from coli.build_matrix.toolkits import Toolkit
from coli.doctor.checks.commands import install_compiler
from coli.doctor.checks.finding import Check, Evidence, Finding, not_known, seen
from coli.doctor.checks.toolkit import newer_toolkit, take_toolkit
from coli.doctor.facts.machine import MachineFacts

__all__ = ["CHECKS"]


def _compiler(facts: MachineFacts) -> Iterator[Finding]:
    if facts.compilers is None:
        yield not_known("compiler", "the host compilers", "nothing looked for them")
        return
    missing = facts.compilers.missing_tools
    if missing.value:
        yield Finding(
            "compiler.tools-missing",
            "note",
            f"{' and '.join(missing.value)} not found; only building a backend needs them",
            (seen(f"no {', no '.join(missing.value)}", missing),),
            fix="install them before `coli build`",
            commands=(f"pip install {' '.join(missing.value)}",),
        )
    matrix, compilers = load_matrix(), facts.compilers.compilers
    usable = [toolkit for toolkit in facts.toolkits or () if toolkit.usable]
    if not compilers:
        yield Finding(
            "compiler.absent",
            "note",
            "no C++ compiler on PATH; only building a backend needs one",
            (Evidence("no g++, clang++ or c++", "PATH"),),
            fix="install one before `coli build`",
            commands=install_compiler(facts),
        )
        return
    shown = ", ".join(compiler.label for compiler in compilers)
    if not usable:
        yield Finding("compiler.found", "ok", shown, (Evidence(shown, "PATH"),))
        return
    toolkit = _taken(facts, usable)
    bounds = host_bounds(toolkit, matrix)
    best = newest_accepted(compilers, bounds, matrix.minimum_compiler)
    if best is None:
        way = newer_toolkit(facts)
        reasons = [reason for one in compilers if (reason := accepted(one, bounds, matrix.minimum_compiler))]
        yield Finding(
            "compiler.unsupported",
            "warn",
            f"none of the compilers is accepted by {toolkit.label}",
            tuple(Evidence(reason, bounds.source) for reason in reasons),
            fix=f"install gcc {bounds.gcc} or older, or {way.text}",
            commands=install_compiler(facts, bounds.gcc) or way.commands,
            cost="no CUDA backend can be built",
        )
        return
    yield Finding(
        "compiler.accepted", "ok", f"{best.label} for {toolkit.label}", (Evidence(f"of {shown}", bounds.source),)
    )


def _taken(facts: MachineFacts, usable: Sequence[Toolkit]) -> Toolkit:
    """Return the toolkit that a build takes: its bounds count, not those of a newer one beside it."""
    taken = take_toolkit(facts)
    return taken.toolkit if isinstance(taken, ChosenToolkit) else usable[0]


def _glibc(facts: MachineFacts) -> Iterator[Finding]:
    usable = [toolkit for toolkit in facts.toolkits or () if toolkit.usable]
    if facts.compilers is None or not usable:
        yield Finding("toolkit.none", "skip", "no usable toolkit")
        return
    glibc = facts.compilers.glibc
    if glibc.value is None:
        yield not_known("compiler", "the C library's version", glibc.source)
        return
    matrix = load_matrix()
    clashing = [toolkit for toolkit in usable if glibc.value > glibc_known_to(toolkit, matrix)]
    if clashing:
        known, way = glibc_known_to(clashing[0], matrix), newer_toolkit(facts)
        yield Finding(
            "compiler.glibc-clash",
            "warn" if _taken(facts, usable) in clashing else "note",
            f"glibc {glibc.value.short} is newer than {known.short}, the newest that {clashing[0].label} knows",
            (seen(glibc.value.short, glibc),),
            fix=way.text,
            commands=way.commands,
            cost="functions such as rsqrt and sinpi may clash in the headers, and the build stops",
        )
        return
    yield Finding("compiler.glibc", "ok", f"glibc {glibc.value.short} is known to the headers", (seen("", glibc),))


CHECKS = (
    Check(
        "compiler.host",
        (),
        ("compilers", "toolkits", "devices", "system", "settings"),
        "whether a C++ compiler is there that the toolkit accepts",
        _compiler,
    ),
    Check(
        "compiler.glibc", ("compiler.host",), ("compilers", "toolkits", "devices"), "whether the C library fits", _glibc
    ),
)
