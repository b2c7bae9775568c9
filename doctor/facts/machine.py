"""All facts of a machine in one place, found by probes that run at the same time, each with a deadline."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from coli.backends.candidates import Search
from coli.backends.devices import DeviceFacts, Fact, probe_devices
from coli.backends.devices.facts import UNKNOWN
from coli.backends.toolkit_places import site_folders
from coli.backends.trace import Trace
from coli.build_matrix.compilers import HostCompiler
from coli.build_matrix.toolkits import Places, Toolkit
from coli.build_matrix.version import Version
from coli.doctor.facts.bounded import Task, Unfinished
from coli.doctor.facts.checkpoint import CheckpointFacts, Progress, probe_checkpoint
from coli.doctor.facts.cpu import CpuFacts, probe_cpu
from coli.doctor.facts.measure import Measured, probe_bandwidth, read_measured, write_measured
from coli.doctor.facts.memory import MemoryFacts, probe_memory
from coli.doctor.facts.settings import SettingsFacts, probe_settings
from coli.doctor.facts.storage import StorageFacts, probe_storage
from coli.doctor.facts.system import SystemFacts, probe_system
from coli.doctor.facts.versions import VersionFacts, probe_versions
from coli.doctor.record.plain import from_plain, to_plain
from coli.engine.host_cpu import default_threads
from coli.engine.location import find_snapshot
from coli.engine.run_record import RunRecord, read_run_record
from coli.errors import CheckpointError
from coli.settings import Resolved

__all__ = ["FIELDS", "CompilerFacts", "MachineFacts", "ProbeProblem", "Request", "probe_machine"]

HERE = Path("/")

# Seconds. A probe that asks tools or disks has deadlines of its own, which add up to less.
_DEADLINES_S = {
    "devices": 25.0,
    "backends": 150.0,
    "checkpoint": 120.0,
    "stages": 120.0,
    "toolkits": 60.0,
    "compilers": 90.0,
    "measured": 150.0,
}
_DEADLINE_S = 20.0
_DEEP_DEADLINE_S = 24 * 3600.0  # 160 GB from a slow disk take hours, and it reports how far it is


@dataclass(frozen=True)
class ProbeProblem:
    """A probe without a result. ``field``: that of MachineFacts which is None because of it."""

    field: str
    kind: Literal["crash", "timeout"]
    text: str


@dataclass(frozen=True)
class CompilerFacts:
    """The host compilers on PATH, and the C library that they compile for.

    ``missing_tools``: which of cmake and ninja a build would not find; not known of another machine.
    """

    compilers: tuple[HostCompiler, ...]
    glibc: Fact[Version] = UNKNOWN
    missing_tools: Fact[tuple[str, ...]] = UNKNOWN


@dataclass(frozen=True)
class MachineFacts:
    """What is known of a machine. None: it was not asked for, or ``problems`` says why there is no answer.

    ``model``: the path that was given. ``stages``: those that the engine of its family uses. ``measured``: of
    the slowest mount of the model. ``last_run``: what the model's last run here took; None when none is on record.
    ``here``: this machine; False for a tree or a record of another one, and for one that `--set` made. ``name``: what
    its file calls it.
    """

    here: bool = True
    name: str | None = None
    model: str | None = None
    system: SystemFacts | None = None
    cpu: CpuFacts | None = None
    memory: MemoryFacts | None = None
    storage: tuple[StorageFacts, ...] | None = None
    devices: DeviceFacts | None = None
    toolkits: tuple[Toolkit, ...] | None = None
    compilers: CompilerFacts | None = None
    backends: Trace | None = None
    checkpoint: CheckpointFacts | None = None
    stages: tuple[str, ...] | None = None
    settings: SettingsFacts | None = None
    versions: VersionFacts | None = None
    measured: Measured | None = None
    last_run: RunRecord | None = None
    problems: tuple[ProbeProblem, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that CUDA and the compilers read, as they were found."""
        return self.settings.environment if self.settings is not None else {}


FIELDS = tuple(
    field.name for field in dataclasses.fields(MachineFacts) if field.name not in ("here", "name", "model", "problems")
)
"""The fields that probes fill, one each."""


