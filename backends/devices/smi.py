"""What nvidia-smi prints, of every generation, as facts. Nothing here runs it; its output is not trusted.

A field that the tool does not tell comes as ``[N/A]``, ``Not Supported`` or a sentence in brackets: that is not known,
never 0. Errors come on standard output, between rows or instead of them: a line is a device only when all of it fits.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coli.backends.devices.facts import MIB, UNKNOWN, DriverState, Fact, Gpu, Holder, Link, Memory, MigSlice
from coli.backends.targets import parse_capability

__all__ = [
    "QUERY_FIELDS",
    "SmiReport",
    "classify_failure",
    "lost_devices",
    "normal_bus_id",
    "parse_csv",
    "parse_list",
    "parse_table",
    "parse_version",
    "parse_xml",
    "rejected_field",
]

# The name comes last: it may hold what separates fields.
QUERY_FIELDS = (
    "index",
    "uuid",
    "pci.bus_id",
    "driver_version",
    "compute_cap",
    "memory.total",
    "memory.free",
    "memory.used",
    "memory.reserved",
    "mig.mode.current",
    "driver_model.current",
    "display_active",
    "addressing_mode",
    "name",
)

_MAX_GPUS = 256
_MAX_HOLDERS = 1000
_MAX_TEXT = 200
_MAX_MIB = 1 << 30  # a petabyte: more is not a size
_NOT_TOLD = frozenset({"", "n/a", "not supported", "not available", "unknown", "unknown error", "err!", "none", "na"})
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{4,80}")
_BUS = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")
_VERSION = re.compile(r"\d{2,4}(?:\.\d{1,4}){1,3}")
_CUDA = re.compile(r"(\d{1,2})\.(\d{1,2})(?:\.\d+)?")
# Digits in groups of three (with the separators of any language), or plain ones with a fraction.
_GROUPED = re.compile(r"\d{1,3}(?:[.,' ]\d{3})+")
_SPACES = re.compile(r"[\u00a0\u2009\u202f]")
_PLAIN = re.compile(r"(\d{1,12})(?:[.,]\d{1,2})?")


@dataclass(frozen=True)
class SmiReport:
    """What one output told. ``problems`` are lines that are neither devices nor decoration."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: Fact[str] = UNKNOWN
    max_cuda: Fact[tuple[int, int]] = UNKNOWN
    problems: tuple[str, ...] = ()


def _told(text: str | None) -> str | None:
    """Return the text of a field that says something, else None."""
    if text is None:
        return None
    value = _SPACES.sub(" ", text).strip()
    if value.casefold() in _NOT_TOLD or (value.startswith("[") and value.endswith("]")):
        return None
    if "deprecated" in value.casefold() or len(value) > _MAX_TEXT or not value.isprintable():
        return None
    return value


def _text(text: str | None, source: str) -> Fact[str]:
    value = _told(text)
    if value is not None:
        return Fact.of(value, source)
    return Fact.unknown(source if text is None else f"{source} says {text.strip()[:60]!r}")


def _mib(text: str | None, source: str) -> Fact[int]:
    value = _told(text)
    if value is None:
        return Fact.unknown(source if text is None else f"{source} says {text.strip()[:60]!r}")
    number = re.sub(r"\s*MiB$", "", value, flags=re.IGNORECASE).strip()
    if _GROUPED.fullmatch(number):
        mib = int(re.sub(r"\D", "", number))
    else:
        plain = _PLAIN.fullmatch(number)
        if plain is None:
            return Fact.unknown(f"{source} says {value[:60]!r}")
        mib = int(plain[1])
    return Fact.of(mib * MIB, source) if mib <= _MAX_MIB else Fact.unknown(f"{source} says {value[:60]!r}")


def _uuid(text: str | None, source: str) -> Fact[str]:
    value = _told(text)
    return Fact.of(value, source) if value is not None and _UUID.fullmatch(value) else Fact.unknown(source)


def normal_bus_id(text: str | None) -> str | None:
    """Return one spelling of a bus id, ``00000000:01:00.0``; None for what is none."""
    found = _BUS.fullmatch((text or "").strip())
    if found is None:
        return None
    return f"{int(found[1], 16):08X}:{found[2].upper()}:{found[3].upper()}.{found[4]}"


