"""Request and facts -> how to build a cell, or why not. Pure: nothing is read, started or found here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coli.backends.targets import Target, parse_target, serves
from coli.build_matrix.arch import (
    Arch,
    Card,
    native_targets,
    needs_toolkit,
    parse_arch,
    portable_targets,
    supports,
)
from coli.build_matrix.choose import choose_compiler, choose_toolkit, has_block_scaling
from coli.build_matrix.compilers import HostCompiler, glibc_known_to, host_bounds
from coli.build_matrix.deepgemm import DeepGemm
from coli.build_matrix.matrix import Cell, Matrix
from coli.build_matrix.recipe import Choice, Recipe, Refusal
from coli.build_matrix.request import Request, Value
from coli.build_matrix.toolkits import Toolkit
from coli.build_matrix.version import Version
from coli.build_matrix.wheels import Download
from coli.errors import UsageError

__all__ = ["Facts", "decide_cell", "decide_cells", "wants_deepgemm"]

_DEFAULT_ARCH = Value("portable", "default")
# Each is given exactly once by the recipe or by the build's own list of flags.
_OURS = re.compile(
    r"--?(std|arch|gpu-architecture|code|gpu-code|gencode|generate-code|ccbin|compiler-bindir|fmad|ftz|prec-div|prec-sqrt"
    r"|use_fast_math|Ofast-compile)(=.*)?"
)
# A file of options would be no part of the build's identity, and nobody would see what it replaces.
_FILE = re.compile(r"--?(optf|options-file)(=.*)?|(.*[=,])?@.+")
_ROUNDING = re.compile(r"fast-math|ffp-contract|-Ofast|-f(unsafe-math|associative-math|reciprocal-math)|-std=")
# What nvcc, which knows no single quotes and no backslashes, would read otherwise than a shell does.
_SHELL = re.compile(r"""['\\]|"[^"]*\s[^"]*"|^[^"]*"(?:[^"]*"[^"]*")*[^"]*$""")


@dataclass(frozen=True)
class Facts:
    """What is known of this machine. ``driver_cuda`` is None without a driver, or when it does not say.

    ``deepgemm_pinned``: the pinned headers, once fetched; ``deepgemm_home``: those of DEEPGEMM_HOME. ``not_fetched``:
    what a build would fetch first, where nothing was to be fetched.
    """

    toolkits: tuple[Toolkit, ...]
    compilers: tuple[HostCompiler, ...]
    cards: tuple[Card, ...] = ()
    driver_cuda: Version | None = None
    glibc: Version | None = None
    deepgemm_pinned: DeepGemm | None = None
    deepgemm_home: DeepGemm | None = None
    not_fetched: tuple[Download, ...] = ()


class _Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.rule)
        self.refusal = refusal


def decide_cells(request: Request, facts: Facts, matrix: Matrix) -> tuple[Recipe | Refusal, ...]:
    """Decide what the request asks for: the generic cell, and with DEEPGEMM=1 the other flavour beside it.

    Where nobody asked and a card would run that flavour, it is built too; what stands in its way is then a note.
    """
    try:
        asked = _flag("DEEPGEMM", request.deepgemm, matrix)
    except _Refused as refused:
        return (refused.refusal,)
    generic = decide_cell(request, facts, matrix, "generic")
    card = wants_deepgemm(request, facts.cards, matrix)
    if card is None:
        return (generic,)
    flavour = decide_cell(request, facts, matrix, "deepgemm")
    if asked is True:
        return generic, flavour
    if isinstance(flavour, Recipe):
        why = f"DeepGEMM's library is built as well: {card}; DEEPGEMM=0 leaves it out"
        return generic, replace(flavour, notes=(why, *flavour.notes))
    if isinstance(generic, Recipe):
        seen = f" ({flavour.observed})" if flavour.observed else ""
        why = f"no DeepGEMM library, though {card}: {flavour.rule}: {flavour.subject}{seen}; DEEPGEMM=1 insists on it"
        generic = replace(generic, notes=(*generic.notes, why))
    return (generic,)


