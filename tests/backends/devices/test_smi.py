"""What nvidia-smi prints, in its generations and in trouble. Expected values are written by hand from the texts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coli.backends.devices.smi import (
    classify_failure,
    normal_bus_id,
    parse_csv,
    parse_list,
    parse_table,
    parse_xml,
    rejected_field,
)

MIB = 1 << 20
FIELDS = ("index", "uuid", "compute_cap", "driver_version", "memory.total", "memory.free", "name")
UUID = "GPU-5f3e0000-1a2b-4c3d-9e8f-000000abc000"


def test_rows() -> None:
    text = f"0, {UUID}, 8.6, 550.90.07, 10240, 9540, NVIDIA GeForce RTX 3080\n"
    text += f"1, {UUID[:-1]}1, 9.0, 550.90.07, 81559, 81105, NVIDIA H100, PCIe\n"
    report = parse_csv(text, FIELDS)
    first, second = report.gpus
    assert (first.index, first.name.value, first.uuid.value) == (0, "NVIDIA GeForce RTX 3080", UUID)
    assert (str(first.capability.value), first.memory.free_bytes.value) == ("8.6", 9540 * MIB)
    assert second.name.value == "NVIDIA H100, PCIe"  # a name may hold what separates fields
    assert (report.driver_version.value, report.problems) == ("550.90.07", ())


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("24564", 24564),
        ("24564 MiB", 24564),
        ("24.564 MiB", 24564),
        ("24 564", 24564),
        ("24\u202f564 MiB", 24564),
        ("24'564", 24564),
        ("24564.00", 24564),
        ("0", 0),
        ("[N/A]", None),
        ("N/A", None),
        ("[Not Supported]", None),
        ("Not Supported", None),
        ("[Unknown Error]", None),
        ("[Insufficient Permissions]", None),
        ("", None),
        ("lots", None),
        ("-1", None),
        ("1e5", None),
        ("9" * 40, None),
        ("Requested functionality has been deprecated", None),
    ],
)
def test_sizes(text: str, mib: int | None) -> None:
    (gpu,) = parse_csv(f"0, {UUID}, 8.9, 550.90.07, {text}, 1, Card", FIELDS).gpus
    assert gpu.memory.total_bytes.value == (None if mib is None else mib * MIB)
    assert gpu.memory.total_bytes.known == (mib is not None)


@pytest.mark.parametrize(
    "line",
    [
        "Failed to initialize NVML: Driver/library version mismatch",
        "Unable to determine the device handle for GPU0000:21:00.0: GPU is lost.  Reboot the system.",
        "No devices were found",
        "WARNING: infoROM is corrupted at gpu 0000:01:00.0",
        "index, uuid, compute_cap, driver_version, memory.total [MiB], memory.free [MiB], name",
        "0, GPU-",
    ],
)
def test_sentences_are_no_devices(line: str) -> None:
    good = f"0, {UUID}, 8.6, 550.90.07, 10240, 9540, Card"
    report = parse_csv(f"{line}\n{good}\n", FIELDS)
    assert [gpu.index for gpu in report.gpus] == [0]
    assert report.problems == (line,)


def test_sentence_in_the_place_of_a_name() -> None:
    (gpu,) = parse_csv(f"0, {UUID}, 8.9, 550.90.07, 1, 1, Requested functionality has been deprecated", FIELDS).gpus
    assert not gpu.name.known


def test_rejected_field() -> None:
    assert rejected_field('Field "compute_cap" is not a valid field to query.\n\n') == "compute_cap"
    assert rejected_field("0, GPU-1") is None


XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{gen}.dtd">
<nvidia_smi_log>
{versions}
<gpu id="00000000:01:00.0"><product_name>NVIDIA X</product_name><uuid>GPU-5f3e0000-1a2b</uuid>
<fb_memory_usage><total>100 MiB</total>{reserved}<used>N/A</used><free>90 MiB</free></fb_memory_usage></gpu>
</nvidia_smi_log>
"""


