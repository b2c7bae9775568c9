"""Choose one toolkit and one host compiler, and say why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coli.backends.targets import Target
from coli.build_matrix.arch import supports
from coli.build_matrix.compilers import HostCompiler, accepted, cxx_name, newest_accepted
from coli.build_matrix.matrix import Bounds, Matrix
from coli.build_matrix.recipe import Choice, Refusal
from coli.build_matrix.request import Value
from coli.build_matrix.toolkits import Toolkit
from coli.build_matrix.version import Version, parse_version

__all__ = ["ChosenCompiler", "ChosenToolkit", "choose_compiler", "choose_toolkit", "has_block_scaling"]

_NAMED = ("CUDA_HOME", "CUDA_PATH")
_UNSUPPORTED = ("-allow-unsupported-compiler", "--allow-unsupported-compiler")


@dataclass(frozen=True)
class ChosenToolkit:
    """The toolkit that compiler, headers and cudart come from."""

    toolkit: Toolkit
    version: Version
    why: str
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class ChosenCompiler:
    """The host compiler, passed explicitly to CMake and nvcc."""

    compiler: HostCompiler
    why: str
    warnings: tuple[str, ...] = ()


def choose_toolkit(
    asked: Value | None,
    toolkits: Sequence[Toolkit],
    wanted: Sequence[Target],
    driver_cuda: Version | None,
    matrix: Matrix,
    *,
    insists_tc: bool = False,
) -> ChosenToolkit | Refusal:
    """Choose among ``toolkits`` for ``wanted`` targets: what was asked for, CUDA_HOME, else the best one.

    ``insists_tc``: of those that serve as well, one whose cuBLAS headers have block scaling.
    """
    if insists_tc:
        toolkits = sorted(toolkits, key=lambda one: not has_block_scaling(one, matrix))
    usable = [one for one in toolkits if one.usable]
    stale = [one for one in toolkits if one.origin in _NAMED and not one.usable]
    warnings = [
        f"{one.origin}={one.root} is not used: "
        + "; ".join(finding.text for finding in one.findings if finding.blocking)
        for one in stale
    ]
    if asked is not None:
        chosen = _asked(asked, toolkits, matrix)
        if isinstance(chosen, Refusal):
            return chosen
        for one in usable:
            if one.origin in _NAMED and one.root != chosen.toolkit.root:
                warnings.append(
                    f"{one.origin}={one.root} is not used: {asked.text[:200]} is asked for ({asked.origin})"
                )
        return replace(chosen, warnings=tuple(warnings))
    named = [one for one in usable if set(_NAMED) & {one.origin, *one.also}]
    if not usable:
        return _none(toolkits, matrix)
    if named:
        best = named[0]
        others = [one for one in named[1:] if one.root != best.root]
        warnings += [f"{one.origin}={one.root} is not used: {best.origin} counts first" for one in others]
        why = f"{best.origin} names it"
    else:
        order = {id(one): number for number, one in enumerate(usable)}
        able = [one for one in usable if has_block_scaling(one, matrix)] if insists_tc else []
        best = max(able or usable, key=lambda one: (*_merit(one, wanted, driver_cuda, matrix), -order[id(one)]))
        why = _why(best, able or usable, wanted, driver_cuda, matrix)
        if able:
            why = f"it has the cuBLAS headers that NO_TC=0 needs; {why}"
        if len(usable) > 1:
            seen = ", ".join(one.label for one in usable)
            warnings.append(f"several toolkits: {seen}; compiler, headers and cudart come from {best.root} alone")
    version = best.version or Version(0, 0)
    unable = [target.name for target in wanted if not supports(version, target, matrix)]
    if named and unable:
        warnings.append(f"{best.origin}={best.root} (CUDA {version.short}) cannot target {' '.join(unable)}")
    return ChosenToolkit(best, version, why, tuple(warnings))


def has_block_scaling(toolkit: Toolkit, matrix: Matrix) -> bool:
    """Tell whether the cuBLAS headers of a toolkit have block scaling: they have versions of their own."""
    return toolkit.cublas is not None and toolkit.cublas.release >= matrix.minimum_cublas


def choose_compiler(
    asked: Value | None,
    compilers: Sequence[HostCompiler],
    bounds: Bounds,
    minimum: Mapping[str, int],
    matrix: Matrix,
    toolkit: Toolkit,
    flags: Sequence[str],
) -> ChosenCompiler | Refusal:
    """Choose what NVCC_CCBIN names, else the newest compiler that the toolkit accepts."""
    listed = ", ".join(one.label for one in compilers) or "none"
    limits = f"gcc {minimum['gcc']} to {bounds.gcc} or clang {minimum['clang']} to {bounds.clang} ({bounds.source})"
    if asked is None:
        best = newest_accepted(compilers, bounds, minimum)
        if best is not None:
            default = next((one for one in compilers if one.default), None)
            passed = accepted(default, bounds, minimum) if default is not None and default != best else None
            why = f"the newest that is accepted: {limits}"
            return ChosenCompiler(best, f"{why}; the default {passed}" if passed else why)
        return _refuse_compiler(
            matrix, "host-compiler-missing", f"host compiler for {toolkit.label}", listed, limits, bounds
        )
    found = [one for one in compilers if _is_named(one, asked.text)]
    subject = f"NVCC_CCBIN={asked.text[:200]} ({asked.origin})"
    if not found:
        return _refuse_compiler(matrix, "host-compiler-missing", subject, listed, limits, bounds)
    problem = accepted(found[0], bounds, minimum)
    named = f"NVCC_CCBIN names it ({asked.origin})"
    if cxx_name(Path(asked.text).name) != Path(asked.text).name:
        named = f"it stands for NVCC_CCBIN={asked.text[:200]} ({asked.origin}), which links no C++ library"
    if problem is None:
        return ChosenCompiler(found[0], named)
    if any(flag in _UNSUPPORTED for flag in flags):
        return ChosenCompiler(found[0], named, (f"{problem}; NVCC_APPEND_FLAGS lets it pass",))
    return _refuse_compiler(matrix, "host-compiler-unsupported", subject, problem, limits, bounds)


def _merit(
    toolkit: Toolkit, wanted: Sequence[Target], driver_cuda: Version | None, matrix: Matrix
) -> tuple[bool, int, bool]:
    """Order toolkits: not refused by the driver, most of the wanted targets, pinned or PATH before what lies around."""
    version = toolkit.version or Version(0, 0)
    served = driver_cuda is None or version.major <= driver_cuda.major
    able = sum(supports(version, target, matrix) for target in wanted)
    return served, able, toolkit.origin == "PATH" or "PATH" in toolkit.also


def _why(
    best: Toolkit, usable: Sequence[Toolkit], wanted: Sequence[Target], driver_cuda: Version | None, matrix: Matrix
) -> str:
    if len(usable) == 1:
        return "the only one that is complete"
    reasons = []
    mine = _merit(best, wanted, driver_cuda, matrix)
    for one in usable:
        theirs = _merit(one, wanted, driver_cuda, matrix)
        if one is best or theirs == mine:
            continue
        label = f"CUDA {one.version.short if one.version else '?'}"
        if one.version and best.version and one.version.short == best.version.short:
            label = str(one.root)
        if theirs[0] != mine[0]:
            reasons.append(f"the driver refuses {label}")
        elif theirs[1] != mine[1]:
            unable = [t.name for t in wanted if one.version and not supports(one.version, t, matrix)]
            reasons.append(f"{label} cannot target {' '.join(unable)}")
        else:
            reasons.append(f"{label} is not on PATH")
    return "; ".join(dict.fromkeys(reasons)) or "the first one found"


def _asked(asked: Value, toolkits: Sequence[Toolkit], matrix: Matrix) -> ChosenToolkit | Refusal:
    text, version = asked.text, parse_version(asked.text)
    if version is not None:
        found = [one for one in toolkits if one.version and one.version.release == version.release]
        if version.patch:
            found = [one for one in found if one.version == version]
    elif text.startswith("pypi:"):
        found = [one for one in toolkits if text in (one.origin, *one.also)]
    else:
        found = [one for one in toolkits if str(one.root) == text.rstrip("/") or "--toolkit" in (one.origin, *one.also)]
    usable = [one for one in found if one.usable]
    if usable:
        best = usable[0]
        return ChosenToolkit(best, best.version or Version(0, 0), f"asked for ({asked.origin})", ())
    subject = f"toolkit {text[:200]} ({asked.origin})"
    if found:
        return _incomplete(subject, found, matrix)
    have = ", ".join(one.label for one in toolkits) or "none"
    rule = matrix.rule("toolkit-missing")
    return Refusal(rule.id, subject, f"it is not here: {rule.reason}", rule.fix, observed=have)


def _none(toolkits: Sequence[Toolkit], matrix: Matrix) -> Refusal:
    if toolkits:
        return _incomplete("CUDA toolkit", toolkits, matrix)
    rule = matrix.rule("toolkit-missing")
    return Refusal(
        rule.id,
        "CUDA toolkit",
        f"none is installed: {rule.reason}",
        rule.fix,
        observed="nothing in CUDA_HOME, PATH, /usr/local/cuda*, conda, pip wheels",
        choices=(Choice("toolkit", "make one from pinned wheels: --toolkit pypi:13.0", "pypi:13.0"),),
    )


def _incomplete(subject: str, toolkits: Sequence[Toolkit], matrix: Matrix) -> Refusal:
    rule = matrix.rule("toolkit-incomplete")
    blocking = [finding for one in toolkits for finding in one.findings if finding.blocking]
    return Refusal(
        rule.id,
        subject,
        rule.reason,
        "; ".join(dict.fromkeys(finding.fix for finding in blocking)) or rule.fix,
        observed="; ".join(finding.text for finding in blocking),
        choices=(Choice("toolkit", "make a complete one from pinned wheels: --toolkit pypi:13.0", "pypi:13.0"),),
    )


def _is_named(compiler: HostCompiler, text: str) -> bool:
    if "/" not in text:
        return cxx_name(text) in compiler.names
    path = Path(text.rstrip("/"))
    path = path.with_name(cxx_name(path.name)) if path.name else path
    return path in (compiler.path, compiler.path.parent) or (
        path.name in compiler.names and path.parent == compiler.path.parent
    )


def _refuse_compiler(matrix: Matrix, rule_id: str, subject: str, observed: str, limits: str, bounds: Bounds) -> Refusal:
    rule = matrix.rule(rule_id)
    package = f"g++-{bounds.gcc}"
    return Refusal(
        rule.id,
        subject,
        rule.reason,
        rule.fix,
        observed=observed,
        expected=limits,
        choices=(
            Choice(
                "install",
                f"apt install {package} (Debian, Ubuntu), or gcc-toolset-{bounds.gcc} (Fedora, RHEL)",
                package,
            ),
            Choice("toolkit", "use a newer toolkit, which accepts newer compilers: --toolkit pypi:13.0", "pypi:13.0"),
        ),
    )
