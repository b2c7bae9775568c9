"""Each refusal of the loader, proven with a stub library that has exactly that fault."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stubs import floats, hand_canary, write_manifest

from coli.backends.abi import HEADER, SLOTS
from coli.backends.candidates import Search
from coli.backends.child import Ended
from coli.backends.cpu_level import cpu_level
from coli.backends.handshake import decide_slots
from coli.backends.loader import Machine, examine, explain_selection, load, open_verified, render_banner, survey
from coli.backends.probe import Answer, decide_answer, probe_library
from coli.backends.trace import GATES, Candidate, CandidateTrace
from coli.backends.vectors import Case, Matrix, write_vectors
from coli.errors import BackendRefused, ColiError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run: the stubs are ELF libraries")

Build = Callable[..., Path]


def look(path: Path, canary: Path, deadline_s: float = 30.0) -> CandidateTrace:
    """Examine one file without a cache."""
    return examine(Candidate(path, "stub", "test"), Machine(cpu_level(), Search()), Search(), canary, deadline_s)


def verdicts(trace: CandidateTrace) -> dict[str, str]:
    return {finding.gate: finding.verdict for finding in trace.findings}


def refusal(trace: CandidateTrace) -> tuple[str, str]:
    """Return code and evidence of the only refusal."""
    assert tuple(finding.gate for finding in trace.findings) == GATES
    found = [finding for finding in trace.findings if finding.verdict == "refused"]
    assert len(found) == 1, found
    return found[0].code, found[0].evidence


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    """Return copy(library): a private copy with a sound manifest."""

    def make(library: Path) -> Path:
        target = tmp_path / library.name
        shutil.copyfile(library, target)
        target.chmod(0o644)
        write_manifest(target)
        return target

    return make


def test_sound_library_passes_every_gate(build_stub: Build, stub_canary: Path) -> None:
    trace = look(build_stub(), stub_canary)
    assert verdicts(trace) == dict.fromkeys(GATES, "ok")
    assert trace.accepted and trace.refusal is None
    by_gate = {finding.gate: finding.evidence for finding in trace.findings}
    assert by_gate["canary"] == "2 calls, every bit as recorded"
    assert "libc.so.6" in by_gate["dependencies"]


# -- file


def test_missing_file_and_folder(tmp_path: Path, stub_canary: Path) -> None:
    trace = look(tmp_path / "libcoli_cpu_none.so", stub_canary)
    assert refusal(trace)[0] == "file.missing"
    assert set(verdicts(trace).values()) == {"refused", "not run"}
    assert refusal(look(tmp_path, stub_canary))[0] == "file.not-regular"


def test_file_that_others_may_write(build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path) -> None:
    path = copy(build_stub())
    path.chmod(0o646)
    trace = look(path, stub_canary)
    assert refusal(trace) == ("file.writable", f"the file {path} may be written by anyone (mode 0646)")
    # The gates that only look still ran, and the library was not opened.
    assert [verdicts(trace)[gate] for gate in ("container", "manifest", "cpu", "open", "canary")] == [
        "ok",
        "ok",
        "ok",
        "not run",
        "not run",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="not run: giving a file to another group needs root")
def test_file_that_a_group_may_write(build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path) -> None:
    path = copy(build_stub())
    path.chmod(0o664)
    os.chown(path, -1, 12345)
    assert refusal(look(path, stub_canary)) == (
        "file.writable",
        f"the file {path} may be written by group 12345 (mode 0664)",
    )


def test_folder_that_anyone_may_write(build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path) -> None:
    path = copy(build_stub())
    path.parent.chmod(0o777)
    assert refusal(look(path, stub_canary))[0] == "file.folder-writable"
    path.parent.chmod(0o1777)  # the sticky bit: others cannot replace what is mine
    assert look(path, stub_canary).accepted


def test_link_into_a_folder_that_anyone_may_write(
    build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path, tmp_path: Path
) -> None:
    path = copy(build_stub())
    sound, open_to_all = tmp_path / "sound", tmp_path / "open"
    for folder in (sound, open_to_all):
        folder.mkdir()
    for name in (path.name, path.name + ".json"):
        (tmp_path / name).rename(open_to_all / name)
        (sound / name).symlink_to(open_to_all / name)
    assert look(sound / path.name, stub_canary).accepted
    open_to_all.chmod(0o777)
    assert refusal(look(sound / path.name, stub_canary))[0] == "file.folder-writable"


def test_manifest_that_is_a_pipe_is_not_waited_for(
    build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path
) -> None:
    path = copy(build_stub())
    path.with_name(path.name + ".json").unlink()
    os.mkfifo(path.with_name(path.name + ".json"))
    code, evidence = refusal(look(path, stub_canary))
    assert (code, evidence) == ("manifest.unreadable", f"{path.name}.json is not a regular file")


def test_library_among_very_many_files_is_found(
    build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path, tmp_path: Path
) -> None:
    copy(build_stub("libcoli_cpu_portable.so"))
    for number in range(10_500):
        (tmp_path / f"a{number}").touch()
    trace = survey(Search(path=(tmp_path,), package_folder=tmp_path / "none"), canary=stub_canary)
    assert [row.accepted for row in trace.candidates] == [True]


def test_library_that_was_replaced_after_it_was_examined(
    build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path
) -> None:
    path = copy(build_stub())
    sha256 = look(path, stub_canary).sha256
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert open_verified(path, sha256)
    with path.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(BackendRefused) as caught:
        open_verified(path, sha256)
    assert caught.value.code == "backend.open" and caught.value.observed == "it was replaced meanwhile"


@pytest.mark.parametrize(
    "steps", [{"open": {}}, {"open": {"error": None, "query": 1}, "table": {"table": {"size": "x"}}}]
)
def test_answer_that_a_library_has_written_over(
    build_stub: Build,
    copy: Callable[[Path], Path],
    stub_canary: Path,
    steps: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = copy(build_stub())
    monkeypatch.setattr("coli.backends.loader.probe_library", lambda *_: Answer(steps, "exit", "exit code 0"))
    assert refusal(look(path, stub_canary))[0] == "open.exit"


def test_child_that_prints_what_no_parser_can_read() -> None:
    ended = Ended("exit", 0, b'{"step": "start"}\n' + b"[" * 100_000 + b"\n")
    assert decide_answer(ended, 1.0).steps == {"start": {"step": "start"}}


# -- container and machine


def test_not_a_library(tmp_path: Path, stub_canary: Path) -> None:
    path = tmp_path / "libcoli_cpu_text.so"
    path.write_text("version https://git-lfs.github.com/spec/v1\n", encoding="utf-8")
    write_manifest(path)
    code, evidence = refusal(look(path, stub_canary))
    assert code == "container.not-a-library"
    assert "76 65 72 73" in evidence


def test_truncated_library(build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path) -> None:
    path = copy(build_stub())
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 100)
    write_manifest(path)
    assert refusal(look(path, stub_canary))[0] == "container.damaged"
    with path.open("r+b") as file:
        file.truncate(size // 3)
    findings = {finding.gate: finding.code for finding in look(path, stub_canary).findings}
    assert (findings["container"], findings["manifest"]) == ("container.damaged", "manifest.hash")  # both are shown


@pytest.mark.parametrize("machine", [183, 243, 9999])
def test_wrong_machine(build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path, machine: int) -> None:
    if cpu_level().machine != "x86_64":
        pytest.skip("not run: written for an x86-64 host")
    path = copy(build_stub())
    with path.open("r+b") as file:
        file.seek(18)
        file.write(struct.pack("<H", machine))
    write_manifest(path)
    code, evidence = refusal(look(path, stub_canary))
    name = {183: "aarch64", 243: "riscv64"}.get(machine, "ELF machine 9999")
    assert (code, evidence) == ("container.machine", f"ELF, {name}, 64-bit")


def test_library_of_a_real_other_machine(tmp_path: Path, stub_canary: Path) -> None:
    cross = shutil.which("aarch64-linux-gnu-gcc")
    if cross is None or cpu_level().machine == "aarch64":
        pytest.skip("not run: no compiler for another machine")
    source, path = tmp_path / "a.c", tmp_path / "libcoli_cpu_neon.so"
    source.write_text("int a(void) { return 1; }\n", encoding="utf-8")
    subprocess.run([cross, "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    write_manifest(path, level="neon")
    path.chmod(0o755)
    trace = look(path, stub_canary)
    codes = [finding.code for finding in trace.findings if finding.verdict == "refused"]
    assert codes == ["container.machine", "cpu.level"]


# -- dependencies


def test_missing_dependency_is_named(build_stub: Build, compiler: str, tmp_path: Path, stub_canary: Path) -> None:
    source = tmp_path / "needed.c"
    source.write_text("int stub_dependency(void) { return 1; }\n", encoding="utf-8")
    needed = tmp_path / "libcoli_test_needed.so.7"
    command = [compiler, "-shared", "-fPIC", str(source), "-o", str(needed)]
    subprocess.run([*command, f"-Wl,-soname,{needed.name}"], check=True)
    path = build_stub("libcoli_cpu_needs.so", "STUB_NEEDS", link=(str(needed),))
    code, evidence = refusal(look(path, stub_canary))
    assert (code, evidence) == (
        "dependencies.missing",
        "missing: libcoli_test_needed.so.7 (needed by libcoli_cpu_needs.so)",
    )
    near = build_stub("libcoli_cpu_needs.so", "STUB_NEEDS", link=(str(needed), "-Wl,-rpath,$ORIGIN"))
    shutil.copy(needed, near.parent)
    assert look(near, stub_canary).accepted


def test_a_missing_cuda_runtime_has_two_ways_out(
    build_stub: Build, compiler: str, tmp_path: Path, stub_canary: Path
) -> None:
    source, runtime = tmp_path / "runtime.c", tmp_path / "libcudart.so.12"
    source.write_text("int stub_dependency(void) { return 1; }\n", encoding="utf-8")
    subprocess.run(
        [compiler, "-shared", "-fPIC", str(source), "-o", str(runtime), f"-Wl,-soname,{runtime.name}"], check=True
    )
    trace = look(build_stub("libcoli_cpu_runtime.so", "STUB_NEEDS", link=(str(runtime),)), stub_canary)
    finding = trace.refusal
    assert finding is not None and finding.evidence == "missing: libcudart.so.12 (needed by libcoli_cpu_runtime.so)"
    assert finding.fix == (
        "put the folder that has libcudart.so.12 (the CUDA 12 toolkit's, or its pip wheel's) on LD_LIBRARY_PATH, or "
        "build with a toolkit that has libcudart_static.a, which the library then holds"
    )


# -- manifest


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sha256": "0" * 64}, "manifest.hash"),
        ({"file": "libcoli_cpu_other.so"}, "manifest.name"),
        ({"schema": "coli.backend/2"}, "manifest.schema"),
        ({"level": 4}, "manifest.field"),
        ({"kind": "rocm"}, "manifest.kind"),
        ({"kind": "cuda"}, "manifest.field"),
    ],
)
def test_manifest(
    build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path, changes: dict[str, Any], code: str
) -> None:
    path = copy(build_stub())
    write_manifest(path, **changes)
    assert refusal(look(path, stub_canary))[0] == code


def test_manifest_missing_or_broken(build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path) -> None:
    path = copy(build_stub())
    manifest = path.with_name(path.name + ".json")
    for content in (b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b" " * (2 << 20)):
        manifest.write_bytes(content)
        assert refusal(look(path, stub_canary))[0] in ("manifest.unreadable", "manifest.schema")
    manifest.unlink()
    assert refusal(look(path, stub_canary))[0] == "manifest.missing"


def test_hash_differs_when_one_byte_does(build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path) -> None:
    path = copy(build_stub())
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    trace = look(path, stub_canary)
    assert refusal(trace)[0] == "manifest.hash"
    finding = trace.refusal
    assert finding is not None and finding.expected == before
    assert verdicts(trace)["open"] == "not run"


def test_level_of_another_machine(build_stub: Build, copy: Callable[[Path], Path], stub_canary: Path) -> None:
    path = copy(build_stub())
    other = "neon" if cpu_level().machine == "x86_64" else "x86_64_v3"
    write_manifest(path, level=other)
    assert refusal(look(path, stub_canary))[0] == "cpu.level"
    write_manifest(path, level="x86_64_v9")
    assert refusal(look(path, stub_canary))[0] == "cpu.unknown-level"


# -- open and handshake


@pytest.mark.parametrize(
    ("switches", "code", "evidence"),
    [
        (("STUB_NO_QUERY",), "handshake.no-query", "no symbol coli_backend_query"),
        (("STUB_NULL_TABLE",), "handshake.null-table", "coli_backend_query returned null"),
        (("STUB_MAJOR=2",), "handshake.abi-major", "ABI 2.1"),
        (("STUB_PLATFORM=0xC0110281u",), "handshake.platform", "built for Windows, 64-bit, little-endian (0xc0110281)"),
        (("STUB_MATRIX_SIZE=48",), "handshake.sizes", "matrix_size 48 (ours 40)"),
        (("STUB_SHORT_TABLE",), "handshake.table-size", "the table has 12 bytes"),
        (("STUB_CRASH_LOAD",), "open.crash", "SIGABRT while it is opened"),
        (("STUB_CRASH_QUERY",), "handshake.crash", "SIGSEGV while it runs coli_backend_query"),
        (("STUB_ABSENT",), "slots.absent", "absent: weight_bind, embed, router"),
        (("STUB_SWAPPED",), "slots.signature", "other arguments: rope"),
        (("STUB_RENAMED",), "slots.order", "other slots: moe (found 'mixture')"),
        (("STUB_OLDER_MINOR",), "slots.absent", "absent: add"),
        (("STUB_CRASH_END",), "canary.crash", "SIGABRT while it ends after the canary"),
    ],
)
def test_faults_of_the_handshake(
    build_stub: Build, stub_canary: Path, switches: tuple[str, ...], code: str, evidence: str
) -> None:
    trace = look(build_stub("libcoli_cpu_portable.so", *switches), stub_canary)
    assert refusal(trace) == (code, evidence)
    after = GATES[GATES.index(code.split(".")[0]) + 1 :]
    assert all(verdicts(trace)[gate] == "not run" for gate in after)


def test_swap_and_absence_are_shown_together(build_stub: Build, stub_canary: Path) -> None:
    trace = look(build_stub("libcoli_cpu_portable.so", "STUB_SWAPPED", "STUB_ABSENT"), stub_canary)
    assert refusal(trace) == ("slots.signature", "other arguments: rope; absent: weight_bind, embed, router")


def test_no_stage_of_a_refused_table_is_called(build_stub: Build, stub_canary: Path) -> None:
    for switch, last in (("STUB_SWAPPED", "slots"), ("STUB_MAJOR=2", "table"), ("STUB_NO_QUERY", "open")):
        answer = probe_library(build_stub("libcoli_cpu_portable.so", switch), stub_canary)
        assert (answer.last, answer.end) == (last, "exit")


def test_hang_is_ended_by_the_deadline(build_stub: Build, stub_canary: Path) -> None:
    trace = look(build_stub("libcoli_cpu_portable.so", "STUB_HANG_QUERY"), stub_canary, deadline_s=1.0)
    assert refusal(trace) == ("handshake.hang", "no answer within 1 s: it hangs while it runs coli_backend_query")


def test_older_minor_lacks_what_the_newer_has() -> None:
    rows = [[slot.name, slot.signature, True] for slot in SLOTS]
    assert decide_slots(rows).verdict == "ok"
    finding = decide_slots(rows[:-7], abi=(1, 0))
    assert (finding.code, finding.evidence) == ("slots.older-minor", "absent: moe, add")
    assert finding.expected == "ABI 1.1 or later; the library is of ABI 1.0"
    assert decide_slots(rows[:-2], abi=(1, 0)).verdict == "ok"  # what 1.1 added is optional
    more = [*rows, ["invented_later", 7, True]]
    assert decide_slots(more, abi=(1, 2)).verdict == "ok"  # a newer minor has more at its end


# -- canary


def test_wrong_bits(build_stub: Build, stub_canary: Path) -> None:
    code, evidence = refusal(look(build_stub("libcoli_cpu_portable.so", "STUB_WRONG_BITS"), stub_canary))
    assert code == "canary.bits"
    # 11 as float32 is 00 00 30 41, 11.25 is 00 00 34 41.
    assert evidence.startswith(
        "add: y[0, 0] is 00003441, expected 00003041; add: y[0, 0] is 0000803f, expected 0000403f"
    )


def test_declined_stage_is_no_canary_pass(build_stub: Build, stub_canary: Path) -> None:
    code, evidence = refusal(look(build_stub("libcoli_cpu_portable.so", "STUB_NO_STAGE"), stub_canary))
    assert code == "canary.bits"
    assert evidence.startswith("add declined: stub: add is not served (code 2)")


def test_input_that_is_written_is_noticed(build_stub: Build, tmp_path: Path) -> None:
    canary = tmp_path / "canary.bin"
    zero = Matrix(0, 1, 1, floats(1))
    canary.write_bytes(write_vectors([Case("add", (zero, Matrix(0, 1, 1, floats(2))))]))
    assert refusal(look(build_stub(), canary)) == ("canary.bits", "add wrote into its input y[0, 0]")


def test_broken_canary_file(build_stub: Build, tmp_path: Path) -> None:
    canary = tmp_path / "canary.bin"
    assert refusal(look(build_stub(), canary))[0] == "canary.unreadable"
    canary.write_bytes(hand_canary()[:-1])
    assert refusal(look(build_stub(), canary))[0] == "canary.unreadable"


# -- choice


def place(folder: Path, library: Path, name: str, level: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    target = folder / name
    shutil.copyfile(library, target)
    target.chmod(0o644)
    write_manifest(target, level=level)
    return target


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache that the tests of the choice share: they are not about the child process."""
    return tmp_path_factory.mktemp("answers")