@pytest.mark.parametrize(
    ("gen", "versions", "reserved"),
    [
        (11, "<driver_version>470.223.02</driver_version><cuda_version>11.4</cuda_version>", ""),
        (
            12,
            "<driver_version>470.223.02</driver_version><cuda_version>11.4</cuda_version>",
            "<reserved>5 MiB</reserved>",
        ),
        (13, "<kmd_version>470.223.02</kmd_version><cuda_umd_version>11.4</cuda_umd_version>", ""),
    ],
)
def test_generations_of_xml(gen: int, versions: str, reserved: str) -> None:
    report = parse_xml("a warning first\n" + XML.format(gen=gen, versions=versions, reserved=reserved))
    (gpu,) = report.gpus
    assert (report.driver_version.value, report.max_cuda.value) == ("470.223.02", (11, 4))
    assert (gpu.memory.total_bytes.value, gpu.memory.free_bytes.value) == (100 * MIB, 90 * MIB)
    assert not gpu.memory.used_bytes.known
    assert gpu.memory.reserved_bytes.value == (5 * MIB if reserved else None)
    assert gpu.bus_id.value == "00000000:01:00.0"
    assert report.problems == ("a warning first",)


LINK_AND_PROCESSES = """<nvidia_smi_log><gpu id="00000000:01:00.0"><product_name>NVIDIA X</product_name>
<pci><pci_gpu_link_info>
<pcie_gen><max_link_gen>4</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width><current_link_width>4x</current_link_width></link_widths>
</pci_gpu_link_info></pci>
<processes>
<process_info><pid>1612</pid><type>G</type><process_name>/usr/lib/xorg/Xorg</process_name>
<used_memory>356 MiB</used_memory></process_info>
<process_info><pid>x</pid><process_name>no number</process_name></process_info>
<process_info><pid>9</pid><type>C</type><process_name>[Not Found]</process_name>
<used_memory>N/A</used_memory></process_info>
</processes></gpu></nvidia_smi_log>"""


def test_link_and_who_holds_memory() -> None:
    (gpu,) = parse_xml(LINK_AND_PROCESSES).gpus
    link = gpu.link
    assert (link.width.value, link.width_max.value, link.generation.value, link.generation_max.value) == (4, 16, 1, 4)
    shown = [(one.pid, one.name.value, one.kind.value, one.used_bytes.value) for one in gpu.holders]
    assert shown == [(1612, "/usr/lib/xorg/Xorg", "G", 356 * MIB), (9, None, "C", None)]
    (bare,) = parse_xml(XML.format(gen=12, versions="", reserved="")).gpus
    assert (bare.link.width.known, bare.holders) == (False, ())


def test_xml_that_attacks_or_breaks_off() -> None:
    bomb = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
    bomb += "<nvidia_smi_log><driver_version>&b;</driver_version></nvidia_smi_log>"
    assert parse_xml(bomb).gpus == ()
    assert parse_xml(bomb).problems
    whole = XML.format(gen=12, versions="", reserved="")
    for end in range(0, len(whole), 7):
        assert len(parse_xml(whole[:end]).gpus) <= 1


def test_list_with_mig() -> None:
    text = (
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5f3e0000-1a2b-4c3d-9e8f-000000abc000)\n"
        "  MIG 3g.40gb       Device  0: (UUID: MIG-377e0049-554c-540b-93c6-d0976f8426cb)\n"
        "  MIG 1c.2g.20gb+me Device  1: (UUID: MIG-GPU-5f3e0000-1a2b-4c3d-9e8f-000000abc000/5/0)\n"
        "GPU 1: Orin (nvgpu) (UUID: [N/A])\n"
    )
    first, second = parse_list(text).gpus
    assert [(m.index, m.profile.value, m.uuid.value) for m in first.mig] == [
        (0, "3g.40gb", "MIG-377e0049-554c-540b-93c6-d0976f8426cb"),
        (1, "1c.2g.20gb+me", "MIG-GPU-5f3e0000-1a2b-4c3d-9e8f-000000abc000/5/0"),
    ]
    assert (second.name.value, second.uuid.value) == ("Orin (nvgpu)", None)