def wants_deepgemm(request: Request, cards: Sequence[Card], matrix: Matrix) -> str | None:
    """Say why DeepGEMM's library is wanted: DEEPGEMM=1, or unasked a card that its kernels are for; None if not."""
    if request.deepgemm is not None:
        return f"DEEPGEMM=1 ({request.deepgemm.origin})" if request.deepgemm.text == "1" else None
    own = parse_target(f"sm_{matrix.deepgemm_arch}").capability
    for card in cards:
        if card.capability == own:
            return f"GPU {card.index} ({card.name}) is of exactly {own}"
    return None


def decide_cell(request: Request, facts: Facts, matrix: Matrix, flavour: str) -> Recipe | Refusal:
    """Decide one cell. Options only add: architectures, host compiler and standard survive each other."""
    try:
        return _decide(request, facts, matrix, flavour)
    except _Refused as refused:
        return refused.refusal


def _decide(request: Request, facts: Facts, matrix: Matrix, flavour: str) -> Recipe:
    notes: list[str] = list(request.overridden)
    warnings: list[str] = []
    insists = _flag("NO_TC", request.no_tc, matrix)
    flags = _flags(request.nvcc_append_flags, matrix)
    written = request.cuda_arch or _DEFAULT_ARCH
    arch = _arch(written, matrix)
    notes.append(f"CUDA_ARCH={written.text} ({written.origin})")
    targets = _native(facts.cards, matrix, notes, warnings) if arch.keyword == "native" else arch.targets
    wanted = targets or tuple(Target(number) for number in matrix.portable_machine_code)
    if _flag("DEEPGEMM", request.deepgemm, matrix):
        wanted += parse_arch(matrix.deepgemm_arch, matrix).targets  # both flavours come from one toolkit
    chosen = choose_toolkit(
        request.toolkit, facts.toolkits, wanted, facts.driver_cuda, matrix, insists_tc=insists is False
    )
    if isinstance(chosen, Refusal):
        raise _Refused(chosen)
    toolkit, version = chosen.toolkit, chosen.version
    notes.append(f"toolkit: {toolkit.label} ({toolkit.origin}): {chosen.why}")
    warnings += chosen.warnings
    if arch.keyword == "portable":
        targets = _portable(version, matrix, notes)
    shown = "portable" if arch.keyword == "portable" else Arch(None, targets).text
    if flavour == "deepgemm":
        _check_deepgemm(toolkit, version, matrix)
        targets = _with_own_code(targets, matrix, notes)
    _check_targets(targets, toolkit, version, facts.toolkits, matrix)
    shared_cudart = _shared_cudart(toolkit, notes)
    no_tc = _no_tc(insists, request.no_tc, toolkit, matrix, notes)
    _check_driver(request, toolkit, version, targets, facts, notes, warnings, matrix)
    headers = _deepgemm_headers(request, facts, matrix, notes) if flavour == "deepgemm" else None
    minimum = matrix.deepgemm_minimum_compiler if flavour == "deepgemm" else matrix.minimum_compiler
    compiler = choose_compiler(
        request.nvcc_ccbin, facts.compilers, host_bounds(toolkit, matrix), minimum, matrix, toolkit, flags
    )
    if isinstance(compiler, Refusal):
        raise _Refused(compiler)
    notes.append(f"host compiler: {compiler.compiler.label}: {compiler.why}")
    warnings += compiler.warnings
    if flags:
        notes.append(f"NVCC_APPEND_FLAGS={shlex.join(flags)} (environment)")
    known = glibc_known_to(toolkit, matrix)
    if facts.glibc is not None and facts.glibc > known:
        warnings.append(
            f"glibc {facts.glibc.short} with CUDA {version.short}, whose headers know glibc up to {known.short}: "
            "functions such as rsqrt and sinpi may clash (class glibc-math-clash); a newer toolkit knows them"
        )
    warnings += [finding.text for finding in toolkit.findings if finding.code not in ("driver-stub-missing",)]
    deepgemm = flavour == "deepgemm"
    cell = Cell(
        id=f"cuda{version.short}-{shown}-{'notc' if no_tc else 'tc'}-{flavour}",
        kind="cuda",
        toolkit=version.release,
        arch=shown,
        tensor_cores=not no_tc,
        flavour=flavour,
    )
    uses_f = any(target.suffix == "f" for target in targets)
    unpinned = [toolkit.origin] if toolkit.origin in ("CUDA_HOME", "CUDA_PATH") else []
    if headers is not None and headers == facts.deepgemm_home:
        unpinned.append("DEEPGEMM_HOME")
    return Recipe(
        cell=cell,
        toolkit=toolkit,
        nvcc=toolkit.nvcc or toolkit.root / "bin" / "nvcc",
        host_compiler=compiler.compiler,
        targets=targets,
        standard=matrix.cuda_standard,
        no_tc=no_tc,
        shared_cudart=shared_cudart,
        flavour_arch=matrix.deepgemm_arch if deepgemm else None,
        deepgemm=headers,
        append_flags=flags,
        unpinned=tuple(unpinned),
        minimum_cmake=matrix.minimum_cmake_for_f if uses_f else matrix.minimum_cmake,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _flag(name: str, value: Value | None, matrix: Matrix) -> bool | None:
    if value is None or value.text in ("0", "1"):
        return None if value is None else value.text == "1"
    raise _Refused(_refusal(matrix, "option-value", f"{name}={value.text[:40]!r} ({value.origin})", expected="0 or 1"))


def _flags(value: Value | None, matrix: Matrix) -> tuple[str, ...]:
    if value is None:
        return ()
    try:
        words = tuple(shlex.split(value.text) if _SHELL.search(value.text) else value.text.split())
    except ValueError as error:
        raise _Refused(
            _refusal(matrix, "flags-replace-ours", f"NVCC_APPEND_FLAGS={value.text[:80]!r}", observed=str(error))
        ) from None
    ours = [word for word in words if _OURS.fullmatch(word) or _FILE.fullmatch(word) or _ROUNDING.search(word)]
    ours += [word for word in words if re.search(r"\s", word) and '"' in word]  # nvcc's variable cannot carry it
    if ours:
        raise _Refused(
            _refusal(
                matrix, "flags-replace-ours", f"NVCC_APPEND_FLAGS ({value.origin})", observed=shlex.join(ours)[:200]
            )
        )
    return words


def _arch(value: Value, matrix: Matrix) -> Arch:
    try:
        return parse_arch(value.text, matrix, subject=f"CUDA_ARCH={value.text[:80]!r} ({value.origin})")
    except UsageError as error:
        raise _Refused(
            Refusal(
                rule=error.code.removeprefix("build."),
                subject=error.subject,
                reason=error.rule,
                fix=error.fix or "",
                observed=error.observed,
                expected=error.expected,
            )
        ) from None


def _native(cards: Sequence[Card], matrix: Matrix, notes: list[str], warnings: list[str]) -> tuple[Target, ...]:
    if not cards:
        raise _Refused(
            _refusal(
                matrix, "native-without-gpu", "CUDA_ARCH=native", observed="no visible GPU", expected="a visible GPU"
            )
        )
    native = native_targets(cards, matrix)
    skipped = [
        f"GPU {one.card.index} ({one.card.name}"
        + (f", {one.card.capability[0]}.{one.card.capability[1]}" if one.card.capability else "")
        + f") is skipped: {one.reason}"
        for one in native.skipped
    ]
    if not native.targets:
        raise _Refused(_refusal(matrix, "native-without-usable-gpu", "CUDA_ARCH=native", observed="; ".join(skipped)))
    warnings += skipped
    notes += native.notes
    notes.append("native: " + " ".join(target.name for target in native.targets))
    return native.targets


def _portable(version: Version, matrix: Matrix, notes: list[str]) -> tuple[Target, ...]:
    portable = portable_targets(version, matrix)
    for target in portable.left_out:
        need = needs_toolkit(target, matrix)
        notes.append(f"portable without {target.name}: it needs toolkit {need.short} or later, this is {version.short}")
    notes.append("portable: " + " ".join(target.name for target in portable.targets))
    return portable.targets


def _check_targets(
    targets: Sequence[Target], toolkit: Toolkit, version: Version, toolkits: Sequence[Toolkit], matrix: Matrix
) -> None:
    missing = [target for target in targets if not supports(version, target, matrix)]
    if not missing:
        return
    young = [target for target in missing if needs_toolkit(target, matrix) > version.release]
    if not young:
        target = missing[0]
        renamed = matrix.architectures[target.number].renamed
        raise _Refused(
            _refusal(
                matrix,
                "arch-dropped-by-toolkit",
                target.name,
                observed=toolkit.label,
                expected=f"{Target(renamed, target.suffix, target.ptx).name}" if renamed else "another target",
            )
        )
    need = max(needs_toolkit(target, matrix) for target in young)
    able = [
        one
        for one in toolkits
        if one.usable and one.version and all(supports(one.version, target, matrix) for target in targets)
    ]
    choices = [Choice("toolkit", f"use {one.label}: --toolkit {one.root}", str(one.root)) for one in able]
    if not able:
        choices.append(Choice("toolkit", f"use a toolkit of {need.short} or later: --toolkit pypi:13.0", need.short))
    fallback = _fallback_ptx(min(target.number for target in young), version, matrix)
    if fallback:
        text = f"CUDA_ARCH={fallback.name}: PTX that the driver compiles at first use; slower, generic library only"
        choices.append(Choice("ptx", text, fallback.name))
    raise _Refused(
        _refusal(
            matrix,
            "arch-needs-toolkit",
            " ".join(target.name for target in young),
            reason="; ".join(
                f"{target.name} code needs toolkit {needs_toolkit(target, matrix).short} or later" for target in young
            ),
            observed=toolkit.label,
            choices=tuple(choices),
            needs_toolkit=need,
        )
    )


def _fallback_ptx(number: int, version: Version, matrix: Matrix) -> Target | None:
    fitting = [
        Target(arch.number, ptx=True)
        for arch in matrix.architectures.values()
        if arch.number <= number and not arch.tegra and supports(version, Target(arch.number), matrix)
    ]
    return max(fitting, key=lambda target: target.number, default=None)


def _check_deepgemm(toolkit: Toolkit, version: Version, matrix: Matrix) -> None:
    if version.release >= matrix.deepgemm_minimum:
        return
    raise _Refused(
        _refusal(
            matrix,
            "deepgemm-needs-toolkit",
            "DEEPGEMM=1",
            reason=f"sm_{matrix.deepgemm_arch} code needs toolkit {matrix.deepgemm_minimum.short} or later",
            observed=toolkit.label,
            needs_toolkit=matrix.deepgemm_minimum,
        )
    )


def _with_own_code(targets: tuple[Target, ...], matrix: Matrix, notes: list[str]) -> tuple[Target, ...]:
    """Add code of the exact kernels for the flavour's card where the asked-for targets have none."""
    own = parse_target(f"sm_{matrix.deepgemm_arch}")
    if any(serves(target, own.capability) for target in targets):
        return targets
    notes.append(f"the exact kernels are compiled for {own.name} too: nothing else here runs on {own.capability}")
    return (*targets, own)


def _deepgemm_headers(request: Request, facts: Facts, matrix: Matrix, notes: list[str]) -> DeepGemm:
    home = request.deepgemm_home
    if home is not None:
        if facts.deepgemm_home is None:
            observed = f"DEEPGEMM_HOME={home.text[:200]} ({home.origin}) has no sm120 headers"
            raise _Refused(_refusal(matrix, "deepgemm-needs-headers", "DEEPGEMM=1", observed=observed))
        _check_api(f"DEEPGEMM_HOME={home.text[:200]} ({home.origin})", facts.deepgemm_home, matrix)
        notes.append(f"DeepGEMM headers: {facts.deepgemm_home.include} (DEEPGEMM_HOME, unpinned)")
        return facts.deepgemm_home
    if facts.deepgemm_pinned is None:
        raise _Refused(
            _refusal(matrix, "deepgemm-needs-headers", "DEEPGEMM=1", observed="the pinned headers are not here")
        )
    _check_api("the pinned headers", facts.deepgemm_pinned, matrix)
    notes.append(f"DeepGEMM headers: {facts.deepgemm_pinned.include} (pinned wheel)")
    return facts.deepgemm_pinned


def _check_api(subject: str, headers: DeepGemm, matrix: Matrix) -> None:
    if headers.api == matrix.deepgemm_api:
        return
    templates, parameters = matrix.deepgemm_parameters
    if headers.api is None:
        observed = "the declaration of its kernel cannot be read"
    else:
        observed = f"{headers.template_parameters} template parameters and {headers.parameters} of the function"
        if (headers.template_parameters, headers.parameters) == (templates, parameters):
            observed += ", of other names or kinds"
    expected = f"{templates} and {parameters}, as in {matrix.deepgemm_source}"
    raise _Refused(_refusal(matrix, "deepgemm-api", subject, observed=observed, expected=expected))


def _shared_cudart(toolkit: Toolkit, notes: list[str]) -> str | None:
    """Return the runtime that the library will need to load, where the toolkit has none to hold in it."""
    if toolkit.cudart_static or not toolkit.cudart_link_name or toolkit.version is None:
        return None
    name = f"libcudart.so.{toolkit.version.major}"
    notes.append(f"COLI_CUDART=shared by itself: no libcudart_static.a in {toolkit.libdir}; the library needs {name}")
    return name


def _no_tc(insists: bool | None, value: Value | None, toolkit: Toolkit, matrix: Matrix, notes: list[str]) -> bool:
    have, need = toolkit.cublas, matrix.minimum_cublas
    if insists is True:
        notes.append(f"NO_TC=1 ({value.origin if value else 'default'}): no cuBLASLt block scaling")
        return True
    if have is not None and has_block_scaling(toolkit, matrix):
        later = f"libcublasLt.so.{have.major} is opened at run time, by the fast mode only"
        notes.append(f"cuBLASLt block scaling is compiled in: cuBLAS headers {have.text}; {later}")
        return False
    found = f"cuBLAS headers {have.text}" if have else f"no cuBLASLt headers in {toolkit.include or toolkit.root}"
    if insists is False:
        raise _Refused(
            _refusal(
                matrix,
                "tensor-cores-need-cublaslt",
                f"NO_TC=0 ({value.origin if value else 'default'})",
                observed=found,
                expected=f"cuBLAS headers of {need.short} or later",
                choices=(
                    Choice("toolkit", "make one with them from pinned wheels: --toolkit pypi:13.0", "pypi:13.0"),
                    Choice("no_tc", "build without them: NO_TC=1, or leave it unset", "NO_TC=1"),
                ),
                needs_toolkit=need,
            )
        )
    notes.append(f"NO_TC=1 by itself: {found}; block scaling needs {need.short} or later")
    return True


def _check_driver(
    request: Request,
    toolkit: Toolkit,
    version: Version,
    targets: Sequence[Target],
    facts: Facts,
    notes: list[str],
    warnings: list[str],
    matrix: Matrix,
) -> None:
    driver = facts.driver_cuda
    if driver is None:
        return
    if version.major > driver.major:
        text = f"the present driver serves CUDA up to {driver.short} and will refuse a library of {version.short}"
        if request.anyway:
            warnings.append(f"{text}; built all the same (--anyway)")
            return
        older = [one for one in facts.toolkits if one.usable and one.version and one.version.major <= driver.major]
        raise _Refused(
            _refusal(
                matrix,
                "driver-refuses-toolkit",
                toolkit.label,
                reason=text,
                observed=f"driver: CUDA {driver.short}",
                expected=f"a driver for CUDA {version.major}.0 or later",
                choices=(
                    Choice("driver", f"install a driver for CUDA {version.major}.0 or later", f"{version.major}.0"),
                    *(Choice("toolkit", f"use {one.label}: --toolkit {one.root}", str(one.root)) for one in older),
                    Choice("anyway", "build all the same, for another machine: --anyway", "--anyway"),
                ),
            )
        )
    if version.release > driver.release and any(target.ptx for target in targets):
        notes.append(
            f"PTX of CUDA {version.short} is not compiled by this driver (CUDA {driver.short}, error 222); "
            "the machine code in the library runs"
        )


def _refusal(
    matrix: Matrix,
    rule: str,
    subject: str,
    *,
    reason: str | None = None,
    observed: str | None = None,
    expected: str | None = None,
    choices: tuple[Choice, ...] = (),
    needs_toolkit: Version | None = None,
) -> Refusal:
    said = matrix.rule(rule)
    return Refusal(
        rule=rule,
        subject=subject,
        reason=f"{reason}: {said.reason}" if reason else said.reason,
        fix=said.fix,
        observed=observed,
        expected=expected,
        choices=choices,
        needs_toolkit=needs_toolkit,
    )