@dataclass(frozen=True)
class Request:
    """What to look at, and with what. ``search``: where backends are looked for.

    ``root``: another one replays the machine below it; its PATH is that of ``environment``, below it as well.
    ``machine`` is its kind then (``x86_64``). ``model`` and ``folders`` are paths as the machine has them; the latter
    are in use beside the model, by role (``cache``, ``data``, ``mirror``). ``cache``: where toolkits are that were made
    from wheels, and what was measured. ``measure``: measure, and keep that in ``cache``.
    """

    settings: Resolved
    environment: Mapping[str, str]
    search: Search
    root: Path = HERE
    system: str = sys.platform
    machine: str = "x86_64"
    model: Path | None = None
    folders: tuple[tuple[str, Path], ...] = ()
    cache: Path | None = None
    plugins: tuple[str, ...] | None = None
    deep: bool = False
    measure: bool = False
    progress: Progress | None = None

    @property
    def here(self) -> bool:
        """Say whether this machine is asked about."""
        return self.root == HERE

    @property
    def places(self) -> Places:
        """Return where the build's finders look."""
        return Places(
            self.environment,
            self.machine,
            self.root,
            site_folders=site_folders() if self.here else (),
            made=_made(self.cache, self.machine) if self.here and self.cache is not None else {},
        )


def _kept(cache: Path, storage: StorageFacts, measured: Measured) -> Measured:
    """Keep what was measured for the plan. Where that cannot be written, the measurement says why."""
    try:
        write_measured(cache, storage, measured)
    except OSError as error:
        return msgspec.structs.replace(measured, not_kept=f"{error.filename or cache}: {error.strerror}")
    return measured


def _made(cache: Path, machine: str) -> dict[str, Path]:
    from coli.build_matrix.wheels import load_bundles, made_bundle

    bundles = load_bundles()
    return {id: root for id, bundle in bundles.items() if (root := made_bundle(bundle, cache, machine)) is not None}


def probe_machine(
    request: Request, fields: Iterable[str] = FIELDS, times: dict[str, float] | None = None
) -> MachineFacts:
    """Find out what ``fields`` ask for. Never raises: a probe that crashes or hangs becomes a problem.

    ``times``: filled with the seconds that each probe took.
    """
    wanted = set(fields)
    if "backends" in wanted:
        wanted.add("devices")
    if "stages" in wanted or ("measured" in wanted and request.measure):
        wanted.add("checkpoint")
    if "measured" in wanted:
        wanted.add("storage")
    tasks: dict[str, Task[Any]] = {}
    for name, probe in _probes(request, tasks).items():
        if name in wanted:
            deadline_s = _DEADLINES_S.get(name, _DEADLINE_S)
            tasks[name] = Task(probe, _DEEP_DEADLINE_S if name == "checkpoint" and request.deep else deadline_s)
    found: dict[str, Any] = {}
    problems: list[ProbeProblem] = []
    for name, task in tasks.items():
        outcome = task.result()
        if isinstance(outcome, Unfinished):
            problems.append(ProbeProblem(name, outcome.kind, outcome.text))
        else:
            found[name] = outcome
        if times is not None:
            times[name] = task.seconds
    model = None if request.model is None else str(request.model)
    facts = MachineFacts(here=request.here, model=model, problems=tuple(problems), **found)
    return facts if request.here else _as_named_there(facts, request.root)


def _as_named_there(facts: MachineFacts, root: Path) -> MachineFacts:
    """Return facts of a tree with the paths that its machine knows: where the tree lies is no fact of it."""

    def named(value: Any) -> Any:
        if isinstance(value, str):
            return "/" if value == str(root) else value.replace(f"{root}/", "/")
        if isinstance(value, (list, tuple)):
            return [named(item) for item in value]
        return {key: named(item) for key, item in value.items()} if isinstance(value, dict) else value

    return from_plain(named(to_plain(facts)), MachineFacts)


