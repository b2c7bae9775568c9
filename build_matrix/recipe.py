"""What a decision hands on: a Recipe to build one cell, or a Refusal with its rule."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from coli.backends.targets import Target, parse_target
from coli.build_matrix.compilers import HostCompiler
from coli.build_matrix.deepgemm import DeepGemm
from coli.build_matrix.matrix import Cell
from coli.build_matrix.toolkits import Toolkit
from coli.build_matrix.version import Version
from coli.errors import BackendRefused, ColiError, UsageError

__all__ = ["NOT_OURS", "Choice", "Recipe", "Refusal"]

_USAGE_RULES = ("arch-unknown", "arch-below-minimum", "option-value", "flags-replace-ours")
NOT_OURS = (
    *("CXX", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"),
    *("CUDACXX", "CUDAFLAGS", "CUDAARCHS", "CUDAHOSTCXX", "NVCC_PREPEND_FLAGS"),
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES"),
    *("CMAKE_BUILD_TYPE", "CMAKE_TOOLCHAIN_FILE", "CMAKE_PREFIX_PATH", "CMAKE_INCLUDE_PATH", "CMAKE_LIBRARY_PATH"),
    # CMake's checks of the compilers run in projects of their own, which do not know our launchers.
    *(f"CMAKE_{language}_{what}_LAUNCHER" for language in ("C", "CXX", "CUDA") for what in ("COMPILER", "LINKER")),
    *("CMAKE_GENERATOR", "CMAKE_GENERATOR_INSTANCE", "CMAKE_GENERATOR_PLATFORM", "CMAKE_GENERATOR_TOOLSET"),
    *("CMAKE_PROGRAM_PATH", "CMAKE_CONFIGURATION_TYPES", "LD_RUN_PATH"),
)
"""Variables that sway CMake, the compilers or the link, and are no part of a build's identity: none reaches them."""


def _as_nvcc_reads(word: str) -> str:
    """Return a flag as nvcc takes it from its variable: of quotes it knows double ones, behind the option's name."""
    if not re.search(r"\s", word):
        return word
    name = re.match(r"--?[A-Za-z][\w-]*=|-[IDLU]|", word)
    at = name.end() if name else 0
    return f'{word[:at]}"{word[at:]}"'


@dataclass(frozen=True)
class Choice:
    """A way out of a refusal: what to do, and the value to give for it."""

    kind: str
    text: str
    value: str


@dataclass(frozen=True)
class Refusal:
    """One cell that is not built. ``needs_toolkit``: the first toolkit that could."""

    rule: str
    subject: str
    reason: str
    fix: str
    observed: str | None = None
    expected: str | None = None
    choices: tuple[Choice, ...] = ()
    needs_toolkit: Version | None = None
    notes: tuple[str, ...] = ()

    def error(self) -> ColiError:
        """Return the refusal as the exception that front ends render."""
        ways = "".join(f"\n            - {choice.text}" for choice in self.choices)
        kind = UsageError if self.rule in _USAGE_RULES else BackendRefused
        return kind(
            self.subject,
            self.reason,
            observed=self.observed,
            expected=self.expected,
            fix=self.fix + ways,
            code=f"build.{self.rule}",
        )


@dataclass(frozen=True)
class Recipe:
    """How to build one CUDA cell. ``notes`` say what was taken from where, ``warnings`` what may go wrong.

    ``shared_cudart``: the CUDA runtime that the library needs to load; None: it holds one.
    """

    cell: Cell
    toolkit: Toolkit
    nvcc: Path
    host_compiler: HostCompiler
    targets: tuple[Target, ...]
    standard: int
    no_tc: bool
    shared_cudart: str | None
    flavour_arch: str | None
    deepgemm: DeepGemm | None
    append_flags: tuple[str, ...]
    unpinned: tuple[str, ...]
    minimum_cmake: Version
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    def cmake_arguments(self) -> tuple[str, ...]:
        """Return the -D arguments, each whole: a path with spaces stays one argument."""
        arguments = [
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_CUDA_COMPILER={self.nvcc}",
            f"-DCUDAToolkit_ROOT={self.toolkit.root}",
            f"-DCMAKE_CXX_COMPILER={self.host_compiler.path}",
            f"-DCMAKE_CUDA_HOST_COMPILER={self.host_compiler.path}",
            f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(target.cmake for target in self.targets)}",
            f"-DCMAKE_CUDA_STANDARD={self.standard}",
            f"-DCOLI_NO_TC={'ON' if self.no_tc else 'OFF'}",
            f"-DCOLI_FLAVOUR={self.cell.flavour}",
        ]
        if not self.no_tc:
            arguments.append(f"-DCOLI_CUBLAS_INCLUDE={self.toolkit.include}")
        if self.shared_cudart is not None:
            # CMake's own checks link with nvcc, which would look for the static one.
            arguments += ["-DCOLI_CUDART=shared", "-DCMAKE_CUDA_FLAGS=-cudart shared"]
        if self.deepgemm is not None:
            arguments.append(f"-DCOLI_DEEPGEMM_INCLUDE={self.deepgemm.include}")
        return tuple(arguments)

    @property
    def all_targets(self) -> tuple[Target, ...]:
        """Return the targets of the whole library: those of the exact kernels, and the flavour's own."""
        own = () if self.flavour_arch is None else (parse_target(f"sm_{self.flavour_arch}"),)
        return tuple(dict.fromkeys((*self.targets, *own)))

    def nvcc_arguments(self) -> tuple[str, ...]:
        """Return what a direct call of nvcc needs: the same decisions, for probes and tests."""
        generated = [part for target in self.targets for part in ("-gencode", target.gencode)]
        return (f"-std=c++{self.standard}", "-ccbin", str(self.host_compiler.path), *generated, *self.append_flags)

    def environment_changes(self) -> dict[str, str | None]:
        """Return variables to set, or to unset (None), for CMake and what it starts: nothing else sways the compiler.

        nvcc reads NVCC_APPEND_FLAGS itself. LIBRARY_PATH lets the link find cudart where nvcc's own profile looks in a
        folder that wheels do not have.
        """
        changes: dict[str, str | None] = dict.fromkeys(NOT_OURS)
        changes["NVCC_CCBIN"] = None
        changes["CUDA_HOME"] = changes["CUDA_PATH"] = str(self.toolkit.root)
        changes["NVCC_APPEND_FLAGS"] = " ".join(map(_as_nvcc_reads, self.append_flags)) or None
        if self.toolkit.libdir is not None and not (self.toolkit.root / "lib64").is_dir():
            changes["LIBRARY_PATH"] = str(self.toolkit.libdir)
        return changes

    def identity(self) -> dict[str, object]:
        """Return what makes another build: flags, toolkit, host compiler, standard. Same identity, same objects."""
        return {
            "cell": self.cell.id,
            "toolkit": [str(self.toolkit.root), self.toolkit.version.text if self.toolkit.version else None],
            "cublas": self.toolkit.cublas.text if self.toolkit.cublas and not self.no_tc else None,
            "host_compiler": [
                str(self.host_compiler.path),
                self.host_compiler.family,
                self.host_compiler.version.text,
            ],
            "targets": [target.short for target in self.targets],
            "standard": self.standard,
            "no_tc": self.no_tc,
            "shared_cudart": self.shared_cudart,
            "flavour_arch": self.flavour_arch,
            "deepgemm": [str(self.deepgemm.include), self.deepgemm.sha256] if self.deepgemm else None,
            "append_flags": list(self.append_flags),
        }
