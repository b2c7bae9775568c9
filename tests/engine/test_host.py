"""Memory and cores of machines made of files: cgroups of both versions, limits on ancestors."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from coli.engine.host_cpu import default_threads
from coli.engine.host_memory import probe_host_memory

GIB = 1 << 30


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        (root / "sys/fs/cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / name).write_text(text)
    return root


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(total=64 * GIB, available=48 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))


def test_the_tightest_limit_is_on_an_ancestor_and_page_cache_is_given_back(tmp_path: Path) -> None:
    files = {
        "a/b/memory.max": "max",
        "a/b/memory.current": str(GIB),
        "a/memory.max": str(8 * GIB),
        "a/memory.current": str(5 * GIB),
        "a/memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\n",
    }
    found = probe_host_memory(machine(tmp_path, "0::/a/b\n", files))
    assert (found.total_bytes, found.available_bytes) == (8 * GIB, 6 * GIB)
    assert found.source.endswith("sys/fs/cgroup/a/memory.max")


def test_the_unlimited_number_of_version_1_is_no_limit(tmp_path: Path) -> None:
    files = {"memory/x/memory.limit_in_bytes": "9223372036854771712", "memory/x/memory.usage_in_bytes": "1"}
    found = probe_host_memory(machine(tmp_path, "5:memory,hugetlb:/x\n0::/\n", files))
    assert (found.total_bytes, found.available_bytes, found.source) == (64 * GIB, 48 * GIB, "psutil")


def test_version_1_limit(tmp_path: Path) -> None:
    files = {
        "memory/x/memory.limit_in_bytes": str(4 * GIB),
        "memory/x/memory.usage_in_bytes": str(3 * GIB),
        "memory/x/memory.stat": f"total_inactive_file {GIB}\ntotal_active_file 0\n",
    }
    assert probe_host_memory(machine(tmp_path, "5:memory:/x\n", files)).available_bytes == 2 * GIB


def test_no_cgroup_files_at_all(tmp_path: Path) -> None:
    assert probe_host_memory(tmp_path).available_bytes == 48 * GIB
    assert default_threads(tmp_path) == 8


@pytest.mark.parametrize(
    ("cgroup", "files", "threads"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "350000 100000"}, 3),
        ("0::/a\n", {"a/cpu.max": "50000 100000"}, 1),
        ("3:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "200000", "cpu/x/cpu.cfs_period_us": "100000"}, 2),
        ("3:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_cpu_quota(tmp_path: Path, cgroup: str, files: dict[str, str], threads: int) -> None:
    assert default_threads(machine(tmp_path, cgroup, files)) == threads


def test_affinity_counts_logical_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert default_threads(tmp_path) == 2