def _bus(text: str | None, source: str) -> Fact[str]:
    value = normal_bus_id(text)
    return Fact.of(value, source) if value else Fact.unknown(source)


def _flag(text: str | None, source: str) -> Fact[bool]:
    value = _told(text)
    words = {"enabled": True, "on": True, "yes": True, "disabled": False, "off": False, "no": False}
    known = words.get((value or "").casefold())
    return Fact.unknown(source) if known is None else Fact.of(known, source)


def parse_version(text: str | None, source: str) -> Fact[str]:
    """Return the release of a driver in ``text``, ``550.90.07``."""
    found = _VERSION.fullmatch((text or "").strip())
    return Fact.of(found[0], source) if found else Fact.unknown(source)


def _cuda(text: str | None, source: str) -> Fact[tuple[int, int]]:
    found = _CUDA.fullmatch((text or "").strip())
    return Fact.of((int(found[1]), int(found[2])), source) if found else Fact.unknown(source)


def rejected_field(text: str) -> str | None:
    """Return the field that this nvidia-smi does not know, from its message."""
    found = re.search(r'Field "([\w.]+)" is not a valid field to query', text)
    return found[1] if found else None


# What stands in place of the row of a device that no longer answers.
_LOST = re.compile(
    r"unable to determine the device handle|gpu is lost|requires reset|fallen off the bus", re.IGNORECASE
)


