"""Checks of the GPUs: which of them are visible, can compute, and have memory left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from coli.backends.devices import Gpu, Holder, Selection, select_devices
from coli.backends.targets import MINIMUM
from coli.doctor.checks.commands import PROFILE, as_root
from coli.doctor.checks.finding import Check, Evidence, Finding, not_known, seen
from coli.doctor.facts.machine import MachineFacts
from coli.units import render_size

__all__ = ["CHECKS"]

_MOST_NAMED = 3
_BUSY_SHARE = 0.25  # a desktop takes 5 to 10 %


def _selection(facts: MachineFacts) -> Selection | Finding:
    devices = facts.devices
    if devices is None:
        return not_known("devices", "the GPUs", "nothing looked at them")
    if not devices.gpus:
        return Finding("devices.none", "skip", "no GPU that the driver tells of")
    return select_devices(devices, facts.environment)


def _visible(facts: MachineFacts) -> Iterator[Finding]:
    selection = _selection(facts)
    if isinstance(selection, Finding):
        yield selection
        return
    devices = facts.devices
    assert devices is not None  # noqa: S101  _selection looked
    value = facts.environment.get("CUDA_VISIBLE_DEVICES")
    source = "environment" if value is not None else "driver"
    evidence = (Evidence(selection.why, source),)
    if not selection.order_known:
        yield Finding(
            "devices.order",
            "warn",
            "CUDA_DEVICE_ORDER is set, and which card a number means is not known",
            (Evidence(f"CUDA_DEVICE_ORDER={facts.environment.get('CUDA_DEVICE_ORDER')}", "environment"),),
            fix="number the cards as nvidia-smi does",
            commands=("export CUDA_DEVICE_ORDER=PCI_BUS_ID",),
            cost="no GPU is used until it is known which one is meant",
        )
        return
    undivided = all(gpu.mig_enabled.value and not gpu.mig for gpu in devices.gpus)
    if undivided and not selection.usable and not selection.skipped:
        yield Finding(
            "devices.no-slice",
            "fail",
            "MIG is switched on, and no slice was made: CUDA sees no device",
            (*evidence, *(seen(f"{gpu.name.value}: MIG enabled, no slices", gpu.mig_enabled) for gpu in devices.gpus)),
            fix="make slices (nvidia-smi mig -lgip lists the sizes), or switch MIG off to have the whole card",
            commands=("nvidia-smi mig -lgip", as_root("nvidia-smi -mig 0", facts)),
            cost="no GPU is used: everything runs on the CPU",
        )
        return
    if selection.twice:
        yield Finding(
            "devices.named-twice",
            "fail",
            f"CUDA_VISIBLE_DEVICES={value!r} names a GPU twice, and then CUDA shows none",
            evidence,
            fix=f"unset it, or name every GPU once; {PROFILE}",
            commands=("unset CUDA_VISIBLE_DEVICES",),
            cost="no GPU is used: everything runs on the CPU",
        )
        return
    if not selection.usable and not selection.skipped:
        hidden = value is not None and value.strip() in ("", "-1", "NoDevFiles", "none", "void")
        named = ", ".join(f"{gpu.index}: {gpu.name.value or 'name not known'}" for gpu in devices.gpus)
        yield Finding(
            "devices.hidden" if hidden else "devices.wrong-name",
            "note" if hidden else "fail",
            f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU"
            if hidden
            else f"CUDA_VISIBLE_DEVICES={value!r} names no GPU of this machine",
            (*evidence, Evidence(f"there are {named}", "driver")),
            fix=f"unset it, or name a GPU that is there, by number or UUID (nvidia-smi -L); {PROFILE}",
            commands=("unset CUDA_VISIBLE_DEVICES",),
            cost="no GPU is used: everything runs on the CPU",
            notable=hidden,
        )
        return
    total = len(selection.usable) + len(selection.skipped)
    shown = f"{total} of {len(devices.gpus)} visible: " + ", ".join(
        [device.name for device in selection.usable] + [skip.device.name for skip in selection.skipped]
    )
    if value is not None and "names" in selection.why:
        yield Finding(
            "devices.cut",
            "warn",
            f"CUDA_VISIBLE_DEVICES={value!r}: the list ends at an entry that names no GPU",
            evidence,
            fix="correct the entry; nvidia-smi -L shows numbers and UUIDs",
            commands=("nvidia-smi -L",),
            cost="the GPUs behind that entry are not used",
        )
    yield Finding("devices.visible", "ok", shown, evidence)


def _capability(facts: MachineFacts) -> Iterator[Finding]:
    selection = _selection(facts)
    if isinstance(selection, Finding):
        yield selection
        return
    for skip in selection.skipped:
        name, capability = skip.device.name, skip.device.capability
        if capability.value is None:
            yield Finding(
                "devices.capability-unknown",
                "warn",
                f"{name}: its compute capability is not known, so it is not used",
                (seen("not known", capability),),
                fix="update the driver, or its tools: nvidia-smi --query-gpu=compute_cap --format=csv tells it",
                commands=("nvidia-smi --query-gpu=name,compute_cap --format=csv",),
                cost="this card is not used",
            )
        else:
            yield Finding(
                "devices.too-old",
                "note" if selection.usable else "warn",
                f"{name} is not used: capability {capability.value}, the kernels need {MINIMUM} or later",
                (seen(str(capability.value), capability),),
                fix=f"none here: cards below {MINIMUM} cannot run these kernels; "
                + ("the other cards serve" if selection.usable else "the CPU serves instead"),
                cost="this card is not used",
                notable=True,
            )
    if not selection.usable and not selection.skipped:
        yield Finding("devices.none", "skip", "no GPU that could be used")
    if selection.usable:
        shown = ", ".join(f"{device.name} ({device.capability.value})" for device in selection.usable)
        yield Finding(
            "devices.capability",
            "ok",
            f"can compute: {shown}",
            tuple(seen(str(device.capability.value), device.capability) for device in selection.usable),
        )


def _memory(facts: MachineFacts) -> Iterator[Finding]:
    selection = _selection(facts)
    if isinstance(selection, Finding):
        yield selection
        return
    for device in selection.usable:
        memory = device.memory
        free, total, reserved = memory.free_bytes.value, memory.total_bytes.value, memory.reserved_bytes.value
        if free is None or total is None:
            source = memory.free_bytes.source if free is None else memory.total_bytes.source
            yield not_known("devices", f"the free memory of {device.name}", source)
            continue
        evidence = (
            seen(f"{free} bytes free", memory.free_bytes),
            seen(f"{total} bytes", memory.total_bytes),
            *(seen(held, holder.used_bytes) for holder, held in _holders(device.gpu)),
        )
        shown = f"{device.name}: {render_size(free)} of {render_size(total)} free"
        if memory.kind.value == "unified":
            yield Finding("devices.unified", "ok", f"{shown}, one memory with the system's", evidence)
        elif total - free - (reserved or 0) > total * _BUSY_SHARE:
            yield Finding(
                "devices.busy",
                "note",
                f"{shown}: other programs hold {render_size(total - free - (reserved or 0))}{_named(device.gpu)}",
                evidence,
                fix="end them if the model should have that memory",
                commands=("nvidia-smi",),
                cost="fewer weights fit on the card",
            )
        else:
            kept = f"; the driver keeps {render_size(reserved)}" if reserved else ""
            yield Finding("devices.memory", "ok", f"{shown}{kept}", evidence)
    if not selection.usable:
        yield Finding("devices.none", "skip", "no GPU that could be used")


def _holders(gpu: Gpu) -> list[tuple[Holder, str]]:
    """Return who holds memory of a card, the greatest first, with the words for it."""
    known = [(holder, holder.used_bytes.value, holder.name.value) for holder in gpu.holders]
    ordered = sorted(known, key=lambda one: -(one[1] or 0))
    return [
        (
            holder,
            f"{PurePosixPath(name.replace(chr(92), '/')).name if name else f'process {holder.pid}'} "
            f"{render_size(nbytes) if nbytes is not None else '(how much is not told)'}",
        )
        for holder, nbytes, name in ordered
    ]


def _named(gpu: Gpu) -> str:
    held = [words for _, words in _holders(gpu)]
    more = f", {len(held) - _MOST_NAMED} more" if len(held) > _MOST_NAMED else ""
    return f" ({', '.join(held[:_MOST_NAMED])}{more})" if held else ""


def _link(facts: MachineFacts) -> Iterator[Finding]:
    selection = _selection(facts)
    if isinstance(selection, Finding):
        yield selection
        return
    for device in selection.usable:
        link = device.gpu.link
        width, most = link.width.value, link.width_max.value
        if width is None or most is None:
            yield not_known("devices", f"the PCIe link of {device.name}", link.width.source)
            continue
        generation = f", generation {link.generation_max.value}" if link.generation_max.value else ""
        shown = f"{device.name}: PCIe with {width} of {most} lanes{generation}"
        evidence = (seen(f"{width} lanes", link.width), seen(f"at most {most}", link.width_max))
        if 2 * width > most:
            yield Finding("devices.link", "ok", shown, evidence)
        else:
            yield Finding(
                "devices.narrow-link",
                "note",
                shown,
                evidence,
                fix="put the card into a slot with all lanes (the mainboard's manual names it); a riser, or an M.2 "
                "drive that shares them, may be the reason. Some laptops widen the link under load",
                commands=("nvidia-smi --query-gpu=pcie.link.width.current,pcie.link.width.max --format=csv",),
                cost="copies to the card take longer",
            )
    if not selection.usable:
        yield Finding("devices.none", "skip", "no GPU that could be used")


_NEEDS, _READS = ("driver.state",), ("devices", "settings")

CHECKS = (
    Check("devices.visible", _NEEDS, _READS, "which GPUs CUDA_VISIBLE_DEVICES leaves", _visible),
    Check("devices.capability", _NEEDS, _READS, "whether they are recent enough for the kernels", _capability),
    Check("devices.memory", _NEEDS, _READS, "how much of their memory is free, and who holds the rest", _memory),
    Check("devices.link", _NEEDS, _READS, "how many PCIe lanes they have", _link),
)
