"""The check behind `--gpu`: whether one GPU will be used, and why, or why not."""

from __future__ import annotations

from collections.abc import Iterator

from coli.backends.devices import Gpu, VisibleDevice, select_devices
from coli.backends.targets import MINIMUM
from coli.doctor.checks.backends import why_not
from coli.doctor.checks.finding import Check, Evidence, Finding, not_known
from coli.doctor.facts.machine import MachineFacts

__all__ = ["gpu_check"]


def gpu_check(which: str) -> Check:
    """Return the check of the GPU ``which``: its number in nvidia-smi, or the beginning of its UUID."""

    def run(facts: MachineFacts) -> Iterator[Finding]:
        yield _judge(which, facts)

    return Check(
        f"gpu.{which}",
        ("driver.state", "driver.release"),
        ("devices", "backends", "settings"),
        f"whether GPU {which} will be used, and why",
        run,
    )


def _judge(which: str, facts: MachineFacts) -> Finding:
    devices, trace = facts.devices, facts.backends
    if devices is None:
        return not_known("gpu", f"GPU {which}", "nothing looked at the devices")
    gpu = _named(which, devices.gpus)
    if gpu is None:
        there = ", ".join(f"{one.index}: {one.name.value or 'name not known'}" for one in devices.gpus)
        return Finding(
            "gpu.none",
            "fail",
            f"there is no GPU {which}: " + (f"there are {there}" if there else "the driver tells of none"),
            (Evidence(devices.driver.evidence, "driver probe"),),
            fix="name one that is there" if there else "look at the findings on the driver",
            commands=("nvidia-smi -L",) if there else (),
            cost="every stage runs on the CPU",
        )
    name = gpu.name.value or f"GPU {gpu.index}"
    selection = select_devices(devices, facts.environment)
    skipped = next((skip for skip in selection.skipped if skip.device.gpu.index == gpu.index), None)
    if skipped is not None:
        return Finding(
            "devices.too-old" if gpu.capability.value is not None else "devices.capability-unknown",
            "fail",
            f"{name} is not used: {skipped.reason}",
            (Evidence(f"capability {gpu.capability.value}", gpu.capability.source),),
            fix=f"cards below {MINIMUM} cannot run the kernels; the CPU serves instead"
            if gpu.capability.value is not None
            else "update the driver, so that it tells the capability",
            cost="every stage runs on the CPU",
        )
    device = next((one for one in selection.usable if one.gpu.index == gpu.index), None)
    if device is None:
        return Finding(
            "devices.hidden",
            "fail",
            f"{name} is hidden by CUDA_VISIBLE_DEVICES={facts.environment.get('CUDA_VISIBLE_DEVICES')!r}",
            (Evidence(selection.why, "environment"),),
            fix=f"unset it, name this GPU in it, or give --gpu {gpu.index} to `coli run`",
            commands=(f"export CUDA_VISIBLE_DEVICES={_selector(device_of=gpu)}",),
            cost="every stage runs on the CPU",
        )
    if trace is None:
        return not_known("gpu", f"whether {name} is used", "the backends of another machine are not opened on this one")
    chosen = trace.candidates[trace.chosen] if trace.chosen is not None else None
    if chosen is not None and chosen.kind == "cuda" and any(_is(one, gpu) for one in chosen.devices):
        stages = f", for {len(chosen.stages)} kinds of stages; the CPU has the rest" if chosen.stages else ""
        return Finding(
            "gpu.used",
            "ok",
            f"{name} will be used, by {chosen.candidate.name}{stages}",
            (Evidence(trace.why, "loader"), Evidence(str(chosen.candidate.path), chosen.candidate.origin)),
        )
    return why_not(trace, selection, device)


def _named(which: str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    if which.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(which[:9])), None)
    wanted = which.casefold().removeprefix("gpu-")
    found = [g for g in gpus if wanted and (g.uuid.value or "").casefold().removeprefix("gpu-").startswith(wanted)]
    return found[0] if len(found) == 1 else None


def _selector(device_of: Gpu) -> str:
    return device_of.uuid.value or str(device_of.index)


def _is(device: VisibleDevice, gpu: Gpu) -> bool:
    return device.gpu.index == gpu.index
