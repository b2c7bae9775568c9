"""Memory and cores of machines made of files: cgroups of both versions, limits on ancestors, containers, swap."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from coli.engine.cgroup import cgroups
from coli.engine.host_cpu import default_threads, parse_cpu_list, probe_host_cpu
from coli.engine.host_memory import HostMemory, probe_host_memory, ram_budget_bytes
from coli.engine.mounts import parse_mounts
from coli.errors import BudgetError

GIB = 1 << 30
CGROUP = "sys/fs/cgroup/"
UNIFIED = "31 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
MEMINFO = f"MemTotal: {64 << 20} kB\nMemFree: {8 << 20} kB\nMemAvailable: {48 << 20} kB\n"
# Two sockets of two cores with two threads each.
CPUINFO = "\n".join(f"processor\t: {n}\nphysical id\t: {n % 2}\ncore id\t\t: {n // 2 % 2}\n" for n in range(8))


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, "proc/cpuinfo": CPUINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def seen(memory: HostMemory) -> tuple[int | None, int | None, str, str | None]:
    return (memory.total_bytes.value, memory.available_bytes.value, memory.source, memory.limit_at.value)


def test_the_tightest_limit_is_on_an_ancestor_and_inactive_page_cache_is_given_back(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        CGROUP + "a/b/memory.max": "max",
        CGROUP + "a/b/memory.current": str(GIB),
        CGROUP + "a/memory.max": str(8 * GIB),
        CGROUP + "a/memory.current": str(5 * GIB),
        CGROUP + "a/memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\n",
    }
    found = probe_host_memory(machine(tmp_path, files))
    assert seen(found) == (8 * GIB, 5 * GIB, "cgroup2", "/a")
    assert found.system_total_bytes.value == 64 * GIB


def test_the_group_with_the_least_left_binds_though_another_has_the_smaller_limit(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        CGROUP + "a/b/memory.max": str(8 * GIB),
        CGROUP + "a/b/memory.current": str(GIB),
        CGROUP + "a/memory.max": str(10 * GIB),
        CGROUP + "a/memory.current": str(9 * GIB),
    }
    assert seen(probe_host_memory(machine(tmp_path, files))) == (8 * GIB, GIB, "cgroup2", "/a")


def test_memory_high_is_a_limit(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a\n",
        CGROUP + "a/memory.max": "max",
        CGROUP + "a/memory.high": str(6 * GIB),
        CGROUP + "a/memory.current": str(GIB),
    }
    assert seen(probe_host_memory(machine(tmp_path, files))) == (6 * GIB, 5 * GIB, "cgroup2", "/a")


@pytest.mark.parametrize("unlimited", [9223372036854771712, 9223372036854710272])  # pages of 4 and of 64 KiB
def test_the_unlimited_number_of_version_1_is_no_limit(tmp_path: Path, unlimited: int) -> None:
    files = {
        "proc/self/cgroup": "5:memory,hugetlb:/x\n0::/\n",
        CGROUP + "memory/x/memory.limit_in_bytes": str(unlimited),
        CGROUP + "memory/x/memory.usage_in_bytes": "1",
        CGROUP + "memory/x/memory.stat": f"hierarchical_memory_limit {unlimited}\n",
    }
    found = probe_host_memory(machine(tmp_path, files))
    assert (seen(found), found.groups) == ((64 * GIB, 48 * GIB, "meminfo", None), ())


def test_version_1_counts_the_page_cache_of_children_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:memory:/x\n",
        CGROUP + "memory/x/memory.limit_in_bytes": str(4 * GIB),
        CGROUP + "memory/x/memory.usage_in_bytes": str(3 * GIB),
        CGROUP + "memory/x/memory.stat": f"inactive_file 4096\ntotal_inactive_file {GIB}\ntotal_active_file 4096\n",
    }
    assert seen(probe_host_memory(machine(tmp_path, files))) == (4 * GIB, 2 * GIB, "cgroup1", "/x")


def test_a_container_of_version_1_sees_its_own_group_where_the_hierarchy_is_mounted(tmp_path: Path) -> None:
    # Docker without a namespace of cgroups: the path is the host's, what is mounted is the container's group. The limit
    # of the pod above it shows only in hierarchical_memory_limit.
    files = {
        "proc/self/cgroup": "9:memory:/kubepods/pod1/c1\n",
        "proc/self/mountinfo": "40 30 0:30 /kubepods/pod1/c1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        CGROUP + "memory/memory.limit_in_bytes": "9223372036854771712",
        CGROUP + "memory/memory.usage_in_bytes": str(GIB),
        CGROUP + "memory/memory.stat": f"hierarchical_memory_limit {3 * GIB}\n",
    }
    assert seen(probe_host_memory(machine(tmp_path, files))) == (3 * GIB, 2 * GIB, "cgroup1", "/kubepods/pod1/c1")


def test_a_group_inside_of_a_container_is_below_what_is_mounted(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "9:memory:/docker/c1/inner\n",
        "proc/self/mountinfo": "40 30 0:30 /docker/c1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        CGROUP + "memory/inner/memory.limit_in_bytes": str(2 * GIB),
        CGROUP + "memory/inner/memory.usage_in_bytes": str(GIB),
    }
    assert seen(probe_host_memory(machine(tmp_path, files))) == (2 * GIB, GIB, "cgroup1", "/docker/c1/inner")


def test_hybrid_machines_have_the_controller_in_version_1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:memory:/x\n0::/x\n",
        "proc/self/mountinfo": "40 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
        "41 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        CGROUP + "memory/x/memory.limit_in_bytes": str(4 * GIB),
        CGROUP + "memory/x/memory.usage_in_bytes": str(GIB),
        CGROUP + "unified/x/cgroup.procs": "1",
    }
    assert seen(probe_host_memory(machine(tmp_path, files))) == (4 * GIB, 3 * GIB, "cgroup1", "/x")


def test_the_hierarchy_is_where_it_is_mounted(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": "31 23 0:27 / /cg\\040here rw - cgroup2 none rw\n",
        "cg here/memory.max": str(2 * GIB),
        "cg here/memory.current": "0",
        CGROUP + "memory.max": str(GIB),
    }
    assert seen(probe_host_memory(machine(tmp_path, files))) == (2 * GIB, 2 * GIB, "cgroup2", "/")


def test_a_container_of_lxcfs_has_its_limit_in_meminfo(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/.lxc\n",
        "proc/self/mountinfo": UNIFIED + "90 80 0:50 /proc/meminfo /proc/meminfo rw - fuse.lxcfs lxcfs rw\n",
        CGROUP + ".lxc/memory.max": "max",
        CGROUP + "memory.max": str(64 * GIB),
        CGROUP + "memory.current": str(GIB),
    }
    found = probe_host_memory(machine(tmp_path, files))
    assert seen(found) == (64 * GIB, 48 * GIB, "meminfo", None)
    assert found.virtualised.value is True


def test_a_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", CGROUP + "memory.max": str(100 * GIB), CGROUP + "memory.current": "0"}
    assert seen(probe_host_memory(machine(tmp_path, files))) == (64 * GIB, 48 * GIB, "meminfo", None)


def test_other_programs_bind_before_the_limit_does(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", CGROUP + "memory.max": str(60 * GIB), CGROUP + "memory.current": "0"}
    found = probe_host_memory(machine(tmp_path, files))
    assert (found.total_bytes.value, found.available_bytes.value) == (60 * GIB, 48 * GIB)
    assert found.available_bytes.source == "/proc/meminfo MemAvailable"


def test_swap_is_told_and_no_part_of_the_memory(tmp_path: Path) -> None:
    swaps = "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition 1024 512 100\n/swap\\040file file 2048 0 -2\n"
    files = {"proc/swaps": swaps, "proc/meminfo": MEMINFO + "SwapTotal: 3072 kB\nSwapFree: 2560 kB\n"}
    found = probe_host_memory(machine(tmp_path, files))
    assert found.available_bytes.value == 48 * GIB
    assert (found.swap_total_bytes.value, found.swap_free_bytes.value) == (3072 << 10, 2560 << 10)
    assert found.zram.value is True
    areas = found.swap_areas.value
    assert areas is not None
    assert [(area.total_bytes, area.used_bytes, area.zram) for area in areas] == [
        (1 << 20, 512 << 10, True),
        (2 << 20, 0, False),
    ]


def test_a_kernel_that_does_not_overcommit_has_one_more_limit(tmp_path: Path) -> None:
    strict = {
        "proc/meminfo": MEMINFO + f"CommitLimit: {20 << 20} kB\nCommitted_AS: {12 << 20} kB\n",
        "proc/sys/vm/overcommit_memory": "2\n",
    }
    found = probe_host_memory(machine(tmp_path, strict))
    assert found.available_bytes.value == 48 * GIB
    assert found.commit_left_bytes.value == 8 * GIB
    # A sixteenth of 64 GiB is left alone.
    assert ram_budget_bytes(found, 0) == 4 * GIB
    (tmp_path / "proc/sys/vm/overcommit_memory").write_text("0\n")
    loose = probe_host_memory(tmp_path)
    assert loose.commit_left_bytes.value is None
    assert loose.commit_left_bytes.known
    assert ram_budget_bytes(loose, GIB) == 45 * GIB


def test_memory_of_an_old_kernel_is_estimated_from_its_page_cache(tmp_path: Path) -> None:
    text = f"MemTotal: {64 << 20} kB\nMemFree: {8 << 20} kB\nCached: {30 << 20} kB\nShmem: {10 << 20} kB\n"
    found = probe_host_memory(machine(tmp_path, {"proc/meminfo": text}))
    assert found.available_bytes.value == 18 * GIB
    assert "no MemAvailable" in found.available_bytes.source


def test_an_unknown_memory_makes_no_budget(tmp_path: Path) -> None:
    found = probe_host_memory(tmp_path)
    assert not found.total_bytes.known
    with pytest.raises(BudgetError, match="--ram"):
        ram_budget_bytes(found, 0)


def test_this_machine_agrees_with_psutil() -> None:
    found = probe_host_memory()
    assert found.system_total_bytes.value == psutil.virtual_memory().total
    assert found.total_bytes.value is not None
    assert found.total_bytes.value <= psutil.virtual_memory().total


def test_groups_are_named_as_the_kernel_names_them(tmp_path: Path) -> None:
    machine(tmp_path, {"proc/self/cgroup": "0::/../../x\n", CGROUP + "x/cpu.max": "max"})
    assert [(g.path, g.version) for g in cgroups(tmp_path, "memory") or ()] == [("/x", 2), ("/", 2)]


def test_mounts_are_unescaped_and_kept_in_order() -> None:
    text = (
        "36 35 98:0 /a\\134b /mnt\\040one rw,noatime master:1 shared:2 - ext3 /dev/ro\\011ot rw,errors=continue\n"
        "37 35 0:5 / /none ro - tmpfs  rw\n"
        "nonsense\n38 35 0:5 / relative rw - tmpfs x rw\n"
    )
    first, second = parse_mounts(text)
    assert (first.device, first.root, first.point, first.fs_type) == ("98:0", "/a\\b", "/mnt one", "ext3")
    assert (first.source, first.super_options) == ("/dev/ro\tot", ("rw", "errors=continue"))
    assert (second.point, second.source, second.options) == ("/none", "", ("ro",))


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 4),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                CGROUP + "a/b/cpu.max": "max 100000",
                CGROUP + "a/cpu.max": "350000 100000",
            },
            3,
        ),
        ({"proc/self/cgroup": "0::/a\n", CGROUP + "a/cpu.max": "50000 100000"}, 1),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/x\n",
                CGROUP + "cpu,cpuacct/x/cpu.cfs_quota_us": "200000",
                CGROUP + "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/x\n",
                CGROUP + "cpu/x/cpu.cfs_quota_us": "-1",
                CGROUP + "cpu/x/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        # Four logical processors: of four cores, or two threads each of two.
        ({"proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-2,7\n"}, 4),
        ({"proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-1,4-5\n"}, 2),
    ],
)
def test_threads_are_the_cores_within_affinity_and_quota(tmp_path: Path, files: dict[str, str], threads: int) -> None:
    machine(tmp_path, files)
    assert default_threads(tmp_path) == threads
    found = probe_host_cpu(tmp_path)
    assert (found.physical_cores.value, found.logical_cores.value) == (4, 8)


def test_without_any_file_one_thread_is_started(tmp_path: Path) -> None:
    assert default_threads(tmp_path) == 1


def test_this_machine_counts_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    found = probe_host_cpu()
    assert (found.physical_cores.value, found.logical_cores.value, found.affinity.value) == (8, 16, 4)
    assert default_threads() <= 2


@pytest.mark.parametrize(
    ("text", "processors"), [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("0-x", set()), ("3-1", set())]
)
def test_list_of_processors(text: str, processors: set[int]) -> None:
    assert parse_cpu_list(text) == processors
