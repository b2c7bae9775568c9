"""What a report comes to, in one line each: whether a GPU is used, and whether the model can run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coli.backends.devices import select_devices
from coli.doctor.checks.finding import BLOCKING, Row
from coli.doctor.report.document import Report, find_anomalies

__all__ = ["Verdict", "decide_verdicts"]

# Checks that tell whether a GPU is used, in the order in which they rule it out.
_GPU_CHECKS = ("driver.state", "driver.release", "devices.visible", "devices.capability", "backends.gpu")
# What they find where the GPU serves, though something else is to be said.
_HARMLESS = ("driver.stubs", "devices.cut", "backend.cublaslt")
_MODEL_SECTIONS = ("checkpoint", "budget")


@dataclass(frozen=True)
class Verdict:
    """One line. ``subject``: what it is about; ``text``: what is so, and why."""

    subject: Literal["GPU", "model"]
    text: str


def decide_verdicts(report: Report) -> tuple[Verdict, ...]:
    """Return a verdict on the GPU and one on the model, each only if the checks that tell it were run."""
    rows = {row.check: row for row in report.rows}
    found = (("GPU", _gpu(report, rows)), ("model", _model(report, rows)))
    return tuple(Verdict(subject, text) for subject, text in found if text is not None)  # type: ignore[arg-type]


def _gpu(report: Report, rows: Mapping[str, Row]) -> str | None:
    devices = report.facts.devices
    if devices is None or "driver.state" not in rows:
        return None
    usable = select_devices(devices, report.facts.environment).usable
    named = tuple(row for row in report.rows if row.section == "gpu" and row.cause is None)  # of --gpu
    for row in (*(rows[check] for check in _GPU_CHECKS if check in rows), *named):
        for finding in row.findings:
            if finding.code == "driver.absent" and finding.fix is None:  # there is no card to be used
                return f"none: {finding.summary}"
            if finding.status in ("ok", "skip") or finding.code in _HARMLESS:
                continue
            # One of several cards may be left out; the others serve. Which one a number means, the backend tells.
            unnamed = finding.code == "devices.order" and report.facts.backends is None
            if finding.status in BLOCKING or not usable or unnamed or finding.code.startswith("backend."):
                return f"not used: {finding.summary}"
    names = ", ".join(device.name for device in usable)
    if report.facts.backends is None:
        return f"could be used, as far as driver and cards tell: {names} (no backend was opened)" if names else None
    served = (*named, *(rows[check] for check in ("backends.gpu",) if check in rows))
    well = next((finding for row in served for finding in row.findings if finding.status == "ok"), None)
    return None if well is None else f"used, {well.summary}"


def _model(report: Report, rows: Mapping[str, Row]) -> str | None:
    if report.facts.model is None or not any(row.section in _MODEL_SECTIONS for row in report.rows):
        return None
    failed = [
        one.finding
        for one in find_anomalies(report.rows)
        if one.finding.status == "fail" and (one.row.section in _MODEL_SECTIONS or one.row.check == "backends.usable")
    ]
    if failed:
        more = f" (and {len(failed) - 1} more, below)" if len(failed) > 1 else ""
        return f"cannot run: {failed[0].summary}{more}"
    if (row := rows.get("budget.ram")) is None:
        return None
    if report.planned is None or row.status in BLOCKING:
        why = next((one.text for finding in row.findings if finding.status == "skip" for one in finding.evidence), None)
        return f"not known whether it can run: {why}" if why else None
    forecast = report.planned.plan.best.forecast
    guess = "" if forecast.measured else ", a guess"
    short = next((finding for finding in row.findings if finding.code == "budget.context"), None)
    how = f"; {short.summary}" if short is not None else ""
    return f"can run, {forecast.low:.3g} to {forecast.high:.3g} tokens/s{guess}{how}"
