"""What tells whose machine it is does not reach a record: planted values of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coli.doctor.facts.machine import MachineFacts
from coli.doctor.record.machine_file import to_record
from coli.doctor.record.raw import RawFacts, RawFile, RawTool
from coli.doctor.record.redact import Redactor

UUID = "8f21a6f4-3b2d-4c11-9b6e-1d2c3b4a5f60"
OTHER = "00000000-1111-2222-3333-444444444444"
ENVIRONMENT = {
    "HF_TOKEN": "plain-looking-value",
    "COLI_UPLOAD_TOKEN": "another1value",
    "AWS_SECRET_ACCESS_KEY": "abcdefgh12345678",
    "PATH": "/usr/bin",
}


def redactor() -> Redactor:
    one = Redactor("/home/rosalind", "rosalind", ["crystal.example.org"], ENVIRONMENT)
    one.learn([f"GPU-{UUID}", OTHER])
    return one


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/rosalind/models/x", "<home>/models/x"),
        ("/home/francis/x and /home/rosalind/y", "<home-2>/x and <home>/y"),
        ("C:\\Users\\francis\\models", "<home-2>\\models"),
        ("owner rosalind, not rosalinde", "owner <user>, not rosalinde"),
        ("host crystal, crystal.example.org", "host <host>, <host>"),
        (f"GPU-{UUID}", "GPU-<uuid-1>"),
        (f"GPU-{UUID.upper()}", "GPU-<uuid-1>"),  # the same value, the same placeholder
        (f"{OTHER}", "<uuid-2>"),
        ("CUDA_VISIBLE_DEVICES=GPU-8f21", "CUDA_VISIBLE_DEVICES=GPU-<uuid-1>"),  # a cut UUID still names its GPU
        ("GPU-dead", "GPU-<uuid-part>"),
        ("<serial>1562821004711</serial>", "<serial><serial-1></serial>"),
        ("Serial Number : 1562821004711", "Serial Number : <serial-1>"),
        ("Serial\t\t: 100000004f2a9c11", "Serial\t\t: <serial-1>"),
        ("eui.0025385b71b0f3a2", "<serial-1>"),
        ("<process_name>/usr/bin/secret-project</process_name>", "<process_name><process-1></process_name>"),
        (
            "|    0   N/A  N/A      1423      G   /usr/lib/xorg/Xorg                180MiB |",
            "|    0   N/A  N/A      1423      G   <process-1>                180MiB |",
        ),
        ("ether 3c:7c:3f:1a:2b:4d up", "ether <mac-1> up"),
        ("inet 192.168.17.4/24", "inet <ip-1>/24"),
        ("fe80::3e7c:3fff:fe1a:2b4d", "<ip-1>"),
        ("HF_TOKEN is plain-looking-value", "HF_TOKEN is <secret-3>"),
        ("another1value", "<secret-2>"),
        ("hf_AbCdEfGhIjKlMnOpQrStUvWx", "<secret-4>"),
        ("sk-proj-abcdefghij0123456789", "<secret-4>"),
        ("Authorization: Bearer abc.def.ghi", "Authorization: Bearer <secret-4>"),
        ("curl -H 'Bearer abc.def.ghi'", "curl -H 'Bearer <secret-4>'"),
        ("password=hunter22", "password=<secret-4>"),
        ("https://me:token@mirror/x", "https://<secret-4>@mirror/x"),
        ("aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3hJ5kL7n", "<secret-4>"),
        ("rw,username=francis,uid=1000", "rw,username=<user-1>,uid=1000"),
        ("40 22 0:50 / /mnt rw - nfs4 nas:/export/models rw", "40 22 0:50 / /mnt rw - nfs4 <remote-1> rw"),
        ("Linux version 6.1 (builder@farm-12) x", "Linux version 6.1 (<user-1>) x"),
        ("0::/docker/" + "ab" * 32, "0::/docker/<id-1>"),
        ("/sys/fs/cgroup/memory/job/" + "0a" * 16, "/sys/fs/cgroup/memory/job/<id-1>"),
    ],
)
def test_planted_values_are_replaced_by_type(text: str, expected: str) -> None:
    assert redactor().text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA GeForce RTX 3080, 8.6, 10240, 00000000:01:00.0",
        "Cuda compilation tools, release 12.4, V12.4.131",
        "g++ (Debian 12.2.0-14+deb12u1) 12.2.0",
        "22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw",
        "MemTotal:       32768000 kB",
        "/sys/devices/pci0000:00/0000:00:1d.0/0000:03:00.0/nvme/nvme0/nvme0n1",
        "Driver Version: 580.65.06      CUDA Version: 13.0",
        "flags : fpu vme de pse tsc avx avx2 avx512f avx512_bf16",
        "127.0.0.1 and 18:30:59",
        "/usr/local/cuda-12.4/targets/x86_64-linux/include",
        "nvidia_cublas-13.0.0.19.dist-info",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4",
    ],
)
def test_what_a_machine_is_stays(text: str) -> None:
    assert redactor().text(text) == text


def test_a_common_user_name_is_no_secret() -> None:
    shown = Redactor("/root", "root", ["localhost"]).text("/root/x of root on localhost, /rootfs")
    assert shown == "<home>/x of root on localhost, /rootfs"


def test_facts_and_raw_inputs_of_a_record_share_placeholders() -> None:
    raw = RawFacts(
        (RawFile("/proc/driver/nvidia/gpus/0000:01:00.0/information", f"GPU UUID: GPU-{UUID}\n"),),
        (RawTool(("/home/rosalind/bin/nvidia-smi", "-L"), "exit", 0, f"GPU 0: X (UUID: GPU-{UUID})\n", ""),),
    )
    record = json.dumps(to_record(MachineFacts(model="/home/rosalind/model"), raw, redactor()))
    for planted in (UUID, "rosalind", "plain-looking-value"):
        assert planted not in record
    assert record.count("GPU-<uuid-1>") == 2
    assert '"<home>/model"' in record


def test_every_planted_value_is_gone_from_a_tree_of_them(tmp_path: Path) -> None:
    planted = [UUID, "rosalind", "1562821004711", "3c:7c:3f:1a:2b:4d", "192.168.17.4", "plain-looking-value", "crystal"]
    tree = {"a": [f"x {value} y" for value in planted[:2]], "serial: 1562821004711": {"b": [*planted[3:]]}}
    shown = json.dumps(redactor().plain(tree))
    assert [value for value in planted if value in shown] == []


def test_names_inside_names_domains_and_definitions() -> None:
    redactor = Redactor("/home/alice", "alice", ["wopr"])
    assert redactor.text("/data/model-of-alice/alice_x malice") == "/data/model-of-<user>/<user>_x malice"
    assert redactor.text("on wopr.corp.example.com or wopr") == "on <host> or <host>"
    assert redactor.text("-DSERVICE_PW=hunter2 -DKEY_SIZE=4096") == "-DSERVICE_PW=<secret-1> -DKEY_SIZE=4096"
    assert Redactor("/home/nvidia", "nvidia").text("/usr/bin/nvidia-smi") == "/usr/bin/nvidia-smi"
