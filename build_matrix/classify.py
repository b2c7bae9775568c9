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
_GXX = r"(?:[\w.]{1,32}-){0,4}(?:g\+\+|gcc|c\+\+|clang\+\+)[-.\d]*"
_CUDA_HEADER = (
    r"(?:(?:cuda|cublas|cudart|cufft|cusparse|cusolver|curand|nvrtc|nvml|nvjitlink|driver_types|device_launch|vector_types"
    r"|cooperative_groups|mma)\w*\.h(?:pp)?|nvtx3/\w+\.hp*)"
)
_SYSTEM_HEADER = (
    r"(?:c?(?:std(?:lib|io|def|int)|string|math|float|limits|assert|errno|time)(?:\.h)?|bits/\S+?|features\.h|iostream|vector|map|memory"
    r"|algorithm|type_traits|utility|array|atomic|thread|mutex|sys/\w+\.h|unistd\.h|linux/\w+\.h)"
)
# Who refuses a name that was linked: GNU ld, lld and mold, MSVC.
_UNDEFINED = r"\b(?:undefined (?:reference to(?: symbol)?|symbol:)|unresolved external symbol) [`'\"‘]?(?:__imp_)?"
_CUDA_NAME = r"(?-i:__nv_fp[468]\w*|cuda[A-Z]\w*|CU[A-Z]*_\w+|CUtensorMap\w*|cublasLt[A-Z]\w*)"
# Who misses a file that a makefile or CMake names.
_NO_RULE = r"(?:cannot find \S*/|'[^']*)"
_NEEDED = r"(?:: No such file|', needed by\b|'? not found\b)"
# A line that has none of these has no cause: most lines of a log are passed over at once.
_HINTS = re.compile(
    r"error|fatal|fail|not |cannot|can't|kill|no |undefined|unsupported|memory|bad_alloc|signal|quota|unable|unresolved"
    r"|required|denied|read-only|library|unknown|heap|could|insufficient|incompatible|truncated|out of range|newer"
    r"|is set|no rule|bad value",
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
        r"^Killed$",
        r"^make\b.*\*\*\* .*\] (?:Killed|Error 137)$",
        r"\bfailed with exit (?:code|status) 137\b",
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
        r"\binsufficient disk space\b",
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
        r"unsupported (?:CUDA )?gpu architecture",
        r"\bptxas\b.*\bunsupported \.target\b",
        r"\bCMAKE_CUDA_ARCHITECTURES\b.*\bdo not all work with this compiler\b",
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
        r"unsupported GNU version!? *gcc [\d.]+ and (?:up|above|later|newer)",
        # Where no version was checked, CUDA's front end meets what the newer compiler's own headers use.
        r"/(?:include/c\+\+|lib(?:64)?/gcc|include/(?:[\w-]+-linux-gnu/)?bits)/[^\s(:]+(?:\(\d+\)|:\d+(?::\d+)?): "
        r"error: identifier ['\"](?:__(?:builtin|is|has|remove)_|_Float\d|__Float\d|__SV)\w*['\"] is undefined",
        r"/include/c\+\+/[^\s(:]+\S{0,16}: error: parameter packs not expanded with\b",
    ),
    _class(
        "host-compiler-too-old",
        "the host compiler is older than the toolkit or the sources accept",
        "install a newer one within the toolkit's bounds and set NVCC_CCBIN",
        r"unsupported GNU version!? *gcc (?:versions? )?[\d.]+ and (?:below|earlier|older)",
        r"\bunrecognized command[- ]line option ['\"`‘]-std=(?:c|gnu)\+\+(?:1[7z]|2\w)",
        r"\bunrecognized argument in option ['\"`‘]-march=x86-64-v\d",
        r"\bbad value \(['\"`‘]x86-64-v\d['\"’]\) for ['\"`‘]-march=",
        r"\berror: invalid value '(?:c|gnu)\+\+(?:17|20)' in '-std=",
        r"\bThe -std=(?:c|gnu)\+\+(?:17|20) flag is not supported with the configured host compiler\b",
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
        "path-split",
        "a word that is no input file reached the compiler: most often half of a path with a space in it",
        "look for a path with spaces in CUDA_HOME, NVCC_CCBIN and NVCC_APPEND_FLAGS; the build session quotes its own",
        r"\bnvcc fatal *: *A single input file is required for a non-link phase\b",
        r"\bnvcc fatal *: *Don't know what to do with '",
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
        r"\bmachine type '?x64'? conflicts with (?:target )?machine type '?x86'?",
        r"\bi386 architecture of input file\b",
        r"\bgnu/stubs-32\.h: No such file\b",
    ),
    _class(
        "host-compiler-missing",
        "there is no C++ compiler where it is looked for",
        "install one that the toolkit accepts (g++), or name it with NVCC_CCBIN",
        r"\bcannot find compiler '[^']*' in PATH\b",
        r"\bno CMAKE_CXX_COMPILER could be found\b",
        r"\bCMAKE_CXX_COMPILER not set, after EnableLanguage\b",
        r"\bCMAKE_(?:CXX|CUDA_HOST)_COMPILER\b.*\bis not a full path\b",
        rf"^(?:/bin/)?(?:ba|da)?sh: (?:line )?(?:\d+: )?(?:/\S*/)?{_GXX}: (?:command )?not found\b",
        rf"^zsh: command not found: {_GXX}$",
        rf"\b{_GXX}['\"’]?: No such file or directory$",
        rf"\bNo such file or directory: ['\"](?:[^'\"]*/)?{_GXX}['\"]",
        rf"\bcommand ['\"](?:[^'\"]*/)?{_GXX}['\"] failed: No such file or directory\b",
        r"\b(?:cannot execute|error trying to exec) [`'\"‘]cc1plus['\"’]",
        r"'cl(?:\.exe)?' is not recognized as an internal or external command",
        r"\bMicrosoft Visual C\+\+ \d+\.\d+ or greater is required\b",
    ),
    _class(
        "nvcc-missing",
        "nvcc is not where it is looked for",
        "--toolkit pypi:13.0 makes a toolkit from pinned wheels; or install one and set CUDA_HOME",
        r"\bnvcc(?:\.exe)?: (?:command )?not found\b",
        r"\bcommand not found: nvcc$",
        r"\bno CMAKE_CUDA_COMPILER could be found\b",
        r"\bfailed to find nvcc\b",
        r"\bcould not find [`'\"]?nvcc\b",
        r"\bCould NOT find CUDAToolkit\b.*NVCC_EXECUTABLE\b",
        r"\bCUDA_TOOLKIT_ROOT_DIR not found\b",
        r"\bcannot find CUDA installation\b",
        r"\bCMAKE_CUDA_COMPILER\b.*\bis not a full path\b",
        r"\bCUDA_HOME environment variable is not set\b",
        r"\bNo such file or directory: ['\"](?:[^'\"]*/)?nvcc(?:\.exe)?['\"]",
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
        r"\bpath to libdevice library not specified\b",
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
        rf"\bfatal error: ['\"]?{_CUDA_HEADER}['\"]?: No such file or directory",
        rf"\b{_CUDA_HEADER}['\"]? file not found\b",
        rf"\bcannot open (?:source|include) file:? ['\"]?{_CUDA_HEADER}",
        r"\bCould NOT find CUDAToolkit\b.*\bCUDAToolkit_INCLUDE",
    ),
    _class(
        "deepgemm-headers-missing",
        "the headers of DeepGEMM or of CUTLASS, which come with them, are not where they are looked for",
        "let the build fetch the pinned ones, or set DEEPGEMM_HOME to a folder with deep_gemm/include",
        r"\bfatal error: ['\"]?(?:deep_gemm|cutlass|cute)/\S+?['\"]?(?:: No such file or directory| file not found)",
    ),
    _class(
        "python-headers-missing",
        "the headers of Python are not installed",
        "install them (Debian: python3-dev, Fedora: python3-devel), or use a Python that brings them",
        r"\bfatal error: ['\"]?Python\.h['\"]?(?:: No such file or directory| file not found)",
        r"\bCould NOT find Python\w*\b.*\bDevelopment\b",
    ),
    _class(
        "system-headers-missing",
        "headers of the C or C++ library are missing: the compiler is installed in part, or for another machine",
        "install the whole compiler (Debian: build-essential, or g++ of that version; Fedora: gcc-c++)",
        rf"\bfatal error: ['\"]?{_SYSTEM_HEADER}['\"]?(?:: No such file or directory| file not found)",
        rf"\bcannot open (?:source|include) file:? ['\"]?{_SYSTEM_HEADER}['\"]?(?::|$| )",
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
        "toolkit-too-old",
        "the toolkit's headers lack a name that the sources use",
        "use a newer toolkit: --toolkit pypi:13.0",
        rf"\bidentifier ['\"]{_CUDA_NAME}['\"] is undefined\b",
        rf"['‘\"]{_CUDA_NAME}['’\"] (?:was not declared in this scope|does not name a type|has not been declared)\b",
        rf"\b(?:use of undeclared identifier|unknown type name) ['\"]{_CUDA_NAME}['\"]",
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
        r"\blibrary not found: cudart(?:_static)?$",
        rf"{_NO_RULE}libcudart\w*\.(?:so|a){_NEEDED}",
        r"\bCUDA::cudart\w*\b.*\btarget was not found\b",
        rf"{_UNDEFINED}(?-i:(?:__)?cuda[A-Z])",
        r"\blibcudart\.so[.\d]*(?:, needed by \S+ not found|: cannot open shared object file)",
    ),
    _class(
        "driver-stub-missing",
        "something links the driver's library, which is not here",
        "nothing of ours links libcuda: remove -lcuda from NVCC_APPEND_FLAGS, or install the driver stub",
        r"\bcannot find -l(?::?lib)?cuda(?:\.so(?:\.1)?)?(?::|\s|$)",
        r"\bunable to find library -lcuda\b(?!rt)",
        r"\bcannot open (?:input )?file ['\"]?cuda\.lib",
        r"\blibrary not found: cuda$",
        rf"{_NO_RULE}libcuda\.so{_NEEDED}",
        r"\bCUDA::cuda_driver\b.*\btarget was not found\b",
        rf"{_UNDEFINED}(?-i:cu[A-Z])",
        r"\blibcuda\.so[.\d]*(?:, needed by \S+ not found|: cannot open shared object file)",
    ),
    _class(
        "cublaslt-link-missing",
        "something links cuBLASLt, which our libraries open at run time",
        "remove what links it, or build with NO_TC=1",
        rf"{_UNDEFINED}(?-i:cublas)",
        r"\b(?:cannot find|unable to find library|library not found for) -lcublas(?:Lt)?\b",
        r"\blibrary not found: cublas(?:Lt)?$",
        rf"{_NO_RULE}libcublas\w*\.(?:so|a){_NEEDED}",
        r"\bCUDA::cublas\w*\b.*\btarget was not found\b",
        r"\blibcublas(?:Lt)?\.so[.\d]*(?:, needed by \S+ not found|: cannot open shared object file)",
        r"\bcannot open (?:input )?file ['\"]?cublas(?:Lt)?\.lib",
    ),
    _class(
        "toolkits-mixed",
        "parts of different CUDA releases meet: a compiler, assembler, header or library is not of its neighbour's",
        "use one root for all: unset what points elsewhere (CUDA_HOME, PATH, CPATH, LIBRARY_PATH), remove old objects",
        r"\bptxas\b.*\bunsupported \.version \d+\.\d+; current version is\b",
        r"\bnvlink (?:error|fatal) *: *Input file '.*' newer than toolkit\b",
        r"\bCUDA compiler and CUDA toolkit headers are incompatible\b",
        r"\bversion [`'\"‘]libcud(?:art|a)\.so[.\d]*['\"’] not found\b",
    ),
    _class(
        "system-library-too-old",
        "a program or library was made for a newer C or C++ library than this system has",
        "use a toolkit that fits this system (--toolkit pypi:13.0), or take the foreign one off PATH",
        r"\bversion [`'\"‘](?:GLIBC|GLIBCXX|CXXABI)_[\d.]+['\"’] not found\b",
    ),
    _class(
        "relocation-truncated",
        "the code of all architectures together is larger than what the linker's jumps reach (2 GiB)",
        "build fewer architectures at once (CUDA_ARCH)",
        r"\brelocation truncated to fit\b",
        r"\brelocation R_\w+ out of range\b",
    ),
    _class(
        "compiler-crashed",
        "a compiler ended by itself: a fault of the compiler or of this machine's memory",
        "build once more; if it ends at the same place, use another version of it",
        r"\binternal compiler error\b(?!: Killed)",
        r"\bfatal error C1001\b",
        r"'(?:cicc|ptxas|cudafe\+\+|nvlink|fatbinary)(?:\.exe)?' died with status 0xC0",
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
        r"\bCUDA_ARCHITECTURES\b.*\b\d+f\b.*\bis not one of the following\b",
    ),
    _class(
        "build-tool-missing",
        "CMake or Ninja is not there",
        "pip install cmake ninja",
        r"\bCMake was unable to find a build program corresponding to\b",
        r"\b(?:cmake|ninja|make): (?:command )?not found\b",
        r"\bcommand not found: (?:cmake|ninja|make)$",
        r"\b(?:cmake|ninja|make): No such file or directory$",
        r"\bNo such file or directory: ['\"](?:cmake|ninja|make)['\"]",
        r"'(?:cmake|ninja)(?:\.exe)?' is not recognized as an internal or external command",
        r"\bNinja is required to\b",
    ),
    _class(
        "permission-denied",
        "a file or folder may not be written or started",
        "check who owns the build folder and whether its file system is mounted read-only or noexec",
        r"\b(?:error|fatal|cannot|failed|can't)\b.*\b(?:Permission denied|Read-only file system)\b",
        r"\bcan't create [^:]*: (?:Permission denied|Read-only file system)",
        r"^(?:/bin/)?(?:ba|da|z)?sh: .*: (?:Permission denied|Read-only file system)$",
        r"\bPermissionError: \[Errno 13\]",
        r"\bOSError: \[Errno 30\] Read-only file system\b",
        r"\bmake(?:\[\d+\])?: .*: Permission denied$",
        r"\bnvcc fatal *: *Could not open output file\b",
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
        if not text:  # CMake sets off the names in its messages by empty lines
            continue
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
