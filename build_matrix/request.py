"""What a user asks of the build, each value with the place it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coli.build_matrix.matrix import Cell

__all__ = ["VARIABLES", "Request", "Value", "for_cell", "read_request"]

VARIABLES = ("CUDA_ARCH", "NO_TC", "DEEPGEMM", "DEEPGEMM_HOME", "NVCC_CCBIN", "NVCC_APPEND_FLAGS")
"""Variables that the build honours, beside CUDA_HOME and CUDA_PATH, which the finder of toolkits reads."""


@dataclass(frozen=True)
class Value:
    """A text and where it came from (`environment`, `--cell`)."""

    text: str
    origin: str


@dataclass(frozen=True)
class Request:
    """The options of a build; None is not given. ``anyway``: build what the present driver will refuse."""

    cuda_arch: Value | None = None
    no_tc: Value | None = None
    deepgemm: Value | None = None
    deepgemm_home: Value | None = None
    nvcc_ccbin: Value | None = None
    nvcc_append_flags: Value | None = None
    toolkit: Value | None = None
    anyway: bool = False
    overridden: tuple[str, ...] = ()


def read_request(variables: Mapping[str, str], *, toolkit: str | None = None, anyway: bool = False) -> Request:
    """Read the variables; an empty one counts as not set, as everywhere in a shell."""

    def value(name: str) -> Value | None:
        text = variables.get(name, "").strip()
        return Value(text, "environment") if text else None

    return Request(
        cuda_arch=value("CUDA_ARCH"),
        no_tc=value("NO_TC"),
        deepgemm=value("DEEPGEMM"),
        deepgemm_home=value("DEEPGEMM_HOME"),
        nvcc_ccbin=value("NVCC_CCBIN"),
        nvcc_append_flags=value("NVCC_APPEND_FLAGS"),
        toolkit=Value(toolkit, "--toolkit") if toolkit else None,
        anyway=anyway,
    )


def for_cell(request: Request, cell: Cell) -> Request:
    """Return the request for exactly ``cell``: what its id says counts, and what that overrides is named."""
    said = (
        ("CUDA_ARCH", request.cuda_arch, (cell.arch or "").replace("+", " ")),
        ("NO_TC", request.no_tc, "0" if cell.tensor_cores else "1"),
        ("DEEPGEMM", request.deepgemm, "1" if cell.flavour == "deepgemm" else "0"),
    )
    arch, no_tc, deepgemm = (Value(text, "--cell") for _, _, text in said)
    toolkit = request.toolkit
    if toolkit is None and cell.toolkit is not None:
        toolkit = Value(cell.toolkit.short, "--cell")
    overridden = tuple(
        f"{name}={old.text} ({old.origin}) does not count: the cell says {text}"
        for name, old, text in said
        if old is not None and old.text != text
    )
    return replace(request, cuda_arch=arch, no_tc=no_tc, deepgemm=deepgemm, toolkit=toolkit, overridden=overridden)
