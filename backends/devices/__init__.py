"""The one detector of NVIDIA's driver and devices, for the loader, the build and the doctor."""

from __future__ import annotations

from coli.backends.devices.advice import Advice, decide_advice, driver_at_least, driver_floor
from coli.backends.devices.detect import probe_devices
from coli.backends.devices.facts import DeviceFacts, Driver, Fact, Gpu, Holder, Link, Memory, MigSlice, memory_pools
from coli.backends.devices.visible import (
    Selection,
    VisibleDevice,
    engine_environment,
    select_devices,
    visible_devices,
)

__all__ = [
    "Advice",
    "DeviceFacts",
    "Driver",
    "Fact",
    "Gpu",
    "Holder",
    "Link",
    "Memory",
    "MigSlice",
    "Selection",
    "VisibleDevice",
    "decide_advice",
    "driver_at_least",
    "driver_floor",
    "engine_environment",
    "memory_pools",
    "probe_devices",
    "select_devices",
    "visible_devices",
]