@pytest.fixture
def houses(build_stub: Build, tmp_path: Path, answers: Path) -> Search:
    """Two folders: the package with portable and a broken best level, COLI_BACKEND_PATH with portable."""
    best = cpu_level().best.replace("-", "_")
    package, extra = tmp_path / "package", tmp_path / "extra"
    place(package, build_stub(), "libcoli_cpu_portable.so", "portable")
    if best != "portable":
        place(package, build_stub("libcoli_cpu_portable.so", "STUB_SWAPPED"), f"libcoli_cpu_{best}.so", best)
    place(extra, build_stub(), "libcoli_cpu_portable.so", "portable")
    return Search(path=(extra,), data_folder=tmp_path / "data", package_folder=package, cache_folder=answers)


def test_automatic_choice_passes_over_refused(houses: Search, stub_canary: Path) -> None:
    loaded = load(search=houses, canary=stub_canary)
    assert (loaded.name, loaded.path) == ("cpu-portable", houses.path[0] / "libcoli_cpu_portable.so")
    best = cpu_level().best
    if best != "portable":
        assert loaded.trace.why == f"{best} is this CPU's level; refused: cpu-{best}"
    assert render_banner(loaded).startswith("[coli] backend=libcoli_cpu_portable.so (cpu-portable) device=cpu why=")
    states = [(place.origin, place.state, place.libraries) for place in loaded.trace.places]
    assert states[:2] == [("COLI_BACKEND_PATH", "searched", 1), ("user data", "absent", 0)]