def _probes(request: Request, tasks: Mapping[str, Task[Any]]) -> dict[str, Callable[[], Any]]:
    """Return the probe of every field, the slow ones first. ``tasks``: those that run already."""
    environment, root, places = request.environment, request.root, request.places

    def devices() -> DeviceFacts:
        if request.here:
            entries = environment.get("PATH", "").split(os.pathsep)
            folders = [Path(entry) for entry in entries if Path(entry).is_absolute()]
        else:
            folders = places.path_folders()
        return probe_devices(environment, folders, root, request.system)

    def backends() -> Trace | None:
        if not request.here:  # the libraries of another machine are not opened on this one
            return None
        from coli.backends.loader import survey

        known = tasks["devices"].result()
        search = dataclasses.replace(request.search, keeps=False)
        trace = survey(search, devices=None if isinstance(known, Unfinished) else known)
        # Whether an answer was kept from an earlier start is no fact of the machine.
        candidates = tuple(dataclasses.replace(candidate, cached=False) for candidate in trace.candidates)
        return dataclasses.replace(trace, candidates=candidates, devices=None)

    def toolkits() -> tuple[Toolkit, ...]:
        from coli.build_matrix.toolkits import find_toolkits

        return find_toolkits(places)

    def compilers() -> CompilerFacts:
        from coli.build_matrix.compilers import find_compilers, probe_glibc
        from coli.build_matrix.tools import missing_tools

        glibc = probe_glibc(places)
        found = find_compilers(places, environment.get("NVCC_CCBIN"))
        missing: Fact[tuple[str, ...]] = Fact.unknown("another machine")
        if request.here:
            missing = Fact.of(missing_tools(environment), "beside Python, PATH")
        known = Fact.of(glibc, "ldd --version") if glibc else Fact[Version].unknown("ldd tells no glibc")
        return CompilerFacts(found, known, missing)

    def checkpoint() -> CheckpointFacts | None:
        if request.model is None:
            return None
        mirrors = [path for role, path in request.folders if role == "mirror"]
        return probe_checkpoint(
            places.locate(str(request.model)),
            plugins=request.plugins,
            mirrors=mirrors,
            deep=request.deep,
            progress=request.progress,
        )

    def stages() -> tuple[str, ...] | None:
        known = tasks["checkpoint"].result()
        if not isinstance(known, CheckpointFacts) or known.family.value is None:
            return None
        from coli.families.registry import Registry

        return Registry.load(request.plugins).get(known.family.value.id).descriptor.stages

    def storage() -> tuple[StorageFacts, ...]:
        paths = [*([("model", request.model)] if request.model is not None else []), *request.folders]
        return tuple(fact for role, path in paths for fact in probe_storage(role, path, root))

    def measured() -> Measured | None:
        known, files = tasks["storage"].result(), tasks["checkpoint"].result() if request.measure else None
        if isinstance(known, Unfinished) or request.cache is None or not request.here:
            return None
        found: list[Measured] = []
        for storage in known:
            if storage.role == "model" and request.measure:
                shards = files.shards if isinstance(files, CheckpointFacts) else ()
                paths = [shard.path for shard in shards if shard.path is not None and shard.state == "ok"]
                one = probe_bandwidth(storage, paths, default_threads())
                found.append(_kept(request.cache, storage, one))
            elif storage.role in ("model", "mirror") and (kept := read_measured(request.cache, storage)) is not None:
                found.append(kept)
        # Of several mounts the slowest is waited for.
        return min(found, key=lambda one: one.disk_bytes_per_s.value or 0.0, default=None)

    def last_run() -> RunRecord | None:
        data = next((path for role, path in request.folders if role == "data"), None)
        if request.model is None or data is None or not request.here:
            return None
        try:
            folder = find_snapshot(request.model)
        except CheckpointError:
            return None
        return read_run_record(data / "runs", folder.resolve())

    return {
        "devices": devices,
        "backends": backends,
        "checkpoint": checkpoint,
        "stages": stages,
        "compilers": compilers,
        "toolkits": toolkits,
        "storage": storage,
        "measured": measured,
        "last_run": last_run,
        "system": lambda: probe_system(places, request.system),
        "cpu": lambda: probe_cpu(root, None if request.here else request.machine),
        "memory": lambda: probe_memory(root),
        "settings": lambda: probe_settings(request.settings, environment, here=request.here),
        "versions": probe_versions,
    }
