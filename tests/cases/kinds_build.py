"""Kinds toolkit, host-compiler and build: facts from coli.build_matrix."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from adapter import NotRun, Row, matches
from kinds_driver import of_machine, runs_toolkit
from prepared import Prepared, gcc_stand_in, toolkit_tree

from coli.backends.devices import DeviceFacts, probe_devices
from coli.build_matrix.arch import Card, parse_arch, supports
from coli.build_matrix.classify import classify
from coli.build_matrix.compilers import HostCompiler, accepted, find_compilers, host_bounds, probe_glibc
from coli.build_matrix.decide import Facts, decide_cells
from coli.build_matrix.deepgemm import DeepGemm
from coli.build_matrix.matrix import load_matrix
from coli.build_matrix.recipe import Recipe, Refusal
from coli.build_matrix.request import Value, read_request
from coli.build_matrix.toolkits import Places, Toolkit, find_toolkits
from coli.build_matrix.version import Version
from coli.errors import UsageError

MATRIX = load_matrix()


def toolkit_facts(machine: Prepared) -> dict[str, Any]:
    """Find toolkits, choose one and decide, as the build does for this machine's cards."""
    if "table" in machine.expect:
        return build_facts(machine)
    places = _places(machine)
    toolkits = find_toolkits(places)
    driver, cards = _driver_and_cards(machine)
    facts = Facts(toolkits, _compilers(machine, places) or _any_compiler(machine), cards, driver)
    request = read_request(machine.environment)
    if request.cuda_arch is None and cards:
        request = replace(request, cuda_arch=Value("native", "the case's cards"))
    outcome = decide_cells(request, facts, MATRIX)[0]
    chosen = outcome.toolkit if isinstance(outcome, Recipe) else next((one for one in toolkits if one.usable), None)
    targets = _targets(cards)
    return {
        **_driver_facts(machine, driver),
        **_toolkit(machine, chosen or next((one for one in toolkits if one.nvcc), None)),
        **_cuda_home(toolkits),
        **_arch(outcome, targets, chosen),
        "toolkits": [
            {
                "root": machine.shown(one.root),
                "version": one.version.short if one.version else None,
                "can_target": one.version is not None and all(supports(one.version, t, MATRIX) for t in targets),
            }
            for one in toolkits
        ],
        "selected.root": machine.shown(chosen.root) if chosen else None,
        "selected.version": chosen.version.short if chosen and chosen.version else None,
        "warn_several_toolkits": isinstance(outcome, Recipe)
        and any("several toolkits" in text for text in outcome.warnings),
        "can_build_cuda": isinstance(outcome, Recipe),
        "can_run_prebuilt_cuda": runs_toolkit(_devices(machine).driver, 12) is not False
        and driver is not None
        and bool(targets),
        "status": _status(outcome),
        "error_kind": outcome.rule if isinstance(outcome, Refusal) else None,
        "argv": [machine.shown(one) for one in outcome.cmake_arguments()] if isinstance(outcome, Recipe) else [],
        "must_not": list(_broken(machine, outcome)),
    }


def host_compiler_facts(machine: Prepared) -> dict[str, Any]:
    """Find host compilers, the C library and the toolkit's bounds, and choose."""
    if "table" in machine.expect:
        return build_facts(machine)
    places = _places(machine)
    toolkits, compilers, glibc = find_toolkits(places), _compilers(machine, places), probe_glibc(places)
    driver, cards = _driver_and_cards(machine)
    facts = Facts(toolkits, compilers, cards, driver, glibc)
    outcome = decide_cells(read_request(machine.environment), facts, MATRIX)[0]
    if not toolkits:
        raise NotRun("the case has no toolkit")
    bounds = host_bounds(toolkits[0], MATRIX)
    default = next((one for one in compilers if one.default), None)
    found: dict[str, Any] = {
        **_driver_facts(machine, driver),
        **_toolkit(machine, toolkits[0]),
        "host.max_gcc": bounds.gcc,
        "host.max_clang": bounds.clang,
        "host.default": default.version.full if default else None,
        "host.default_ok": default is not None and accepted(default, bounds, MATRIX.minimum_compiler) is None,
        "host.selected": outcome.host_compiler.path.name if isinstance(outcome, Recipe) else None,
        "glibc": glibc.short if glibc else None,
        "status": _status(outcome),
        "error_kind": outcome.rule if isinstance(outcome, Refusal) else None,
        "must_not": list(_broken(machine, outcome)),
    }
    return found | _log_class(machine)


def _log_class(machine: Prepared) -> dict[str, Any]:
    logs = sorted(machine.case.glob("*.log"))
    return {"log_class": classify(logs[0].read_text("utf-8")).id} if logs else {}