def test_cell_folders_of_the_user_data(houses: Search, build_stub: Build, stub_canary: Path) -> None:
    assert houses.data_folder is not None
    wanted = place(houses.data_folder / "cell-b", build_stub(), "libcoli_cpu_mine.so", "portable")
    loaded = load("cpu-mine", houses, stub_canary)
    assert loaded.path == wanted
    assert loaded.trace.why == "asked for by --backend"


@pytest.mark.parametrize("name", ["portable", "cpu-portable", "CPU_PORTABLE", "libcoli_cpu_portable.so"])
def test_names_that_select(houses: Search, stub_canary: Path, name: str) -> None:
    assert load(name, houses, stub_canary).path == houses.path[0] / "libcoli_cpu_portable.so"


def test_file_that_selects(houses: Search, stub_canary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = houses.package_folder / "libcoli_cpu_portable.so"
    assert load(str(wanted), houses, stub_canary).path == wanted
    monkeypatch.chdir(houses.package_folder)
    assert load("./libcoli_cpu_portable.so", houses, stub_canary).path == wanted


def test_current_folder_is_never_searched(
    houses: Search, build_stub: Build, stub_canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    place(here, build_stub(), "libcoli_cpu_rogue.so", "portable")
    monkeypatch.chdir(here)
    with pytest.raises(BackendRefused) as caught:
        load("libcoli_cpu_rogue.so", houses, stub_canary)
    assert caught.value.code == "backend.unknown"
    # To have it looked at is another thing than to use it.
    assert explain_selection("libcoli_cpu_rogue.so", houses, canary=stub_canary).candidates[0].accepted


def test_refused_choice_says_gate_and_fix(houses: Search, build_stub: Build, stub_canary: Path, tmp_path: Path) -> None:
    path = place(tmp_path / "bad", build_stub("libcoli_cpu_portable.so", "STUB_ABSENT"), "libcoli_x.so", "portable")
    with pytest.raises(BackendRefused) as caught:
        load(str(path), houses, stub_canary)
    error = caught.value
    assert error.exit_code == 5
    assert (error.subject, error.code) == (str(path), "backend.slots.absent")
    assert error.observed == "absent: weight_bind, embed, router"
    assert error.fix is not None


def test_unknown_name_lists_the_known(houses: Search, stub_canary: Path) -> None:
    with pytest.raises(BackendRefused) as caught:
        load("cpu-portabel", houses, stub_canary)
    assert caught.value.code == "backend.unknown"
    assert caught.value.expected is not None and "cpu-portable" in caught.value.expected
    assert caught.value.fix == "did you mean cpu-portable?"


def test_nothing_found_says_where_it_looked(tmp_path: Path, stub_canary: Path) -> None:
    search = Search(path=(tmp_path / "a",), package_folder=tmp_path / "b")
    with pytest.raises(ColiError) as caught:
        load(search=search, canary=stub_canary)
    assert (caught.value.code, caught.value.exit_code) == ("backend.none", 1)
    assert caught.value.observed == f"no library in {tmp_path / 'a'} (absent), {tmp_path / 'b'} (absent)"


def test_trace_is_a_document(houses: Search, stub_canary: Path) -> None:
    document = json.loads(json.dumps(survey(houses, canary=stub_canary).as_dict()))
    assert document["schema"] == "coli.backends/1"
    assert document["chosen"] == str(houses.path[0] / "libcoli_cpu_portable.so")
    assert all([gate["gate"] for gate in row["gates"]] == list(GATES) for row in document["candidates"])


# -- answers that are kept


def test_answer_is_kept_and_a_broken_cache_is_no_harm(houses: Search, stub_canary: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    search = dataclasses.replace(houses, cache_folder=cache)
    first = survey(search, canary=stub_canary)
    again = survey(search, canary=stub_canary)
    assert [row.cached for row in again.candidates] == [True] * len(again.candidates)
    assert [row.findings for row in first.candidates] == [row.findings for row in again.candidates]
    files = list(cache.iterdir())
    assert files and all(file.suffix == ".json" for file in files)
    for content in (
        "",
        "{",
        "[]",
        '{"steps": 3, "end": "exit", "detail": ""}',
        '{"steps": {"open": {}}, "end": "exit", "detail": ""}',
        "[" * 100_000,
        '{"steps": {"open": {"error": null, "query": true}, "table": {"table": {"size": 1e999, "platform": 1e999}}}, '
        '"end": "exit", "detail": "exit code 0"}',
    ):
        for file in files:
            file.write_text(content, encoding="utf-8")
        broken = survey(search, canary=stub_canary)
        assert [row.findings for row in broken.candidates] == [row.findings for row in first.candidates]
    assert all(row.cached for row in survey(search, canary=stub_canary).candidates)


def test_kept_answer_belongs_to_one_canary(houses: Search, stub_canary: Path, tmp_path: Path) -> None:
    search = dataclasses.replace(houses, cache_folder=tmp_path / "cache")
    survey(search, canary=stub_canary)
    other = tmp_path / "other.bin"
    other.write_bytes(b"junk")
    assert not any(row.accepted for row in survey(search, canary=other).candidates)


def test_hang_is_not_kept(build_stub: Build, stub_canary: Path, tmp_path: Path) -> None:
    path = build_stub("libcoli_cpu_portable.so", "STUB_HANG_QUERY")
    search = Search(cache_folder=tmp_path / "cache")
    candidate = Candidate(path, "stub", "test")
    examine(candidate, Machine(cpu_level(), search), search, stub_canary, deadline_s=0.5)
    assert not (tmp_path / "cache").exists()


def test_fault_of_the_installation_is_not_kept(build_stub: Build, tmp_path: Path) -> None:
    candidate = Candidate(build_stub("libcoli_cpu_portable.so"), "stub", "test")
    search = Search(cache_folder=tmp_path / "cache")
    for content in (b"junk", hand_canary()[:-1]):
        canary = tmp_path / "canary.bin"
        canary.write_bytes(content)
        assert refusal(examine(candidate, Machine(cpu_level(), search), search, canary))[0] == "canary.unreadable"
    assert not (tmp_path / "cache").exists()


def test_cache_folder_that_cannot_be_made(houses: Search, stub_canary: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    search = dataclasses.replace(houses, cache_folder=tmp_path / "file" / "cache")
    assert survey(search, canary=stub_canary).chosen is not None


def test_header_is_shipped() -> None:
    assert HEADER.is_file()
