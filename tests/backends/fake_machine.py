"""Machines with a driver: a root folder with fake libraries, and the variables that tell them what to play."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("devices") / "fake_driver.c"
LIBRARY_FOLDER = "usr/lib/x86_64-linux-gnu"


def build_fake_driver(compiler: str, folder: Path) -> Path:
    """Compile both libraries into ``folder``."""
    for name, define in (("libcuda.so.1", "FAKE_CUDA"), ("libnvidia-ml.so.1", "FAKE_NVML")):
        command = [compiler, "-std=gnu11", "-Wall", "-shared", "-fPIC", f"-D{define}", str(SOURCE)]
        subprocess.run([*command, "-o", str(folder / name)], check=True)
    return folder


@dataclass(frozen=True)
class FakeMachine:
    """A root folder and the environment of programs on it."""

    root: Path
    environment: dict[str, str]


def uuid(bus: int) -> str:
    """Return the UUID that the fakes give to the card on a bus."""
    return "GPU-{0}-{1}-{1}-{1}-{2}".format(f"{bus:02x}" * 4, f"{bus:02x}" * 2, f"{bus:02x}" * 6)


def make_machine(
    libraries: Path,
    root: Path,
    devices: str,
    *,
    cuda: str = "12040",
    parts: tuple[str, ...] = ("libcuda.so.1", "libnvidia-ml.so.1"),
    **variables: str,
) -> FakeMachine:
    """Lay out a machine. ``devices``: ``8.6,24576,0,1,NVIDIA GeForce RTX 3090;...`` (see fake_driver.c)."""
    folder = root / LIBRARY_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        shutil.copyfile(libraries / part, folder / part)
    return FakeMachine(root, {"FAKE_DEVICES": devices, "FAKE_VERSION": cuda, **variables})


def build_cublaslt(compiler: str, file: Path, code: str = "int cublaslt;", soname: str = "libcublasLt.so.13") -> Path:
    """Compile a library that has the name of cuBLASLt and nothing of it."""
    source = file.with_suffix(".c")
    source.write_text(code + "\n", encoding="utf-8")
    link = [f"-Wl,-soname,{soname}", "-Wl,--allow-shlib-undefined"]
    subprocess.run([compiler, "-shared", "-fPIC", str(source), *link, "-o", str(file)], check=True)
    source.unlink()
    file.chmod(0o755)
    return file
