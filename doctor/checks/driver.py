"""Checks of NVIDIA's driver."""

from __future__ import annotations

from collections.abc import Iterator

from coli.backends.devices import DeviceFacts, decide_advice, driver_at_least, driver_floor
from coli.backends.devices.smi import lost_devices
from coli.doctor.checks.commands import as_root, container_words, driver_commands, install_driver, install_libcuda
from coli.doctor.checks.finding import Check, Evidence, Finding, Status, not_known, seen
from coli.doctor.facts.machine import MachineFacts

__all__ = ["CHECKS"]

_CPU = "no GPU is used: everything runs on the CPU"

_SUMMARIES = {
    "mismatch": "the driver was upgraded: kernel module and libraries are of different releases",
    "not-loaded": "the driver is installed, and its kernel module is not loaded",
    "no-usable-device": "the driver runs and can start no card",
    "no-permission": "the driver is there, and this user may not use it",
    "nvml-unknown-error": "the driver answers with an unknown error",
    "library-missing": "a library of the driver is missing",
    "driver-present-tool-missing": "the driver's library is there, and nothing tells about its devices",
    "driver-too-old": "the driver is too old for its own libraries",
    "stub-library": "a stub for linking is opened in place of the driver's library",
    "not-ready": "the driver is not ready",
    "unsupported-compatibility": "the forward compatibility package does not work with this card",
    "timeout": "the driver does not answer",
    "failed": "the driver cannot be asked",
}


def _state(facts: MachineFacts) -> Iterator[Finding]:
    devices = facts.devices
    if devices is None:
        yield not_known("driver", "the driver", "nothing looked at it")
        return
    driver = devices.driver
    evidence = [Evidence(driver.evidence, "driver probe")]
    evidence += [seen(f"kernel module {driver.module_version.value}", driver.module_version)] * bool(
        driver.module_version.value
    )
    evidence += [seen(f"libraries {driver.library_version.value}", driver.library_version)] * bool(
        driver.library_version.value
    )
    evidence += [
        Evidence(note, "driver probe") for note in devices.notes if not _follows(note, driver.state, facts.here)
    ]
    if driver.state == "ok":
        version, newest = driver.version.value, driver.max_cuda.value
        shown = f"driver {version or 'of an unknown release'}"
        shown += f", which runs CUDA up to {newest[0]}.{newest[1]}" if newest else ""
        yield Finding("driver.ok", "ok", shown, tuple(evidence))
        for line in lost_devices(devices.notes):
            yield Finding(
                "driver.device-lost",
                "warn",
                "a GPU does not answer any more and is left out",
                (Evidence(line, "driver probe"),),
                fix="look into `dmesg | grep NVRM` for its Xid number, reboot; if it comes back: power, slot, heat",
                commands=(as_root("dmesg | grep NVRM", facts),),
                cost="its memory and its speed; the other devices serve",
            )
        stubs = next((note for note in devices.notes if "stubs in LD_LIBRARY_PATH" in note), None)
        if stubs is not None:
            yield Finding(
                "driver.stubs",
                "warn",
                "LD_LIBRARY_PATH names a folder of stubs, which stand before the driver's library",
                (Evidence(stubs, "LD_LIBRARY_PATH"),),
                fix="take the stubs out of it, and out of your shell's profile if that sets it",
                commands=driver_commands("remove-stubs", facts),
                cost="other programs open the stub and find no GPU; coli passes it over",
            )
        return
    advice = decide_advice(devices)
    cards = devices.pci_cards.value
    if driver.state == "absent":
        if not cards and advice is None:
            where = "none on the bus" if devices.pci_cards.known else "the bus cannot be read"
            yield Finding(
                "driver.absent",
                "note",
                f"no NVIDIA driver and no NVIDIA card ({where}): everything runs on the CPU",
                tuple(evidence),
            )
            return
        # Without access, a container looks like a machine without a GPU: what is not known is not a failure, and a
        # card on the bus may be kept from the container on purpose.
        status: Status = "note" if not cards else "warn" if devices.container else "fail"
        card = f"{cards} NVIDIA card{'s' if cards != 1 else ''}" if cards else "a GPU of this machine, if it has one,"
        fix = advice.text if advice else "install NVIDIA's driver"
        if advice is not None and advice.kind == "container-gpu-runtime":
            fix = container_words("gpu", facts) or fix
        yield Finding(
            "driver.absent",
            status,
            f"no driver {_where(devices)}: {card} cannot be used",
            (*evidence, seen(f"{cards} on the bus" if devices.pci_cards.known else "not readable", devices.pci_cards)),
            fix=("" if cards else "if this machine has a GPU: ") + fix,
            commands=driver_commands(advice.kind, facts) if advice else install_driver(facts),
            cost=_CPU,
            notable=True,
        )
        return
    yield Finding(
        f"driver.{driver.state}",
        "fail",
        _SUMMARIES[driver.state],
        tuple(evidence),
        fix=advice.text if advice else None,
        commands=driver_commands(advice.kind, facts) if advice else (),
        cost=_CPU,
    )


def _follows(note: str, state: str, here: bool) -> bool:
    """Say whether a note only repeats the state: without its kernel module libcuda cannot be opened either.

    In a tree of another machine libcuda may be an empty file that stands for it.
    """
    alone = state in ("mismatch", "not-loaded") or (not here and "file too short" in note)
    return alone and note.startswith("libcuda does not open")


def _where(devices: DeviceFacts) -> str:
    return "in this container" if devices.container else "reaches WSL" if devices.platform == "wsl2" else "is installed"


def _release(facts: MachineFacts) -> Iterator[Finding]:
    devices = facts.devices
    if devices is None or devices.driver.state == "absent":
        yield Finding("driver.not-known", "skip", "no driver: nothing to compare")
        return
    driver = devices.driver
    floor = driver_floor(12, devices.platform == "windows")
    version, newest = driver.version.value, driver.max_cuda.value
    if newest is None and (version is None or floor is None):
        yield not_known("driver", "which CUDA the driver runs", driver.version.source)
        return
    old = newest < (12, 0) if newest is not None else not driver_at_least(str(version), str(floor))
    if not old:
        libcuda = driver.libcuda.value
        if libcuda is None and driver.libcuda.known:
            yield Finding(
                "driver.no-libcuda",
                "fail",
                "libcuda.so.1, through which a backend computes, was not found",
                (seen("not found", driver.libcuda),),
                fix="install the driver's compute libraries; in a container start it with "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
                commands=install_libcuda(facts) if not devices.container else (),
                cost=_CPU,
            )
            return
        yield Finding(
            "driver.release", "ok", "recent enough for backends of CUDA 12", (seen(str(version), driver.version),)
        )
        return
    yield Finding(
        "driver.too-old",
        "fail",
        f"driver {version or 'of an unknown release'} runs CUDA {newest[0]}.{newest[1]} at most"
        if newest
        else f"driver {version} is older than {floor}",
        (
            seen(str(version), driver.version),
            seen(f"CUDA {'.'.join(map(str, newest or ('not known',)))}", driver.max_cuda),
        ),
        fix=f"install driver {floor} or later; backends are built with CUDA 12 or 13",
        commands=install_driver(facts),
        cost=_CPU,
    )


CHECKS = (
    Check("driver.state", (), ("devices", "system", "settings"), "whether the driver can be used", _state),
    Check(
        "driver.release", ("driver.state",), ("devices", "system", "settings"), "whether it is recent enough", _release
    ),
)