def build_facts(machine: Prepared) -> dict[str, Any]:
    """Play a table, or decide for this machine with CUDA_ARCH=native."""
    table = machine.expect.get("table")
    if table is not None:
        rows = json.loads((machine.case / table).read_text("utf-8"))
        if isinstance(rows[0], dict):
            return {"table": [_combination(machine, row) for row in rows]}
        play = _spelling if any(isinstance(wanted, list) or wanted == "keyword" for _, wanted in rows) else _log
        return {"table": [play(text, wanted) for text, wanted in rows]}
    driver, cards = _driver_and_cards(machine)
    request = read_request(machine.environment)
    if request.cuda_arch is None:
        request = replace(request, cuda_arch=Value("native", "the case"))
    places = _places(machine)
    compilers = _compilers(machine, places) or _any_compiler(machine)
    outcomes = decide_cells(request, Facts(find_toolkits(places), compilers, cards, driver), MATRIX)
    outcome = next((one for one in outcomes if isinstance(one, Refusal)), outcomes[0])
    return {
        **_log_class(machine),
        **_driver_facts(machine, driver),
        **_arch(outcome, _targets(cards), outcome.toolkit if isinstance(outcome, Recipe) else None),
        "status": _status(outcome),
        "error_kind": outcome.rule if isinstance(outcome, Refusal) else None,
        "must_not": list(_broken(machine, outcome)),
    }


def _spelling(text: str, wanted: Any) -> Row:
    try:
        arch = parse_arch(text, MATRIX)
    except UsageError as error:
        detail = wanted.partition("error: ")[2] if isinstance(wanted, str) else ""
        passed = isinstance(wanted, str) and "error" in wanted and detail in (error.observed or "")
        return Row(repr(text), wanted, f"error: {error.observed}", passed)
    found: Any = "keyword" if arch.keyword else [target.short for target in arch.targets]
    return Row(repr(text), wanted, found, found == wanted)


def _log(text: str, wanted: str) -> Row:
    found = classify(text).id
    return Row(repr(text[:60]), wanted, found, matches(found, wanted))


def _combination(machine: Prepared, row: dict[str, Any]) -> Row:
    """Build the facts of one row: a toolkit of that release with its cuBLAS headers, and that host compiler.

    NO_TC 0 and DEEPGEMM 0 are the flags at rest, as in a makefile: not given.
    """
    toolkits, compilers = _found(machine.root, row["toolkit"], row["ccbin"], machine.log)
    variables = {"CUDA_ARCH": row["CUDA_ARCH"], "NVCC_CCBIN": row["ccbin"]}
    variables |= {name: "1" for name in ("NO_TC", "DEEPGEMM") if row[name]}
    facts = Facts(toolkits, compilers, deepgemm_pinned=DeepGemm(Path("/pinned"), MATRIX.deepgemm_api, 0, 0, ""))
    outcomes = decide_cells(read_request(variables), facts, MATRIX)
    refusals = [one for one in outcomes if isinstance(one, Refusal)]
    wanted = row["expect"]
    label = " ".join(f"{name}={row[name]}" for name in ("CUDA_ARCH", "NO_TC", "DEEPGEMM", "toolkit"))
    if isinstance(wanted, str):
        said = [refusal.reason for refusal in refusals]
        return Row(label, wanted, said, any(wanted.partition(": ")[2] in text for text in said))
    generic = outcomes[0]
    if isinstance(generic, Refusal) or refusals:
        return Row(label, wanted, [refusal.reason for refusal in refusals], False)
    command = generic.nvcc_arguments()
    found = {
        "arch_kept": row["CUDA_ARCH"] if _is_kept(row["CUDA_ARCH"], generic) else generic.cell.arch,
        "ccbin_kept": Path(command[command.index("-ccbin") + 1]).name,
        "std_flags": sum(word.startswith("-std") for word in command),
        "tensor_core_path": not generic.no_tc,
        "special_library": wanted.get("special_library"),
    }
    separate = all(
        isinstance(one, Recipe) and one.flavour_arch == "120a" and set(generic.targets) <= set(one.targets)
        for one in outcomes[1:]
    )
    return Row(label, wanted, found, separate and {**found, **wanted} == found)


def _is_kept(text: str, recipe: Recipe) -> bool:
    asked = parse_arch(text, MATRIX)
    return asked.text == recipe.cell.arch and asked.targets in ((), recipe.targets)


@lru_cache(maxsize=64)
def _found(root: Path, version: str, compiler: str, log: Path) -> tuple[tuple[Toolkit, ...], tuple[HostCompiler, ...]]:
    folder = root / f"{version}-{compiler}"
    toolkit_tree(folder / "toolkit", version, log, cublas=True)
    gcc_stand_in(folder / "bin" / compiler, f"{compiler.rpartition('-')[2]}.2.0", log)
    places = Places({"PATH": f"{folder / 'bin'}", "CUDA_HOME": str(folder / "toolkit")}, "x86_64", root)
    return find_toolkits(places), find_compilers(places)


def _places(machine: Prepared) -> Places:
    triples = {path.name for path in machine.root.rglob("targets/*-linux")}
    arm = bool(triples) and "x86_64-linux" not in triples
    return Places(machine.environment, "aarch64" if arm else "x86_64", machine.root)


def _driver_and_cards(machine: Prepared) -> tuple[Version | None, tuple[Card, ...]]:
    found = _devices(machine)
    cards = []
    for gpu in found.gpus:
        capability = gpu.capability.value
        known = (capability.major, capability.minor) if capability else None
        cards.append(Card(gpu.index, gpu.name.value or "unnamed", known))
    cuda = found.driver.max_cuda.value
    return Version(*cuda) if cuda else None, tuple(cards)


