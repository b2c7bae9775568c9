"""Checks of settings and variables."""

from __future__ import annotations

from collections.abc import Iterator

from coli.doctor.checks import devices, driver, toolkit
from coli.doctor.checks.commands import PROFILE
from coli.doctor.checks.finding import Check, Evidence, Finding, not_known
from coli.doctor.facts.machine import MachineFacts

__all__ = ["CHECKS"]


def _values(facts: MachineFacts) -> Iterator[Finding]:
    settings = facts.settings
    if settings is None:
        yield not_known("settings", "the settings", "nothing looked at them")
        return
    standing = [one for one in settings.values if one.kind != "option"]  # an option was typed a moment ago
    if not standing:
        yield Finding("settings.values", "ok", "everything is at its default")
        return
    yield Finding(
        "settings.values",
        "ok",
        "set: " + ", ".join(f"{one.name}={one.value}" for one in standing),
        tuple(Evidence(f"{one.name}={one.value}", one.origin) for one in standing),
    )


def _foreign(facts: MachineFacts) -> Iterator[Finding]:
    settings = facts.settings
    if settings is None:
        yield not_known("settings", "the variables", "nothing looked at them")
        return
    for note in settings.notes:
        name = note.split(" ", 1)[0]
        yield Finding(
            "settings.unread",
            "note",
            note,
            (Evidence(name, "environment"),),
            fix=f"unset it, or use the option that is named; {PROFILE}",
            commands=(f"unset {name}",) if name.isidentifier() else (),
            cost="it changes nothing",
        )
    blamed = _blamed(facts)
    if blamed:
        listed = ", ".join(f"{name} [{code}]" for name, code in blamed.items())
        yield Finding("settings.blamed", "skip", f"set, and told of above: {listed}")
    if not settings.notes:
        shown = ", ".join(sorted(name for name in settings.environment if name not in blamed))
        shown = shown or ("no others" if blamed else "none")
        yield Finding("settings.variables", "ok", f"variables of CUDA and compilers that are set: {shown}")


def _blamed(facts: MachineFacts) -> dict[str, str]:
    """Return the variables that a finding above speaks of, and its code: they are not well."""
    found: dict[str, str] = {}
    for check in (*driver.CHECKS, *devices.CHECKS, *toolkit.CHECKS):
        for finding in check.run(facts):
            if finding.status not in ("ok", "skip"):
                named = (
                    name for name in sorted(facts.environment) if finding.summary.startswith((name + "=", name + " "))
                )
                found |= {name: finding.code for name in named}
    return found


CHECKS = (
    Check("settings.values", (), ("settings",), "which settings are not at their defaults", _values),
    Check("settings.unread", (), ("settings",), "COLI_* variables that nobody reads", _foreign),
)
