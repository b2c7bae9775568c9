"""The driver: what is started, what is not, what a failure leaves. A script plays CMake and logs how it was called."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import signal
import stat
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from coli.backends.candidates import PACKAGE_LIB
from coli.backends.manifest import file_sha256, manifest_path, read_manifest
from coli.build_matrix.compilers import HostCompiler
from coli.build_matrix.decide import Facts, decide_cell
from coli.build_matrix.driver import Built, Failed, build, installed_library
from coli.build_matrix.finish import AUDITED, evidence_of, finish_library
from coli.build_matrix.lock import locked
from coli.build_matrix.matrix import load_matrix, parse_cell
from coli.build_matrix.plan import Plan, plan_cpu
from coli.build_matrix.recipe import Recipe
from coli.build_matrix.request import Request, Value
from coli.build_matrix.toolkits import Places, probe_toolkit
from coli.build_matrix.tools import Tools
from coli.build_matrix.version import Version
from coli.errors import ColiError

from machines import toolkit  # isort: skip

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run: other file names")

# --build copies a library that was built before; FAIL in the environment prints what a compiler would.
CMAKE = """#!{python}
import json, os, pathlib, shutil, subprocess, sys
with open({log!r}, "a") as log:
    log.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
if "--build" in sys.argv:
    folder = pathlib.Path(sys.argv[sys.argv.index("--build") + 1])
    (folder / "object.o").touch()
    if os.environ.get("FAIL"):
        print("x.cpp:1:10: fatal error: Python.h: No such file or directory")
        print("g++: fatal error: Killed signal terminated program cc1plus")
        sys.exit(1)
    if os.environ.get("SLOW"):  # as CMake does: another process compiles
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        (folder / "started").write_text(str(child.pid))
        child.wait()
    shutil.copy(os.environ["PLAYED"], folder / {library!r})
"""


class Bench:
    """A build of cpu-portable whose CMake is played."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log.jsonl"
        backends = folder / "sources with a space ü"
        for name in ("abi", "cpu"):
            (backends / name).mkdir(parents=True)
            (backends / name / "x.h").write_text(name)
        self.source = backends / "cpu" / "x.h"
        compiler = HostCompiler(Path("/usr/bin/g++"), ("g++",), "gcc", Version(12, 2), True)
        self.plan = plan_cpu(parse_cell("cpu-portable"), compiler, backends)
        cmake = folder / "cmake"
        cmake.write_text(CMAKE.format(python=sys.executable, log=str(self.log), library=self.plan.library))
        cmake.chmod(cmake.stat().st_mode | stat.S_IXUSR)
        self.tools = Tools(cmake, Path("/bin/true"), Path(sys.executable), None)
        self.played = PACKAGE_LIB / self.plan.library
        self.said: list[str] = []

    @property
    def build_folder(self) -> Path:
        """Where the plan's objects lie; a folder of the key's first characters."""
        return self.folder / "builds" / "cpu-portable" / self.plan.key[:16]

    def run(self, plan: Plan | None = None, **environment: str) -> Built | Failed:
        """Build, and forget the log of the time before."""
        self.log.unlink(missing_ok=True)
        return build(
            plan or self.plan,
            self.tools,
            builds=self.folder / "builds",
            data_folder=self.folder / "data",
            environment={"PATH": os.environ["PATH"], "PLAYED": str(self.played), **environment},
            jobs=2,
            tell=self.said.append,
            finish=finish_library,
        )

    def calls(self) -> list[tuple[list[str], dict[str, str]]]:
        """Return the argument lists and environments of the played CMake."""
        if not self.log.exists():
            return []
        return [tuple(json.loads(line)) for line in self.log.read_text().splitlines()]  # type: ignore[misc]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_built_library_is_installed_with_its_manifest_where_the_loader_looks(bench: Bench) -> None:
    built = bench.run()
    assert isinstance(built, Built) and built.state == "built"
    assert built.library == bench.folder / "data" / "backends" / "cpu-portable" / "libcoli_cpu_portable.so"
    assert built.sha256 == file_sha256(built.library) == file_sha256(bench.played)
    manifest = read_manifest(built.library)
    assert (manifest.name, manifest.kind, manifest.sha256) == ("cpu-portable", "cpu", built.sha256)
    assert (
        manifest.evidence.startswith("ran on ")
        and evidence_of(bench.plan.cell, bench.folder / "data") == manifest.evidence
    )
    assert sorted(p.name for p in built.library.parent.iterdir()) == [built.library.name, built.library.name + ".json"]
    assert bench.said == ["configure", "compile", "audit"]


def test_paths_with_spaces_are_one_argument(bench: Bench) -> None:
    bench.run()
    configure, compile_ = (arguments for arguments, _ in bench.calls())
    assert str(bench.source.parent) in configure
    assert compile_[:2] == ["--build", str(bench.build_folder)] and compile_[-2:] == ["-j", "2"]


def test_nothing_is_started_when_nothing_changed(bench: Bench) -> None:
    bench.run()
    again = bench.run()
    assert isinstance(again, Built) and again.state == "unchanged"
    assert bench.calls() == []