def lost_devices(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines that tell of a device which no longer answers."""
    return tuple(line for line in lines if _LOST.search(line))


def parse_csv(text: str, fields: Sequence[str] = QUERY_FIELDS) -> SmiReport:
    """Parse ``--query-gpu=FIELDS --format=csv,noheader,nounits``. FIELDS start with the index and end with the name."""
    source = "nvidia-smi --query-gpu"
    gpus: list[Gpu] = []
    problems: list[str] = []
    version: Fact[str] = UNKNOWN
    for line in text.splitlines()[: 8 * _MAX_GPUS]:
        if not line.strip():
            continue
        parts = [part.strip() for part in line.split(", ", len(fields) - 1)]
        if len(parts) != len(fields):
            parts = [part.strip() for part in line.split(",", len(fields) - 1)]
        row = dict(zip(fields, parts, strict=False))
        index = row.get("index", "")
        if len(parts) != len(fields) or not re.fullmatch(r"\d{1,4}", index) or len(gpus) >= _MAX_GPUS:
            problems.append(line.strip()[:_MAX_TEXT])
            continue
        version = version.otherwise(parse_version(row.get("driver_version"), source))
        gpus.append(_gpu_of_row(int(index), row, source))
    return SmiReport(tuple(gpus), version, UNKNOWN, tuple(problems[:20]))


def _gpu_of_row(index: int, row: Mapping[str, str], source: str) -> Gpu:
    capability = parse_capability(row.get("compute_cap", ""))
    return Gpu(
        index,
        name=_text(row.get("name"), source),
        uuid=_uuid(row.get("uuid"), source),
        bus_id=_bus(row.get("pci.bus_id"), source),
        capability=Fact.of(capability, source) if capability else Fact.unknown(source),
        memory=Memory(
            total_bytes=_mib(row.get("memory.total"), source),
            free_bytes=_mib(row.get("memory.free"), source),
            used_bytes=_mib(row.get("memory.used"), source),
            reserved_bytes=_mib(row.get("memory.reserved"), source),
        ),
        mig_enabled=_flag(row.get("mig.mode.current"), source),
        driver_model=_text(row.get("driver_model.current"), source),
        display_active=_flag(row.get("display_active"), source),
        addressing=_text(row.get("addressing_mode"), source),
    )


def parse_xml(text: str) -> SmiReport:
    """Parse ``-q -x`` of any generation; elements that are missing are not known."""
    source = "nvidia-smi -q -x"
    start, end = text.find("<nvidia_smi_log"), text.rfind("</nvidia_smi_log>")
    if start < 0 or end < 0:
        return SmiReport(problems=("no whole <nvidia_smi_log>",))
    before = text[:start]
    problems = [
        line.strip()[:_MAX_TEXT]
        for line in before.splitlines()
        if line.strip() and not line.strip().startswith(("<?xml", "<!DOCTYPE"))
    ]
    try:
        # The document type in front is cut off, and with it every declaration of an entity.
        root = ElementTree.fromstring(text[start : end + len("</nvidia_smi_log>")])  # noqa: S314
    except (ElementTree.ParseError, ValueError) as error:
        return SmiReport(problems=(*problems[:19], f"not XML: {error}"))

    def first(*names: str) -> str | None:
        return next((found for name in names if (found := root.findtext(name)) is not None), None)

    gpus = []
    for index, element in enumerate(root.findall("gpu")[:_MAX_GPUS]):
        product = _text(element.findtext("product_name"), source)
        uuid = _uuid(element.findtext("uuid"), source)
        if not product.known and not uuid.known:
            problems.append(f"a <gpu> without name and uuid: {(element.get('id') or '')[:40]}")
            continue
        gpus.append(
            Gpu(
                index,
                name=product,
                uuid=uuid,
                bus_id=_bus(element.get("id"), source),
                architecture=_text(element.findtext("product_architecture"), source),
                memory=_xml_memory(element, source),
                mig_enabled=_flag(element.findtext("mig_mode/current_mig"), source),
                mig=tuple(_xml_slices(element, source)),
                virtualization=_text(element.findtext("gpu_virtualization_mode/virtualization_mode"), source),
                driver_model=_text(element.findtext("driver_model/current_dm"), source),
                display_active=_flag(element.findtext("display_active"), source),
                addressing=_text(element.findtext("addressing_mode"), source),
                link=_xml_link(element, source),
                holders=tuple(_xml_holders(element, source)),
            )
        )
    return SmiReport(
        tuple(gpus),
        parse_version(first("driver_version", "kmd_version"), source),
        _cuda(first("cuda_version", "cuda_umd_version"), source),
        tuple(problems[:20]),
    )


def _xml_memory(element: ElementTree.Element, source: str) -> Memory:
    def field(name: str) -> Fact[int]:
        return _mib(element.findtext(f"fb_memory_usage/{name}"), source)

    return Memory(UNKNOWN, field("total"), field("free"), field("used"), field("reserved"))


def _xml_link(element: ElementTree.Element, source: str) -> Link:
    def number(name: str) -> Fact[int]:
        text = (element.findtext(f"pci/pci_gpu_link_info/{name}") or "").strip()
        found = re.fullmatch(r"(\d{1,2})x?", text, re.ASCII)
        return Fact.of(int(found[1]), source) if found else Fact.unknown(source)

    widths, generations = "link_widths", "pcie_gen"
    return Link(
        number(f"{widths}/current_link_width"),
        number(f"{widths}/max_link_width"),
        number(f"{generations}/current_link_gen"),
        number(f"{generations}/max_link_gen"),
    )


def _xml_holders(element: ElementTree.Element, source: str) -> list[Holder]:
    holders = []
    for part in element.findall("processes/process_info")[:_MAX_HOLDERS]:
        pid = (part.findtext("pid") or "").strip()
        if re.fullmatch(r"\d{1,10}", pid, re.ASCII):
            name, kind = _text(part.findtext("process_name"), source), _text(part.findtext("type"), source)
            holders.append(Holder(int(pid), name, kind, _mib(part.findtext("used_memory"), source)))
    return holders


def _xml_slices(element: ElementTree.Element, source: str) -> list[MigSlice]:
    slices = []
    for position, part in enumerate(element.findall("mig_devices/mig_device")[:_MAX_GPUS]):

        def number(name: str, part: ElementTree.Element = part) -> Fact[int]:
            text = (part.findtext(name) or "").strip()
            return Fact.of(int(text), source) if re.fullmatch(r"\d{1,4}", text) else Fact.unknown(source)

        index = number("index").value
        slices.append(
            MigSlice(
                position if index is None else index,
                uuid=_uuid(part.findtext("uuid"), source),
                gpu_instance=number("gpu_instance_id"),
                compute_instance=number("compute_instance_id"),
                memory=_xml_memory(part, source),
            )
        )
    return slices


def parse_list(text: str) -> SmiReport:
    """Parse ``-L``: names and UUIDs of devices and of their MIG slices."""
    source = "nvidia-smi -L"
    gpus: list[Gpu] = []
    problems: list[str] = []
    for line in text.splitlines()[: 16 * _MAX_GPUS]:
        device = re.fullmatch(r"GPU (\d{1,4}): (.{1,200}?) \(UUID: ([^)]*)\)\s*", line)
        part = re.fullmatch(r"\s+MIG (\S{1,40})\s+Device\s+(\d{1,4}): \(UUID: ([^)]*)\)\s*", line)
        if device and len(gpus) < _MAX_GPUS:
            gpus.append(Gpu(int(device[1]), name=_text(device[2], source), uuid=_uuid(device[3], source)))
        elif part and gpus:
            mig = MigSlice(int(part[2]), profile=Fact.of(part[1], source), uuid=_uuid(part[3], source))
            gpus[-1] = replace(gpus[-1], mig=(*gpus[-1].mig, mig))
        elif line.strip():
            problems.append(line.strip()[:_MAX_TEXT])
    return SmiReport(tuple(gpus), problems=tuple(problems[:20]))


def parse_table(text: str) -> SmiReport:
    """Parse the plain table: the versions of its banner, in both spellings, and what its rows tell of devices."""
    source = "nvidia-smi"
    version = re.search(r"(?:Driver|KMD) Version:\s*(\S+)", text)
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*(\S+)", text)
    row = re.compile(r"\|\s*(\d{1,4})\s+(.{1,80}?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM|Enabled|Disabled)\s*\|\s*(\S+).*")
    gpus: list[Gpu] = []
    for line in text.splitlines()[: 32 * _MAX_GPUS]:
        found = row.fullmatch(line.rstrip())
        memory = re.search(r"\|\s*(\d+)\s*MiB\s*/\s*(\d+)\s*MiB\s*\|", line)
        if found and len(gpus) < _MAX_GPUS:
            cut = found[2].endswith("...")
            name: Fact[str] = Fact.unknown(f"{source} cuts it: {found[2]}") if cut else _text(found[2], source)
            gpus.append(Gpu(int(found[1]), name=name, bus_id=_bus(found[3], source)))
        elif memory and gpus and not gpus[-1].memory.total_bytes.known:
            used, total = _mib(memory[1], source), _mib(memory[2], source)
            gpus[-1] = replace(gpus[-1], memory=Memory(used_bytes=used, total_bytes=total))
    return SmiReport(tuple(gpus), parse_version(version and version[1], source), _cuda(cuda and cuda[1], source))


# What the tool says -> state. The first that occurs wins.
_SENTENCES: tuple[tuple[str, DriverState], ...] = (
    ("driver/library version mismatch", "mismatch"),
    ("couldn't find libnvidia-ml", "library-missing"),
    ("couldn't communicate with the nvidia driver", "not-loaded"),
    ("driver not loaded", "not-loaded"),
    ("insufficient permissions", "no-permission"),
    ("gpu access blocked by the operating system", "no-permission"),
    ("no devices were found", "no-usable-device"),
    ("failed to initialize nvml: unknown error", "nvml-unknown-error"),
    ("gpu is lost", "no-usable-device"),
    ("unable to determine the device handle", "no-usable-device"),
    ("gpu requires reset", "no-usable-device"),
)
# Its exit code is that of NVML.
_CODES: dict[int, DriverState] = {
    4: "no-permission",
    6: "no-usable-device",
    9: "not-loaded",
    12: "library-missing",
    15: "no-usable-device",
    16: "no-usable-device",
    17: "no-permission",
    18: "mismatch",
}


def classify_failure(code: int, text: str) -> tuple[DriverState, str] | None:
    """Return the state that a failed call means and the sentence that says so; None when it does not say.

    ``text``: standard output and standard error.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for sentence, state in _SENTENCES:
        for line in lines:
            if sentence in line.casefold():
                return state, line[:_MAX_TEXT]
    if code in _CODES:
        return _CODES[code], f"exit code {code}" + (f": {lines[0][:_MAX_TEXT]}" if lines else "")
    return None
