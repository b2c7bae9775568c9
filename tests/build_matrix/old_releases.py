"""Real releases for the full tests: cuBLAS headers, and a CUDA 12.4 with its nvcc. Kept below build/old-releases."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from coli.build_matrix.wheels import load_bundles, make_bundle, read_bundles
from coli.errors import ColiError

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[1] / "build" / "old-releases"
# The wheels of CUDA 12 have no nvcc; Debian's package of that release has one.
PACKAGE, VERSION, SUITE = "nvidia-cuda-toolkit", "12.4.131~12.4.1-2", "trixie"
PACKAGE_SHA256 = "cd5fe85aee38d108b315f408a688641478f2402622a10c677478eb7a6c4e5319"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PROFILE = """TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
CICC_PATH = $(TOP)/nvvm/bin
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"
"""


def wheels(id: str, *options: str) -> Path:
    """Return the root of a bundle of pinned wheels, of ours or of old_releases.toml; skip without a network."""
    bundles = {**load_bundles(), **read_bundles((HERE / "old_releases.toml").read_text("utf-8"))}
    if platform.machine() != "x86_64":
        pytest.skip("not run: the older releases are pinned for x86_64")
    try:
        return make_bundle(bundles[id], KEPT / "coli", "x86_64", dict(os.environ), options)
    except ColiError as error:
        if error.code == "build.wheels-download":
            pytest.skip(f"not run: {error.observed}")
        raise


def cuda_12_4() -> Path:
    """Return the root of a CUDA 12.4 without static runtime and without cuBLAS, made from packages and wheels."""
    root = KEPT / "cuda-12.4"
    if (root / "whole").is_file():
        return root
    parts = [wheels(f"{name}:12.4") for name in ("runtime", "crt", "cccl")]
    debian = _unpacked(_package())
    shutil.rmtree(root, ignore_errors=True)
    own = debian / "usr" / "lib" / "nvidia-cuda-toolkit"
    shutil.copytree(own / "bin" / "crt", root / "bin" / "crt")
    shutil.copytree(own / "libdevice", root / "nvvm" / "libdevice")
    (root / "nvvm" / "bin").mkdir()
    shutil.copy2(own / "bin" / "cicc", root / "nvvm" / "bin")
    shutil.copy2(own / "bin" / "nvcc", root / "bin")
    for name in ("__nvcc_device_query", "bin2c", "cudafe++", "fatbinary", "nvlink", "ptxas"):
        shutil.copy2(debian / "usr" / "bin" / name, root / "bin")
    (root / "bin" / "nvcc.profile").write_text(PROFILE, encoding="ascii")
    for part in parts:
        shutil.copytree(part / "include", root / "include", dirs_exist_ok=True)
    (root / "lib64").mkdir()
    shutil.copy2(parts[0] / "lib" / "libcudart.so.12", root / "lib64")
    (root / "lib64" / "libcudart.so").symlink_to("libcudart.so.12")
    (root / "lib64" / "libcudadevrt.a").write_bytes(b"!<arch>\n")  # nvcc links it unasked; nothing here uses it
    shutil.rmtree(debian)
    (root / "whole").touch()
    return root


def _package() -> Path:
    """Download the pinned package from the mirror that this machine uses, with lists of our own."""
    file = KEPT / "package.deb"
    if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == PACKAGE_SHA256:
        return file
    mirror = _mirror()
    if mirror is None or not KEYRING.is_file() or shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("not run: no apt with a Debian mirror")
    apt = KEPT / "apt"
    for name in ("lists/partial", "cache/archives/partial", "down"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {SUITE} non-free\n", encoding="ascii")
    places = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": apt / "lists",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
    }
    options = [word for name, value in places.items() for word in ("-o", f"{name}={value}")]
    for command in (["update"], ["download", f"{PACKAGE}={VERSION}"]):
        words = ["apt-get", "-qq", *options, *command]
        done = subprocess.run(words, cwd=apt / "down", capture_output=True, text=True, check=False, timeout=600)
        if done.returncode != 0:
            pytest.skip(f"not run: apt-get {command[0]}: {done.stderr.strip()[-200:]}")
    (found,) = (apt / "down").glob("*.deb")
    assert hashlib.sha256(found.read_bytes()).hexdigest() == PACKAGE_SHA256
    found.replace(file)
    return file


def _mirror() -> str | None:
    """Return the mirror of Debian's own suites in this machine's apt sources."""
    for file in sorted(Path("/etc/apt").glob("sources.list*")):
        for one in [file] if file.is_file() else sorted(file.iterdir()):
            text = one.read_text("utf-8", "replace")
            found = re.search(r"^URIs:\s*(\S+/debian/?)\s*$", text, re.MULTILINE)
            found = found or re.search(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+/debian/?)\s", text, re.MULTILINE)
            if found:
                return found[1]
    return None


def _unpacked(package: Path) -> Path:
    folder = KEPT / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    return folder