@pytest.mark.parametrize("what", ["source", "installed library", "installed library gone", "stamp"])
def test_what_changed_is_built_again(bench: Bench, what: str) -> None:
    bench.run()
    kept = bench.build_folder / "object.o"
    if what == "source":
        bench.source.write_text("other")
    elif what == "installed library":
        installed_library(bench.plan, bench.folder / "data").write_bytes(b"other")
    elif what == "installed library gone":
        installed_library(bench.plan, bench.folder / "data").unlink()
    else:
        (kept.parent / "stamp.json").write_text("{")
    again = bench.run()
    assert isinstance(again, Built) and again.state == "built" and len(bench.calls()) == 2
    assert kept.exists(), "the same identity keeps its objects: Ninja knows what is stale"


def other_compiler(plan: Plan, version: str) -> Plan:
    return replace(plan, identity={**plan.identity, "host_compiler": ["/usr/bin/g++", "gcc", version]})


def test_another_identity_shares_no_object_and_the_way_back_finds_them_again(bench: Bench) -> None:
    bench.run()
    old = bench.build_folder / "old.o"
    old.touch()
    again = bench.run(other_compiler(bench.plan, "13.0"))
    assert isinstance(again, Built) and again.state == "built" and again.log.parent != old.parent
    assert not list(again.log.parent.glob("old.o")) and old.exists()
    back = bench.run()
    assert isinstance(back, Built) and back.state == "unchanged" and back.log.parent == old.parent


def test_folders_that_were_not_used_for_long_are_removed(bench: Bench) -> None:
    for number in range(6):
        bench.run(other_compiler(bench.plan, f"{number}.0"))
        bench.run()
    folders = {path for path in (bench.folder / "builds" / "cpu-portable").iterdir() if path.is_dir()}
    assert bench.build_folder in folders and len(folders) == 4


def test_a_build_that_was_killed_starts_anew(bench: Bench) -> None:
    bench.run()
    (bench.build_folder / "stamp.json").unlink()
    (bench.build_folder / "compiled.json").unlink()  # there is none while compilers run
    old = bench.build_folder / "old.o"
    old.touch()
    assert isinstance(bench.run(), Built) and not old.exists()


def test_a_compiler_cache_is_passed_and_unset_when_it_is_gone(bench: Bench) -> None:
    bench.run()
    assert "-DCMAKE_CXX_COMPILER_LAUNCHER=" in bench.calls()[0][0]
    bench.source.write_text("other")
    bench.tools = replace(bench.tools, ccache=Path("/opt/my tools/ccache"))
    bench.run(CCACHE_COMPILERCHECK="mtime")
    arguments, environment = bench.calls()[0]
    assert "-DCMAKE_CXX_COMPILER_LAUNCHER=/opt/my tools/ccache" in arguments
    assert not [argument for argument in arguments if "CUDA" in argument]
    assert environment["CCACHE_BASEDIR"] == str(bench.source.parents[1])
    assert environment["CCACHE_COMPILERCHECK"] == "mtime", "what the user says counts"


def test_flags_of_the_surroundings_do_not_reach_the_compiler(bench: Bench) -> None:
    bench.run(CXXFLAGS="-ffast-math", LDFLAGS="-lx", CPATH="/other", CMAKE_TOOLCHAIN_FILE="/x.cmake")
    for _, environment in bench.calls():
        assert not {"CXXFLAGS", "LDFLAGS", "CPATH", "CMAKE_TOOLCHAIN_FILE"} & set(environment)
        assert environment["LC_ALL"] == "C"


def test_a_failure_keeps_the_log_and_what_was_installed_before(bench: Bench) -> None:
    first = bench.run()
    assert isinstance(first, Built)
    bench.source.write_text("broken")
    failed = bench.run(FAIL="1")
    assert isinstance(failed, Failed) and failed.step == "compile"
    assert failed.cause.id != "unknown" and failed.tail[-1] == "exit code 1"
    assert "Killed" in failed.log.read_text()
    assert file_sha256(first.library) == first.sha256
    assert isinstance(bench.run(), Built), "a failure leaves no stamp"


def test_a_library_that_is_not_ours_is_not_installed(bench: Bench) -> None:
    bench.played = Path(sys.executable).resolve()
    failed = bench.run()
    assert isinstance(failed, Failed) and (failed.step, failed.cause.id) == ("audit", "build.audit")
    assert "it exports " in failed.tail[0]
    assert not installed_library(bench.plan, bench.folder / "data").exists()
    assert list((bench.folder / "data" / "backends" / "cpu-portable").iterdir()) == []


