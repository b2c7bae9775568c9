"""Random and truncated trees of /proc and /sys: every probe answers, none raises, none is slow."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coli.build_matrix.toolkits import Places
from coli.doctor.facts.cpu import probe_cpu
from coli.doctor.facts.memory import probe_memory
from coli.doctor.facts.storage import probe_storage
from coli.doctor.facts.system import probe_system
from coli.engine.host_memory import probe_host_memory
from coli.engine.mounts import parse_mounts

# What each file really looks like; the fuzz cuts, repeats and mixes them.
REAL = {
    "proc/meminfo": "MemTotal: 16384 kB\nMemFree: 100 kB\nMemAvailable: 8192 kB\nSwapTotal: 5 kB\nCommitLimit: 9 kB\n",
    "proc/self/cgroup": "9:memory:/a/b\n3:cpu,cpuacct:/a\n0::/a/../../b\n",
    "proc/self/mountinfo": "31 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    "60 1 252:0 / /m\\040x rw - ext4 /dev/dm-0 rw\n"
    "61 1 0:51 / / rw - overlay overlay rw,upperdir=/m x/u\n62 1 7:0 / /l rw - xfs /dev/loop0 rw\n"
    "63 1 0:41 /@ /b rw - btrfs /dev/sda1 rw\n",
    "proc/swaps": "Filename Type Size Used Priority\n/dev/zram0 partition 1024 512 100\n",
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: X\ncore id\t: 0\nflags\t: fpu avx\n\nprocessor\t: 1\ncore id\t: 0\n",
    "proc/self/status": "Cpus_allowed_list:\t0-3,8\n",
    "proc/version": "Linux version 6.8.0 (x)\n",
    "proc/sys/vm/overcommit_memory": "2\n",
    "etc/os-release": "PRETTY_NAME=\"X Y\"\nNAME='X'\n",
    "sys/fs/cgroup/a/memory.max": "1048576\n",
    "sys/fs/cgroup/memory.max": "max\n",
    "sys/fs/cgroup/memory.current": "4096\n",
    "sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 4096\n",
    "sys/fs/cgroup/cpu.max": "100000 100000\n",
    "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/class/block/dm-0/slaves/sda1/x": "",
    "sys/class/block/dm-0/dev": "252:0\n",
    "sys/class/block/sda/queue/rotational": "1\n",
    "sys/class/block/sda/sda1/partition": "1\n",
    "sys/class/block/loop0/loop/backing_file": "/l/image\n",
}
MIXED = b"".join(text.encode() for text in REAL.values())
PIECES = st.sampled_from(
    [
        b"\0",
        b"\n",
        b" ",
        b"-",
        b":",
        b",",
        b"0",
        b"-1",
        b"9" * 40,
        b"max",
        b"\\040",
        b"\\777",
        b"/",
        b"../",
        b"\xff\xfe",
        b"x" * 5000,
    ]
)


@st.composite
def contents(draw: st.DrawFn, real: bytes) -> bytes:
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return real[: draw(st.integers(0, len(real)))]
    if kind == 1:
        return draw(st.binary(max_size=300))
    if kind == 2:
        start = draw(st.integers(0, len(MIXED)))
        return MIXED[start : start + 400]
    place = draw(st.integers(0, len(real)))
    return real[:place] + b"".join(draw(st.lists(PIECES, max_size=4))) + real[place:]


@st.composite
def trees(draw: st.DrawFn) -> dict[str, bytes | str | None]:
    """Draw a tree: file -> bytes, target of a link, or None for a FIFO."""
    tree: dict[str, bytes | str | None] = {}
    for name, text in REAL.items():
        what = draw(st.integers(0, 9))
        if what < 5:
            tree[name] = text.encode()
        elif what < 8:
            tree[name] = draw(contents(text.encode()))
        elif what == 8:
            tree[name] = draw(st.sampled_from([".", "..", "nowhere", "/", "a" * 200, "../" * 60 + "x"]))
        elif draw(st.booleans()):
            tree[name] = None
    return tree


def build(root: Path, tree: dict[str, bytes | str | None]) -> None:
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            os.mkfifo(path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.symlink_to(content)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees())
def test_no_tree_makes_a_probe_raise(tree: dict[str, bytes | str | None]) -> None:
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        build(root, tree)
        started = time.perf_counter()
        memory = probe_memory(root)
        processor = probe_cpu(root, "x86_64")
        probe_system(Places({"PATH": "/usr/bin"}, "x86_64", root), "linux")
        for path in ("/", "/m x/y", "/l/image", "/b", "/sys/class/block", "relative", "/" + "n" * 300 + "/\0"):
            assert probe_storage("model", Path(path), root)
        spent = time.perf_counter() - started
    finally:
        shutil.rmtree(root)
    host = memory.host
    for fact in (host.total_bytes, host.available_bytes, host.commit_left_bytes, memory.budget_bytes):
        assert fact.value is None or 0 <= fact.value < 1 << 64
        assert fact.known or fact.value is None
    assert (
        host.total_bytes.value is None
        or host.system_total_bytes.value is None
        or (host.total_bytes.value <= host.system_total_bytes.value)
    )
    assert processor.threads.value is None or 1 <= processor.threads.value <= 1 << 16
    assert spent < 2  # the deadline of a probe, for all of them


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=400) | st.text("0123456789 :/-\\\n,abc", max_size=400))
def test_any_text_is_a_table_of_mounts(text: str) -> None:
    for mount in parse_mounts(text):
        assert mount.point.startswith("/")


def test_huge_files_cost_what_is_read_of_them(tmp_path: Path) -> None:
    for name in (
        "proc/meminfo",
        "proc/self/cgroup",
        "proc/self/mountinfo",
        "proc/swaps",
        "proc/cpuinfo",
        "etc/os-release",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(1 << 40)
    started = time.perf_counter()
    assert not probe_host_memory(tmp_path).total_bytes.known
    probe_cpu(tmp_path, "x86_64")
    probe_system(Places({}, "x86_64", tmp_path), "linux")
    assert time.perf_counter() - started < 10