TABLE = """
| NVIDIA-SMI 610.43.02              {banner}|
|   0  NVIDIA GeForce RTX 5060     Off | 00000000:01:00.0 Off |                  N/A |
| N/A   40C    P8             25W /  300W |    200MiB /   8151MiB |      0%      Default |
|   1  NVIDIA RTX PRO 6000 Bl...   WDDM | 00000000:21:00.0 Off |                  N/A |
| N/A   40C    P8             25W /  300W | Not Supported         |      0%      Default |
| Processes:                                                                              |
|    0   N/A  N/A      1234      G   /usr/lib/xorg/Xorg                             45MiB |
"""


@pytest.mark.parametrize(
    ("banner", "version", "cuda"),
    [
        ("Driver Version: 610.43.02      CUDA Version: 13.3     ", "610.43.02", (13, 3)),
        ("KMD Version: 610.43.02     CUDA UMD Version: 13.3     ", "610.43.02", (13, 3)),
        ("Driver Version: 390.157                               ", "390.157", None),
        ("Driver Version: 535.54.03   CUDA Version: N/A         ", "535.54.03", None),
        ("Driver Version: 535.54.03   CUDA Version: ERR!        ", "535.54.03", None),
    ],
)
def test_table(banner: str, version: str, cuda: tuple[int, int] | None) -> None:
    report = parse_table(TABLE.format(banner=banner))
    assert (report.driver_version.value, report.max_cuda.value) == (version, cuda)
    first, second = report.gpus
    assert (first.name.value, first.memory.total_bytes.value) == ("NVIDIA GeForce RTX 5060", 8151 * MIB)
    assert not first.memory.free_bytes.known  # total minus used is not free
    assert (second.name.value, second.memory.total_bytes.value) == (None, None)


@pytest.mark.parametrize(
    ("code", "text", "state"),
    [
        (18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.124", "mismatch"),
        (255, "Failed to initialize NVML: Unknown Error", "nvml-unknown-error"),
        (6, "No devices were found", "no-usable-device"),
        (0, "No devices were found", "no-usable-device"),
        (
            9,
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
            "NVIDIA driver is installed and running.",
            "not-loaded",
        ),
        (9, "", "not-loaded"),
        (12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "library-missing"),
        (4, "Failed to initialize NVML: Insufficient Permissions", "no-permission"),
        (17, "Failed to initialize NVML: GPU access blocked by the operating system", "no-permission"),
        (15, "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.", "no-usable-device"),
        (1, "something else", None),
        (0, "", None),
    ],
)
def test_failures(code: int, text: str, state: str | None) -> None:
    found = classify_failure(code, text)
    assert (found and found[0]) == state
    assert found is None or found[1]


def test_bus_ids() -> None:
    assert normal_bus_id("0000:01:00.0") == normal_bus_id("00000000:01:00.0") == "00000000:01:00.0"
    assert normal_bus_id("0000000f:01:00.0") == "0000000F:01:00.0"
    assert normal_bus_id("N/A") is None and normal_bus_id(None) is None


@given(st.text(alphabet="0GPUMIG-:,.[]/<>&ABab \n|\t()é٣", max_size=300))
@settings(deadline=None)
def test_any_text(text: str) -> None:
    for parse in (parse_csv, parse_xml, parse_list, parse_table):
        for gpu in parse(text).gpus:
            assert gpu.index >= 0
    classify_failure(3, text)
    parse_xml(f"<nvidia_smi_log><gpu>{text}</gpu></nvidia_smi_log>")
