"""The cause of a failed build, from its log. What is not known stays `unknown`: a guess costs more than a question."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["CLASSES", "UNKNOWN", "Cause", "Class", "classify"]

_MAX_LINE = 2000
_MAX_LINES = 200_000


@dataclass(frozen=True)
class Class:
    """One known kind of failure. ``patterns`` match within one line."""

    id: str
    cause: str
    fix: str
    patterns: tuple[re.Pattern[str], ...]


@dataclass(frozen=True)
class Cause:
    """What a log says. ``line`` counts from 1, None when the class is `unknown`."""

    id: str
    cause: str
    fix: str
    line: int | None
    text: str


UNKNOWN = "unknown"

# The names that glibc 2.41 and later share with CUDA's own functions.
_MATHS = r"(?:rsqrt|sinpi|cospi|tanpi|exp10|rootn|pown|powr|compoundn)f?"
# A line that has none of these has no cause: most lines of a log are passed over at once.
_HINTS = re.compile(
    r"error|fatal|fail|not |cannot|can't|kill|no |undefined|unsupported|memory|bad_alloc|signal|quota|unable|unresolved"
    r"|required|denied|read-only|library|unknown|heap|could",
    re.IGNORECASE,
)


def _class(id: str, cause: str, fix: str, *patterns: str) -> Class:
    return Class(id, cause, fix, tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns))


CLASSES = (
    _class(
        "out-of-memory-while-compiling",
        "the compiler was killed or got no memory",
        "build with fewer jobs (-j 1), close other programs, or build fewer architectures at once (CUDA_ARCH)",
        r"\bfatal error: Killed\b",
        r"\binternal compiler error: Killed\b",
        r"\b(?:cicc|ptxas|cudafe\+\+|cc1plus|nvlink|fatbinary|gcc|g\+\+)(?:\.exe)?'? (?:died|terminated) (?:due to|by) "
        r"signal (?:9|kill)",
        r"\bKilled signal terminated program\b",
        r"^(?:/bin/)?(?:ba)?sh: (?:line )?\d+: +\d* *Killed\b",
        r"\b(?:cc1plus|cicc|ptxas|nvcc|ld|cudafe\+\+)\b.*\bout of memory\b",
        r"\bout of memory allocating \d+ bytes\b",
        r"\bvirtual memory exhausted\b",
        r"\b(?:error|fatal|cc1plus|ld|LLVM ERROR)\b.*\bcannot allocate memory\b",
        r"\bstd::bad_alloc\b",
        r"\bLLVM ERROR: out of memory\b",
        r"\bfatal error C1060\b|\bcompiler is out of heap space\b",
        r"\bcollect2: fatal error: ld terminated with signal 9\b",
    ),
    _class(
        "no-space-left",
        "a disk is full: the build folder's or the one for temporary files",
        "free space there, or set TMPDIR and the build folder to another disk",
        r"\bno space left on device\b",
        r"\bdisk quota exceeded\b",
        r"\bthere is not enough space on the disk\b",
    ),
    _class(
        "arch-specific-code",
        "kernels that only an architecture's own form has (sm_120a) were compiled for its plain form, or for another",
        "compile DeepGEMM's kernels for sm_120a alone, as the build does; CUDA_ARCH is for the rest of the library",
        r"\bptxas\b.*\b(?:feature|instruction|modifier) .* not supported on \.target 'sm_(?:9\d|1\d\d)'",
        r"#error \"?DeepGEMM's kernels are compiled for sm_120a\b",
    ),
    _class(
        "arch-unsupported-by-toolkit",
        "the toolkit does not know an architecture that was asked for",
        "use a newer toolkit (--toolkit pypi:13.0), or take that target out of CUDA_ARCH",
        r"unsupported gpu architecture",
        r"\bvalue '(?:sm|compute|lto)_\w+' is not defined for option 'gpu-(?:name|architecture)'",
        r"\bunsupported gpu-(?:name|architecture)\b",
        r"\bnvcc fatal *: *value '(?:sm|compute)_\w+' is not defined\b",
        r"\b(?:target|feature|instruction|modifier) .* (?:not supported on|requires) \.?target '?sm_\w+",
    ),
    _class(
        "native-without-gpu",
        "the architecture `native` was asked of a tool that sees no GPU",
        "give CUDA_ARCH=portable or a list such as CUDA_ARCH=sm_86",
        r"\bCMAKE_CUDA_ARCHITECTURES\b.*\bnative\b.*\bno (?:NVIDIA )?GPU\b",
        r"\bno NVIDIA GPU was detected\b",
        r"\bcannot find valid GPU for '-arch=native'",
    ),
    _class(
        "host-compiler-too-new",
        "the host compiler is newer than the toolkit accepts",
        "install one within the toolkit's bounds and set NVCC_CCBIN, or use a newer toolkit",
        r"unsupported GNU version!? *(?:gcc versions later than|$)",
        r"\bgcc versions later than \d+ are not supported\b",
        r"\bunsupported clang version\b",
        r"\bunsupported Microsoft Visual Studio version\b",
    ),
    _class(
        "host-compiler-too-old",
        "the host compiler is older than the toolkit or the sources accept",
        "install a newer one within the toolkit's bounds and set NVCC_CCBIN",
        r"unsupported GNU version!? *gcc (?:versions? )?[\d.]+ and (?:below|earlier|older)",
        r"\bunrecognized command[- ]line option ['\"`‘]-std=(?:c|gnu)\+\+(?:17|20)",
        r"\berror: invalid value '(?:c|gnu)\+\+(?:17|20)' in '-std=",
    ),
    _class(
        "standard-unsupported-by-toolkit",
        "the toolkit's compiler does not know the C++ standard that was asked for",
        "use a newer toolkit: --toolkit pypi:13.0",
        r"\bvalue '(?:c|gnu)\+\+\d\w' is not defined for option 'std'",
        r"\bCUDA(?:17|20)\b.*\bdialect\b.*\bdoes not know\b",
    ),
    _class(
        "flag-not-accepted",
        "nvcc was given a flag twice or one that it does not know",
        "look at NVCC_APPEND_FLAGS, NVCC_PREPEND_FLAGS and CUDAFLAGS",
        r"\bnvcc fatal *: *redefinition of argument\b",
        r"\bnvcc fatal *: *unknown option\b",
    ),
    _class(
        "host-compiler-32bit",
        "the host compiler makes 32-bit code, or the sizes of its types are not those that CUDA expects",
        "use a 64-bit compiler: on Windows the x64 tools prompt, elsewhere g++ without -m32",
        r"\basm operand type size\(8\) does not match type/size implied by constraint 'r'",
        r"\b32-bit (?:host )?compilation (?:is )?(?:only supported|not supported)\b",
        r"\bcl\.exe\b.*\bHostx\d+[\\/]x86\b.*\berror\b",
        r"\bnvcc fatal *: *.*\b32[- ]bit\b",
        r"\bCUDA requires (?:a )?64-bit\b",
    ),
    _class(
        "host-compiler-missing",
        "there is no C++ compiler where it is looked for",
        "install one that the toolkit accepts (g++), or name it with NVCC_CCBIN",
        r"\bcannot find compiler '[^']*' in PATH\b",
        r"\bno CMAKE_CXX_COMPILER could be found\b",
        r"^(?:/bin/)?(?:ba|da)?sh: (?:line )?(?:\d+: )?(?:g\+\+|gcc|c\+\+|clang\+\+)[-.\d]*: (?:command )?not found\b",
        r"\b(?:g\+\+|gcc|c\+\+|clang\+\+)[-.\d]*: No such file or directory$",
        r"\b(?:gcc|g\+\+)[-.\d]*: fatal error: cannot execute [`'\"]cc1plus['\"]",
    ),
    _class(
        "nvcc-missing",
        "nvcc is not where it is looked for",
        "--toolkit pypi:13.0 makes a toolkit from pinned wheels; or install one and set CUDA_HOME",
        r"\bnvcc(?:\.exe)?: (?:command )?not found\b",
        r"\bno CMAKE_CUDA_COMPILER could be found\b",
        r"\bfailed to find nvcc\b",
        r"\bCMAKE_CUDA_COMPILER\b.*\bis not a full path to an existing compiler\b",
        r"'nvcc(?:\.exe)?' is not recognized as an internal or external command",
        r"\bnvcc(?:\.exe)?['\"’]?: No such file or directory\b",
    ),
    _class(
        "toolkit-incomplete",
        "a part of the toolkit is missing: a program that nvcc starts, its device library, or headers of its own",
        "install that toolkit again as a whole; --toolkit pypi:13.0 makes a complete one",
        r"\b(?:cicc|ptxas|fatbinary|cudafe\+\+|nvlink|bin2c)(?:\.exe)?: (?:command )?not found\b",
        r"'(?:cicc|ptxas|fatbinary|cudafe\+\+|nvlink)(?:\.exe)?' is not recognized\b",
        r"\b(?:cicc|ptxas|fatbinary|cudafe\+\+|nvlink): No such file or directory\b",
        r"\bcannot (?:find|open) (?:libdevice|.*libdevice[\w.]*\.bc)\b",
        r"\blibdevice\.10\.bc\b.*(?:not found|no such file)",
        r"\berror while loading shared libraries: libnvvm\b",
        r"\bfatal error: ['\"]?(?:crt/|nv/target|cuda/std/|cub/|thrust/)\S*['\"]?: No such file or directory",
        r"\bfatal error: ['\"]?(?:crt/|nv/target|cuda/std/)\S*['\"]? file not found",
    ),
    _class(
        "headers-missing",
        "headers of the CUDA runtime or of cuBLAS are not installed",
        "install those of nvcc's release (conda: cuda-cudart-dev; pip: nvidia-cuda-runtime), or --toolkit pypi:13.0",
        r"\bfatal error: ['\"]?(?:cuda|cublas|cudart|driver_types|device_launch|vector_types|mma)\w*\.h(?:pp)?['\"]?: "
        r"No such file or directory",
        r"\b(?:cuda|cublas)\w*\.h(?:pp)?['\"]? file not found\b",
        r"\bcannot open (?:source|include) file:? ['\"]?(?:cuda|cublas)\w*\.h",
        r"\bCould NOT find CUDAToolkit\b.*\bCUDAToolkit_INCLUDE",
    ),
    _class(
        "glibc-math-clash",
        "maths functions of a newer C library clash with the toolkit's own declarations",
        "use a newer toolkit (13.0 knows glibc 2.41), or build in a container with an older C library",
        rf"\bexception specification is incompatible with that of previous function ['\"]{_MATHS}['\"]",
        rf"\b{_MATHS}\(.*\b(?:has a )?different exception specifier\b",
        r"\bmathcalls(?:-\w+)?\.h\b.*\berror: exception specification\b",
    ),
    _class(
        "cublaslt-headers-too-old",
        "the cuBLAS headers have no block scaling: they are older than 12.8",
        "build with NO_TC=1, or use cuBLAS headers of 12.8 or later",
        r"\bcublasLtMatmulMatrixScale_t\b.*(?:undefined|not declared|does not name|unknown type|undeclared)",
        r"(?:undefined|not declared|undeclared|unknown).*\bcublasLtMatmulMatrixScale_t\b",
        r"\bCUBLASLT_MATMUL_(?:MATRIX_SCALE_VEC32_UE8M0|DESC_[AB]_SCALE_MODE)\b.*(?:undefined|not declared|undeclared)",
        r"(?:undefined|not declared|undeclared).*\bCUBLASLT_MATMUL_(?:MATRIX_SCALE_VEC32_UE8M0|DESC_[AB]_SCALE_MODE)\b",
    ),
    _class(
        "cudart-link-missing",
        "the linker does not find the CUDA runtime: its folder or the name without a version is missing",
        "use a toolkit with libcudart_static.a and libcudart.so; --toolkit pypi:13.0 makes one",
        r"\bcannot find -l(?::?lib)?cudart(?:_static)?\b",
        r"\bcannot find -lcudadevrt\b",
        r"\bunable to find library -lcudart",
        r"\blibrary not found for -lcudart",
        r"\bcannot open (?:input )?file ['\"]?cudart(?:_static)?\.lib",
        r"\bundefined (?:reference to|symbol:) [`'\"]?cuda(?:Malloc|Free|Memcpy|GetDevice|LaunchKernel|Stream)",
    ),
    _class(
        "driver-stub-missing",
        "something links the driver's library, which is not here",
        "nothing of ours links libcuda: remove -lcuda from NVCC_APPEND_FLAGS, or install the driver stub",
        r"\bcannot find -l(?::?lib)?cuda(?:\.so(?:\.1)?)?(?::|\s|$)",
        r"\bunable to find library -lcuda\b(?!rt)",
        r"\bcannot open (?:input )?file ['\"]?cuda\.lib",
        r"\bundefined (?:reference to|symbol:) [`'\"]?cu(?:Init|Ctx|Device|Mem|Module|Launch)",
    ),
    _class(
        "cublaslt-link-missing",
        "something links cuBLASLt, which our libraries open at run time",
        "remove what links it, or build with NO_TC=1",
        r"\bundefined (?:reference to|symbol:) [`'\"]?cublasLt",
        r"\bcannot find -lcublas(?:Lt)?\b",
        r"\bunresolved external symbol cublasLt\w*",
        r"\bcannot open (?:input )?file ['\"]?cublas(?:Lt)?\.lib",
    ),
    _class(
        "compiler-crashed",
        "a compiler ended by itself: a fault of the compiler or of this machine's memory",
        "build once more; if it ends at the same place, use another version of it",
        r"\binternal compiler error: Segmentation fault\b",
        r"\b(?:cicc|ptxas|cudafe\+\+|nvlink|fatbinary)'? died due to signal (?:4|6|7|8|11)\b",
    ),
    _class(
        "stale-build-folder",
        "the build folder was made from another source folder or by another generator",
        "remove that build folder; the session makes it again",
        r"\bThe source \"[^\"]*\" does not match the source \"[^\"]*\" used to generate cache\b",
        r"\bthe current CMakeCache\.txt directory .* is different than the directory\b",
        r"\bgenerator : \S+.*\bDoes not match the generator used previously\b",
        r"\bDoes not match the generator used previously\b",
    ),
    _class(
        "dates-in-the-future",
        "a file has a date in the future: the clock was set back, or files came from a machine whose clock was ahead",
        "set the clock, then give the sources today's date (touch)",
        r"\bmanifest 'build\.ninja' still dirty after \d+ tries\b",
        r"\bninja: error: .*\bsystem time is not set\b",
    ),
    _class(
        "configure-missing",
        "the build folder is not configured",
        "run the build session again: it configures first; look for an earlier failure of CMake",
        r"\bloading 'build\.ninja': No such file or directory\b",
        r"\bis not a directory, or does not contain a build file\b",
        r"\bError: could not load cache\b",
        r"\bno makefile found\b",
    ),
    _class(
        "cmake-too-old",
        "CMake is older than the build needs",
        "pip install cmake brings a newer one into the environment",
        r"\bCMake \d+\.\d+(?:\.\d+)? or higher is required\.? +You are running version\b",
        r"\bCMake \d+\.\d+(?:\.\d+)? or higher is required\b",
    ),
    _class(
        "build-tool-missing",
        "CMake or Ninja is not there",
        "pip install cmake ninja",
        r"\bCMake was unable to find a build program corresponding to\b",
        r"\b(?:cmake|ninja): (?:command )?not found\b",
    ),
    _class(
        "permission-denied",
        "a file or folder may not be written or started",
        "check who owns the build folder and whether its file system is mounted read-only or noexec",
        r"\b(?:error|fatal|cannot|failed|can't)\b.*\b(?:Permission denied|Read-only file system)\b",
        r"\bcan't create [^:]*: (?:Permission denied|Read-only file system)",
    ),
)
"""In order of weight: where a line fits several, the first counts."""


def classify(log: str | Iterable[str]) -> Cause:
    """Return the first known cause in a log; errors that follow from it come later. Limits: 200 000 lines of 2000."""
    first = ""
    before: list[str] = []  # CMake breaks its messages over indented lines: they are read together
    for number, line in enumerate(log.splitlines() if isinstance(log, str) else log, 1):
        if number > _MAX_LINES:
            break
        text = line[:_MAX_LINE].rstrip()
        before = [*before[-2:], text.strip()] if text.startswith("  ") else [text]
        joined = " ".join(before)
        if not _HINTS.search(joined):
            continue
        for known in CLASSES:
            for tried in {text, joined}:
                if any(pattern.search(tried) for pattern in known.patterns):
                    return Cause(known.id, known.cause, known.fix, number, tried.strip())
        if not first and re.search(r"\b(?:error|fatal|failed)\b", text, re.IGNORECASE):
            first = text.strip()
    return Cause(UNKNOWN, "the log has no cause that is known", "read the log; its first error is shown", None, first)
