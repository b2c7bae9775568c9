"""Damaged and invented machines through the whole `coli doctor`: whatever they hold, it ends with a valid report."""

from __future__ import annotations

import errno
import json
import os
import random
import shlex
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coli.doctor.facts.bounded import Task

from .machines import CASES
from .replayed import MACHINES, Laid, doctor, lay_out, names
from .report.test_document import SCHEMA, faults

# Nothing here waits for anything: a run that takes this long hangs.
LONGEST_S = 120.0
SAMPLES = [
    {part: (folder / file).read_text("utf-8") for part, file in FILES.items()}
    for FILES in [{"query": "query.csv", "xml": "q-x.xml", "list": "L.txt", "table": "table.txt"}]
    for folder in sorted(CASES.glob("A-D*/samples"))
    if all((folder / file).is_file() for file in FILES.values())
]
SENTENCES = [
    "Failed to initialize NVML: Driver/library version mismatch\n",
    "No devices were found\n",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
    "Unable to determine the device handle for GPU0000:21:00.0: Unknown Error\n",
    'Field "compute_cap" is not a valid field to query.\n\n',
    'Field "name" is not a valid field to query.\n\n',
    "<nvidia_smi_log>" + "<gpu>" * 3000 + "</nvidia_smi_log>",
    '<!DOCTYPE x [<!ENTITY a "aaaa">]><nvidia_smi_log>&a;<gpu><product_name>&a;</product_name></gpu></nvidia_smi_log>',
    "0, " * 4000 + "\n",
    "",
]
TOOLS = ("usr/bin/g++", "usr/bin/clang++-18", "usr/bin/ldd", "usr/local/cuda/bin/nvcc", "usr/bin/nvcc")
VALUES = (
    "",
    "0",
    "9",
    "-1",
    "0,0",
    "GPU-",
    "MIG-",
    "MIG-GPU-1/2/3",
    "0,\x01,1",
    ",,,",
    "9" * 400,
    "ü",
    "1" + ",1" * 900,
)
VARIABLES = {
    "CUDA_HOME": ("/usr/local/cuda", "/", "relative", "/x" * 3000, "/" + "y" * 300),
    "LD_LIBRARY_PATH": (":", "/usr/lib:/stubs/stubs", "/" + "y" * 300),
    "PATH": ("", ":", "/usr/bin", "/usr/bin:/" + "y" * 300 + ":relative"),
    "NVCC_CCBIN": ("/usr/bin/g++", "g++", "/" + "y" * 300, "/usr"),
    "CONDA_PREFIX": ("/usr", "/" + "y" * 300),
    "VIRTUAL_ENV": ("/usr", "/" + "y" * 300),
}
ANSWERS = [
    "g++ (Debian 12.2.0-14) 12.2.0\nCopyright (C) 2022 Free Software Foundation, Inc.\n",
    "Ubuntu clang version 18.1.3 (1ubuntu1)\n",
    "ldd (Debian GLIBC 2.41-12) 2.41\n",
    "musl libc (x86_64)\nVersion 1.2.5\n",
    "Cuda compilation tools, release 12.4, V12.4.131\n",
]
SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck))


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return ``data`` cut off, with bytes replaced or repeated, lines left out, or numbers of another size."""
    for _ in range(draw.randrange(1, 4)):
        at, way = draw.randrange(len(data) + 1), draw.randrange(7)
        if way == 0:
            data = data[:at]
        elif way == 1:
            data = data[:at] + draw.randbytes(draw.randrange(1, 4)) + data[at + 1 :]
        elif way == 2:
            data = b"".join(line for line in data.splitlines(keepends=True) if draw.random() < 0.7)
        elif way == 3:
            data = (data * 2)[: 1 << 16]
        elif way == 4:
            number = draw.choice([b"", b"-1", b"9" * 20, b"9" * 5000, b"nan", b"1e9", "\u0663".encode()])
            data = data.replace(b"%d" % draw.randrange(10), number)[: 1 << 16]
        elif way == 5:
            data = data.replace(
                draw.choice([b",", b":", b" ", b"\n", b"/", b"<"]), draw.choice([b"", b"\0", b"\n", b"  "])
            )
        else:
            data = draw.randbytes(draw.randrange(300))
    return data


def program(place: Path, said: dict[str, bytes], status: int) -> None:
    """Put a program there that prints one of ``said``, by what it is asked: `query`, `xml`, `list`, else the rest."""
    files = {}
    for part, data in said.items():
        files[part] = place.with_name(f"{place.name}.{part}.said")
        files[part].write_bytes(data)
    words = {"query": "*--query-gpu*", "xml": "*-x*", "list": "*-L*", "table": "*"}
    cases = "".join(f"{words[part]}) cat {shlex.quote(str(file))} ;;\n" for part, file in files.items())
    place.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}esac\nexit {status}\n', encoding="utf-8")
    place.chmod(0o755)


def invented(root: Path, draw: random.Random) -> Laid:
    """Damage a machine that is known: some of its files, and some of its tools."""
    laid = lay_out(draw.choice(names()), root)
    for path in sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink()):
        if path.stat().st_mode & 0o100 or path == root / "smi.json" or draw.random() < 0.5:
            continue
        way = draw.randrange(12)
        if way == 0:
            path.unlink()
            path.mkdir()
        elif way == 1:
            path.unlink()
            path.symlink_to(draw.choice([path, root, Path("/proc/self/mem"), Path("nowhere")]))
        else:
            path.write_bytes(damaged(path.read_bytes(), draw))
    for name in (*TOOLS, "usr/bin/nvidia-smi"):
        place = root / name
        if draw.random() < 0.5 or (place.exists() and not place.is_file()):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        sample = draw.choice(SAMPLES) if name.endswith("smi") else {"table": draw.choice(ANSWERS)}
        said = {part: damaged(text.encode(), draw) for part, text in sample.items()}
        if draw.random() < 0.3:
            said["table"] = said["query" if "query" in said else "table"] = draw.choice(SENTENCES).encode()
        program(place, said, draw.choice([0, 0, 0, 1, 2, 6, 9, 15, 18, 127, 255]))
    laid.environment["CUDA_VISIBLE_DEVICES"] = draw.choice(VALUES)
    for name, values in VARIABLES.items():
        if draw.random() < 0.2:
            laid.environment[name] = draw.choice(values)
    if draw.random() < 0.5:
        laid.model = draw.choice(["/", "/models/flash", "/mnt/x y", "/" + "a" * 400, "/ü/\u2028"])
    return laid


def examine(laid: Laid) -> dict[str, Any]:
    ended = Task(lambda: doctor(laid, "--json"), LONGEST_S).result()
    assert isinstance(ended, tuple), ended
    code, out, errors = ended
    assert errors == ""
    document: dict[str, Any] = json.loads(out)
    assert [row for row in document["checks"] if row["status"] in ("crash", "timeout")] == []
    assert code == document["exit_code"]
    assert code in (0, 1)
    assert faults(document, SCHEMA) == []
    code, out, errors = doctor(laid, "--ascii", "--verbose")
    assert code == document["exit_code"]
    assert errors == ""
    return document


def play(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        examine(invented(Path(folder).resolve() / "root", random.Random(seed)))


@settings(SETTINGS, max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_damaged_machines(seed: int) -> None:
    play(seed)


@pytest.mark.full
@settings(SETTINGS, max_examples=500)
@given(seed=st.integers(0, 2**32))
def test_many_damaged_machines(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("name", ["a100-mig-seven", "kubernetes-v1-hybrid", "luks-lvm"])
def test_every_file_cut_in_its_middle(name: str, tmp_path: Path) -> None:
    laid = lay_out(name, tmp_path / "root")
    assert (MACHINES / name).is_dir()
    for path in laid.root.rglob("*"):
        if path.is_file() and not path.is_symlink() and not path.stat().st_mode & 0o100 and path.name != "smi.json":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    examine(laid)


def test_folders_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # PATH of a session that began as another user. Root may enter every folder, so the answer of the kernel is played.
    laid = lay_out("two-toolkits-gcc-14", tmp_path / "root")
    laid.environment |= {name: f"/closed/{name}" for name in ("CUDA_HOME", "CONDA_PREFIX", "VIRTUAL_ENV", "NVCC_CCBIN")}
    laid.environment |= {"PATH": "/closed/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": "/closed/lib"}
    ask = os.stat

    def refusing(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        if "/closed/" in os.fsdecode(path if isinstance(path, (str, bytes, os.PathLike)) else ""):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return ask(path, *arguments, **more)

    monkeypatch.setattr(os, "stat", refusing)
    document = examine(laid)
    found = {finding["code"] for row in document["checks"] for finding in row["findings"]}
    assert {"driver.ok", "toolkit.stale-variable", "compiler.unsupported"} <= found