def _devices(machine: Prepared) -> DeviceFacts:
    return probe_devices(machine.environment, _places(machine).path_folders(), machine.root, "linux")


def _driver_facts(machine: Prepared, driver: Version | None) -> dict[str, Any]:
    return of_machine(_devices(machine), machine.environment) | {"driver.max_cuda": driver.short if driver else None}


def _targets(cards: tuple[Card, ...]) -> tuple[Any, ...]:
    usable = [card.capability for card in cards if card.capability and card.capability >= (8, 0)]
    return tuple(target for cc in usable for target in parse_arch(f"{cc[0]}.{cc[1]}", MATRIX).targets)


def _compilers(machine: Prepared, places: Places) -> tuple[HostCompiler, ...]:
    return find_compilers(places, machine.environment.get("NVCC_CCBIN"))


def _any_compiler(machine: Prepared) -> Any:
    """A case that says nothing of host compilers is not about them."""
    gcc_stand_in(machine.root / "opt" / "gcc" / "bin" / "g++-11", "11.4.0", machine.log)
    return find_compilers(Places({"PATH": "/opt/gcc/bin"}, "x86_64", machine.root))


def _toolkit(machine: Prepared, toolkit: Toolkit | None) -> dict[str, Any]:
    if toolkit is None:
        return {"toolkit.present": False, "toolkit.version": None, "toolkit.root": None, "nvcc.version": None}
    version = toolkit.version.short if toolkit.version else None

    def below(path: Path | None) -> str | None:
        return str(path.relative_to(toolkit.root)) if path else None

    return {
        "toolkit.present": toolkit.usable,
        "toolkit.version": version,
        "toolkit.root": machine.shown(toolkit.root),
        "nvcc.version": version,
        "toolkit.layout": toolkit.layout,
        "libdir": below(toolkit.libdir),
        "includedir": below(toolkit.include),
        "cudart.runtime": toolkit.cudart_runtime,
        "cudart.link_name": toolkit.cudart_link_name,
        "cudart.static": toolkit.cudart_static,
        "toolkit.missing": list(toolkit.missing),
        "stubs.libcuda": toolkit.stub is not None,
    }


def _cuda_home(toolkits: tuple[Toolkit, ...]) -> dict[str, Any]:
    named = next((one for one in toolkits if one.origin in ("CUDA_HOME", "CUDA_PATH")), None)
    if named is None:
        return {}
    blocking = [one.missing for one in named.findings if one.blocking and one.missing is not None]
    return {"cuda_home.valid": named.usable, "cuda_home.missing": blocking, "cuda_home.exists": named.root.is_dir()}


def _arch(outcome: Recipe | Refusal, targets: tuple[Any, ...], toolkit: Toolkit | None) -> dict[str, Any]:
    version = toolkit.version if toolkit and toolkit.version else None
    skipped = []
    if isinstance(outcome, Recipe):
        for text in outcome.warnings:
            if " is skipped: " in text:
                head, _, reason = text.partition(") is skipped: ")
                skipped.append({"cc": head.rpartition(", ")[2], "reason": reason})
    fallback = [one.value for one in outcome.choices if one.kind == "ptx"] if isinstance(outcome, Refusal) else []
    return {
        "arch.list": [target.short for target in outcome.targets] if isinstance(outcome, Recipe) else [],
        "arch.requested": targets[0].name if targets else None,
        "arch.supported": version is not None and all(supports(version, target, MATRIX) for target in targets),
        "needs_toolkit": outcome.needs_toolkit.short
        if isinstance(outcome, Refusal) and outcome.needs_toolkit
        else None,
        "deepgemm_possible": version is not None and version.release >= MATRIX.deepgemm_minimum,
        "fallback": f"ptx:{fallback[0]}" if fallback else None,
        "skipped": skipped,
    }


def _status(outcome: Recipe | Refusal) -> str:
    return "fail" if isinstance(outcome, Refusal) else "warn" if outcome.warnings else "ok"


def _broken(machine: Prepared, outcome: Recipe | Refusal) -> Any:
    """Yield the rules that no case may break and this one does: deciding compiles nothing, roots are not mixed."""
    for call in machine.calls():
        if Path(call[0]).name == "nvcc" and call[1:] != ["--version"]:
            yield f"nvcc was started: {call}"
    if isinstance(outcome, Recipe):
        roots = (outcome.toolkit.include, outcome.toolkit.libdir, outcome.nvcc)
        if any(path is not None and not path.is_relative_to(outcome.toolkit.root) for path in roots):
            yield "compiler, headers and libraries of several roots"
        if any("stubs" in (value or "") for value in outcome.environment_changes().values()):
            yield "the folder of stubs in a variable"
        if any("allow-unsupported" in word for word in outcome.nvcc_arguments()):
            yield "-allow-unsupported-compiler unasked"


KINDS = {"toolkit": toolkit_facts, "host-compiler": host_compiler_facts, "build": build_facts}
