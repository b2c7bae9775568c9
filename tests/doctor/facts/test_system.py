"""System and processor of machines made of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from coli.build_matrix.toolkits import Places
from coli.doctor.facts.cpu import probe_cpu
from coli.doctor.facts.memory import probe_memory
from coli.doctor.facts.system import probe_system


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_system_of_a_recorded_machine(tmp_path: Path) -> None:
    machine(
        tmp_path,
        {
            "etc/os-release": '# a comment\nNAME=Ubuntu\nVERSION_ID=24.04\nPRETTY_NAME="Ubuntu 24.04.1"\nX=\'open\n',
            "proc/version": "Linux version 6.8.0-45-generic (buildd@x) #45\n",
            "usr/bin/ldd": "#!/bin/sh\necho 'ldd (Ubuntu GLIBC 2.39-0ubuntu8.3) 2.39'\n",
        },
    )
    (tmp_path / "usr/bin/ldd").chmod(0o755)
    found = probe_system(Places({"PATH": "/usr/bin"}, "x86_64", tmp_path), "linux")
    assert (found.name.value, found.kernel.value) == ("Ubuntu 24.04.1", "6.8.0-45-generic")
    assert (found.libc.value, found.machine.value, found.platform) == ("glibc 2.39", "x86_64", "linux")
    assert found.container.value is None
    assert found.container.known
    assert (found.wsl.value, found.wsl.known, found.tegra.value) == (None, True, False)


@pytest.mark.parametrize(
    ("version", "wsl"),
    [
        ("Linux version 6.6.87.2-microsoft-standard-WSL2", 2),
        ("Linux version 4.19.128-microsoft-standard (x) #1", 2),
        ("Linux version 4.4.0-19041-Microsoft (x)", 1),
        ("Linux version 6.8.0-45-generic (x)", None),
    ],
)
def test_which_wsl(tmp_path: Path, version: str, wsl: int | None) -> None:
    machine(tmp_path, {"proc/version": version, "run/systemd/container": "wsl\n"})
    found = probe_system(Places({"container": "wsl"}, "x86_64", tmp_path), "linux")
    assert (found.wsl.value, found.wsl.known, found.container.value) == (wsl, True, None)
    assert found.platform == ("wsl2" if wsl else "linux")


@pytest.mark.parametrize(
    ("files", "variables", "kind"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({".dockerenv": "", "proc/1/cgroup": "0::/kubepods.slice/x\n"}, {}, "kubernetes"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc/1/cgroup": "1:name=systemd:/lxc/web\n"}, {}, "lxc"),
        ({"proc/1/cgroup": "9:cpu:/libpod_parent/x\n"}, {}, "podman"),
        ({"run/systemd/container": "lxc\n"}, {}, "lxc"),
        ({}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
        ({"proc/1/cgroup": "0::/init.scope\n"}, {}, None),
    ],
)
def test_kind_of_container(tmp_path: Path, files: dict[str, str], variables: dict[str, str], kind: str | None) -> None:
    found = probe_system(Places(variables, "x86_64", machine(tmp_path, files)), "linux")
    assert (found.container.value, found.container.known) == (kind, True)


def test_musl_and_other_systems(tmp_path: Path) -> None:
    machine(tmp_path, {"lib/ld-musl-x86_64.so.1": ""})
    assert probe_system(Places({}, "x86_64", tmp_path), "linux").libc.value == "musl"
    other = probe_system(Places({}, "x86_64", tmp_path), "win32")
    assert (other.platform, other.libc.value, other.libc.known) == ("windows", None, True)
    assert not other.kernel.known


def test_processor_of_a_recorded_machine(tmp_path: Path) -> None:
    row = (
        "processor\t: {}\nmodel name\t: AMD Ryzen 9 5900X\nphysical id\t: 0\ncore id\t\t: {}\nflags\t\t: fpu avx avx2\n"
    )
    machine(
        tmp_path,
        {
            "proc/cpuinfo": "\n".join(row.format(n, n % 12) for n in range(24)),
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/cpu.max": "450000 100000\n",
            "proc/self/status": "Cpus_allowed_list:\t0-23\n",
        },
    )
    found = probe_cpu(tmp_path, "x86_64")
    assert (found.model.value, found.machine, found.level) == ("AMD Ryzen 9 5900X", "x86_64", "portable")
    assert found.features.value == {"fpu", "avx", "avx2"}
    assert (found.physical_cores.value, found.logical_cores.value, found.affinity.value) == (12, 24, 24)
    assert (found.quota_cores.value, found.quota_at.value, found.threads.value) == (4.5, "/a", 4)


def test_arm_names_the_board_and_no_cores(tmp_path: Path) -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd\nCPU part\t: 0xd42\n\nprocessor\t: 1\nFeatures\t: fp asimd sve\n"
    machine(tmp_path, {"proc/cpuinfo": text, "proc/device-tree/model": "NVIDIA Jetson AGX Orin\0"})
    found = probe_cpu(tmp_path, "aarch64")
    assert (found.model.value, found.level, found.features.value) == ("NVIDIA Jetson AGX Orin", "neon", {"fp", "asimd"})
    assert (found.physical_cores.known, found.logical_cores.value, found.threads.value) == (False, 2, 2)


def test_nothing_is_known_of_an_empty_machine(tmp_path: Path) -> None:
    found = probe_cpu(tmp_path, "x86_64")
    facts = (found.model, found.features, found.physical_cores, found.affinity, found.quota_cores, found.threads)
    assert not any(fact.known for fact in facts)
    memory = probe_memory(tmp_path)
    assert not any(fact.known for fact in (memory.budget_bytes, memory.host.limit_at, memory.host.total_bytes))


def test_memory_says_what_an_engine_would_take(tmp_path: Path) -> None:
    machine(tmp_path, {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"})
    assert probe_memory(tmp_path).budget_bytes.value == 7 << 30  # a sixteenth of 16 GiB is left
