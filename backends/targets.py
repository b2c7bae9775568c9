"""Targets of device code, as nvcc spells them (``sm_86``, ``sm_120a``, ``compute_90``), and where they run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = [
    "MINIMUM",
    "TEGRA",
    "Capability",
    "CodePath",
    "DeviceCode",
    "DriverLimits",
    "Target",
    "decide_code",
    "parse_capability",
    "parse_target",
    "serves",
]


class Capability(NamedTuple):
    """A compute capability: ``Capability(8, 6)`` is shown as 8.6."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def number(self) -> int:
        """Return it as in ``sm_86``."""
        return self.major * 10 + self.minor


# Cards below this are never asked to compute: the kernels need what 8.0 brought (bf16, asynchronous copies).
MINIMUM = Capability(8, 0)

# Systems on a chip. Their machine code and that of other cards do not mix, in either direction, and every minor is its
# own (CUDA programming guide, binary compatibility). PTX runs on them like everywhere.
TEGRA = frozenset(Capability(*pair) for pair in ((3, 2), (5, 3), (6, 2), (7, 2), (8, 7), (8, 8), (10, 1), (11, 0)))

_TARGET = re.compile(r"(sm|compute)_([0-9]{2,3})([af]?)")
_CAPABILITY = re.compile(r"([0-9]{1,2})[.,]([0-9])")


@dataclass(frozen=True, order=True)
class Target:
    """Machine code (sm_86) or PTX (compute_86) for one architecture; suffix is ``""``, ``a`` or ``f``."""

    number: int
    suffix: str = ""
    ptx: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """Return `sm_120a` or `compute_90`."""
        return f"{'compute' if self.ptx else 'sm'}_{self.number}{self.suffix}"

    @property
    def short(self) -> str:
        """Return `120a` or `90-ptx`."""
        return f"{self.number}{self.suffix}" + ("-ptx" if self.ptx else "")

    @property
    def cmake(self) -> str:
        """Return the target as CMAKE_CUDA_ARCHITECTURES writes it: `86-real`, `90-virtual`."""
        return f"{self.number}{self.suffix}-{'virtual' if self.ptx else 'real'}"

    @property
    def gencode(self) -> str:
        """Return the value of nvcc's -gencode."""
        return f"arch=compute_{self.number}{self.suffix},code={self.name}"

    @property
    def capability(self) -> Capability:
        """Return the capability that it was compiled for."""
        return Capability(*divmod(self.number, 10))


def parse_target(text: str) -> Target:
    """Parse ``sm_86``, ``sm_120a`` or ``compute_90``. Raises ValueError."""
    found = _TARGET.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.40} is no target; expected sm_<number> or compute_<number>, with a or f behind it")
    return Target(int(found[2]), found[3], found[1] == "compute")


def parse_capability(text: str) -> Capability | None:
    """Parse ``8.6``; a decimal comma is a dot. None for anything else."""
    found = _CAPABILITY.fullmatch(text.strip())
    return Capability(int(found[1]), int(found[2])) if found else None


def serves(target: Target, device: Capability) -> bool:
    """Say whether code for ``target`` can run on ``device`` at all; PTX as far as the driver knows its version. Pure.

    ``a`` runs on exactly its capability; ``f`` on its family, which is the same major from its minor on; plain machine
    code likewise; plain PTX on every later capability. Machine code does not cross from or to a Tegra.
    """
    made = target.capability
    if target.suffix == "a":
        return made == device
    if target.ptx and not target.suffix:
        return made <= device
    if made.major != device.major or made.minor > device.minor:
        return False
    return target.ptx or made == device or not (made in TEGRA or device in TEGRA)


@dataclass(frozen=True)
class DeviceCode:
    """The device code of a library: its targets, and the toolkit that made it (None: not known)."""

    targets: tuple[Target, ...]
    toolkit: tuple[int, int] | None


@dataclass(frozen=True)
class DriverLimits:
    """What a driver takes: the highest CUDA version whose PTX it compiles; None: not known."""

    max_cuda: tuple[int, int] | None


@dataclass(frozen=True)
class CodePath:
    """What the driver will do with a library on one device.

    ``path``: ``machine-code``, ``jit`` (the driver compiles PTX), ``none`` or ``unknown``. ``error``: the number that
    CUDA would return, None when it would not fail or it is not known. ``needs_cuda``: the driver's CUDA version that
    the path asks for.
    """

    path: Literal["machine-code", "jit", "none", "unknown"]
    code: str
    why: str
    target: Target | None = None
    error: int | None = None
    needs_cuda: tuple[int, int] | None = None

    @property
    def works(self) -> bool:
        """Say whether the code is known to run."""
        return self.path in ("machine-code", "jit") and self.error is None


def decide_code(code: DeviceCode, device: Capability | None, driver: DriverLimits) -> CodePath:
    """Predict which of a library's code runs on a device with a driver, or which error CUDA returns. Pure.

    Machine code needs no newer driver within a major (minor version compatibility); PTX needs a driver that knows the
    PTX of the toolkit that wrote it, else error 222. Nothing that fits is error 209.
    """
    if device is None:
        return CodePath("unknown", "capability-unknown", "its compute capability is not known")
    if device < MINIMUM:
        return CodePath("none", "below-minimum", f"{device} is below sm_{MINIMUM.number}", error=209)
    fitting = [target for target in code.targets if serves(target, device)]
    # The nearest code wins, and what was made for this device alone before what was made for more.
    machine = max((t for t in fitting if not t.ptx), key=lambda t: (t.number, t.suffix == "a"), default=None)
    if machine is not None:
        return CodePath("machine-code", "machine-code", f"machine code {machine}", machine)
    ptx = max((t for t in fitting if t.ptx), key=lambda t: (t.number, t.suffix != ""), default=None)
    if ptx is None:
        has = ", ".join(map(str, code.targets)) or "no device code"
        return CodePath("none", "no-code", f"no code for {device}: it has {has}", error=209)
    if code.toolkit is None or driver.max_cuda is None:
        what = "the toolkit that wrote it" if code.toolkit is None else "the CUDA version of the driver"
        return CodePath("unknown", "ptx-unknown", f"only PTX {ptx} fits, and {what} is not known", ptx)
    needs, has_cuda = _version(code.toolkit), _version(driver.max_cuda)
    if driver.max_cuda < code.toolkit:
        why = f"only PTX {ptx} fits, from CUDA {needs}; the driver takes PTX up to {has_cuda} (error 222)"
        return CodePath("none", "driver-too-old-for-ptx", why, ptx, 222, code.toolkit)
    return CodePath("jit", "jit", f"PTX {ptx}, compiled by the driver", ptx, None, code.toolkit)


def _version(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