def test_evidence_is_bound_to_the_bytes(bench: Bench) -> None:
    built = bench.run()
    assert isinstance(built, Built)
    assert evidence_of(parse_cell("cpu-x86-64-v3"), bench.folder / "data") == "not built"
    document = json.loads(manifest_path(built.library).read_text())
    assert document["cell"] == "cpu-portable" and document["evidence"] != AUDITED
    with built.library.open("ab") as file:
        file.write(b"\0")
    assert evidence_of(bench.plan.cell, bench.folder / "data").startswith("unverified")


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _started(bench: Bench) -> int:
    """Return the process that a slow CMake has started, once it has."""
    started = bench.build_folder / "started"
    end = time.monotonic() + 30
    while not (started.is_file() and started.read_text()):
        assert time.monotonic() < end, "CMake was not started"
        time.sleep(0.01)
    return int(started.read_text())


def test_an_interrupted_build_ends_its_compilers_and_starts_anew(bench: Bench) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    seen: list[int] = []

    def watch() -> None:
        seen.append(_started(bench))
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.run(SLOW="1")
    finally:
        watcher.join()
        signal.signal(signal.SIGUSR1, before)
    assert not _alive(seen[0]), "what CMake started goes with it"
    assert not (bench.build_folder / "compiled.json").exists(), "nobody knows what was compiled"
    assert not installed_library(bench.plan, bench.folder / "data").exists()
    built = bench.run()
    assert isinstance(built, Built) and built.state == "built"
    assert not (bench.build_folder / "started").exists(), "the folder was made anew"


def test_two_builds_of_one_cell_do_not_meet(bench: Bench) -> None:
    bench.build_folder.parent.mkdir(parents=True)
    second = Bench.__new__(Bench)
    second.__dict__ = {**bench.__dict__, "said": []}
    outcomes: list[Built | Failed] = []
    with locked(bench.build_folder.parent / "lock"):
        thread = threading.Thread(target=lambda: outcomes.append(second.run()))
        thread.start()
        end = time.monotonic() + 30
        while not second.said:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert second.said[0].startswith("waiting for another build") and second.calls() == []
    thread.join()
    assert [outcome.state for outcome in outcomes if isinstance(outcome, Built)] == ["built"]


def test_damaged_records_only_cost_the_build(bench: Bench) -> None:
    bench.run()
    for text in ("[]", "[" * 100_000):
        bench.source.write_text(bench.source.read_text() + "another")
        for name in ("stamp.json", "compiled.json"):
            (bench.build_folder / name).write_text(text)
        built = bench.run()
        assert isinstance(built, Built) and built.state == "built"


def test_what_a_killed_install_left_is_removed(bench: Bench) -> None:
    left = installed_library(bench.plan, bench.folder / "data").parent / ".new-abc"
    left.mkdir(parents=True)
    (left / "half").touch()
    built = bench.run()
    assert isinstance(built, Built)
    assert sorted(p.name for p in left.parent.iterdir()) == [built.library.name, built.library.name + ".json"]


def test_nobody_else_may_write_what_was_installed(bench: Bench) -> None:
    before = os.umask(0)
    try:
        built = bench.run()
    finally:
        os.umask(before)
    assert isinstance(built, Built)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (built.library, manifest_path(built.library))] == [0o755, 0o644]


def test_the_full_disk_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(ColiError) as caught:
        bench.run()
    assert caught.value.code == "build.io" and caught.value.subject.startswith(str(bench.folder / "data"))


def test_a_clock_that_was_set_back_starts_the_folder_anew(bench: Bench) -> None:
    bench.run()
    left = bench.build_folder / "left.o"
    for path in (left, bench.build_folder / "compiled.json"):
        path.touch() if path == left else None
        os.utime(path, (time.time() + 1e7, time.time() + 1e7))
    bench.source.write_text("another")
    os.utime(bench.source, (time.time() + 2e7, time.time() + 2e7))
    assert isinstance(bench.run(), Built) and not left.exists()


@pytest.mark.parametrize(("version", "state"), [("3.31.7", "failed"), ("3.31.8", "built"), ("4.4.0", "built")])
def test_a_cmake_that_does_not_know_the_targets_is_named(bench: Bench, version: str, state: str) -> None:
    root = toolkit(bench.folder / "cuda", "13.0.88", gcc=15)
    one = probe_toolkit(root, "CUDA_HOME", Places({"PATH": os.environ["PATH"]}, "x86_64"))
    request = Request(cuda_arch=Value("120f", "environment"))
    decided = decide_cell(request, Facts((one,), (bench.plan.compiler,)), load_matrix(), "generic")
    assert isinstance(decided, Recipe)
    script = f"#!/bin/sh\necho 'cmake version {version}'\nexec {shlex.quote(str(bench.tools.cmake))} \"$@\"\n"
    cmake = bench.folder / "versioned"
    cmake.write_text(script)
    cmake.chmod(0o755)
    bench.tools = replace(bench.tools, cmake=cmake)
    plan = replace(bench.plan, recipe=decided)
    outcome = bench.run(plan)
    assert isinstance(outcome, Failed)
    if state == "failed":
        assert (outcome.step, outcome.cause.id) == ("configure", "cmake-too-old") and "3.31.7" in outcome.tail[-1]
    else:
        assert outcome.step == "audit"  # what the played CMake hands out has no device code
