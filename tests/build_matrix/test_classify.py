# ruff: noqa: E501 - the lines of logs are as compilers print them
from __future__ import annotations

import pytest

from coli.build_matrix.classify import CLASSES, UNKNOWN, classify

# As the programs print them; beside the table of case A-T13.
LINES = [
    (
        "/usr/include/bits/mathcalls.h:206:1: error: exception specification in declaration does not match previous declaration",
        "glibc-math-clash",
    ),
    (
        "math_functions.h:5: error: declaration of 'double cospi(double) noexcept (true)' has a different exception specifier",
        "glibc-math-clash",
    ),
    (
        "/usr/include/c++/15/bits/x.h(3): catastrophic error: error while writing out: No space left on device",
        "no-space-left",
    ),
    (
        "/tmp/ccX.s: Fatal error: can't write 4096 bytes to section .text of x.o: 'No space left on device'",
        "no-space-left",
    ),
    ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "out-of-memory-while-compiling"),
    ("nvcc error   : 'cudafe++' died due to signal 11 (Invalid memory reference)", "compiler-crashed"),
    ("cc1plus: out of memory allocating 65536 bytes after a total of 1011712 bytes", "out-of-memory-while-compiling"),
    ("virtual memory exhausted: Cannot allocate memory", "out-of-memory-while-compiling"),
    ("terminate called after throwing an instance of 'std::bad_alloc'", "out-of-memory-while-compiling"),
    ("x.cu:3:10: fatal error: cuda_runtime.h: No such file or directory", "headers-missing"),
    ("x.cpp:1:10: fatal error: 'cublasLt.h' file not found", "headers-missing"),
    ("cuda_runtime.h:82:10: fatal error: crt/host_config.h: No such file or directory", "toolkit-incomplete"),
    ("nvcc: error while loading shared libraries: libnvvm.so.4: cannot open shared object file", "toolkit-incomplete"),
    ('x.cpp(9): error: identifier "cublasLtMatmulMatrixScale_t" is undefined', "cublaslt-headers-too-old"),
    (
        "x.cpp:9:3: error: ‘CUBLASLT_MATMUL_DESC_A_SCALE_MODE’ was not declared in this scope",
        "cublaslt-headers-too-old",
    ),
    ("/usr/bin/ld: cannot find -lcudart_static: No such file or directory", "cudart-link-missing"),
    ("/usr/bin/ld: cannot find -lcudadevrt", "cudart-link-missing"),
    ("ld.lld: error: unable to find library -lcuda", "driver-stub-missing"),
    ("ld.lld: error: undefined symbol: cublasLtMatmul", "cublaslt-link-missing"),
    ("x.o: undefined reference to `cuInit'", "driver-stub-missing"),
    ("nvcc fatal   : Value 'c++20' is not defined for option 'std'", "standard-unsupported-by-toolkit"),
    ("nvcc fatal   : redefinition of argument 'std'", "flag-not-accepted"),
    ("nvcc fatal   : Unknown option '-compress-mode'", "flag-not-accepted"),
    (
        "host_config.h:141:2: error: #error -- unsupported clang version! clang version must be less than 19",
        "host-compiler-too-new",
    ),
    (
        "host_config.h(157): fatal error C1189: #error:  -- unsupported Microsoft Visual Studio version!",
        "host-compiler-too-new",
    ),
    ("sh: 1: g++-13: not found", "host-compiler-missing"),
    ("bash: line 1: nvcc: command not found", "nvcc-missing"),
    ("  No CMAKE_CUDA_COMPILER could be found.", "nvcc-missing"),
    ("ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'", "arch-unsupported-by-toolkit"),
    # Block-scaled kernels for plain sm_120, nvcc 13.0.
    (
        "ptxas /tmp/t.ptx, line 1107; error   : Feature '.m8n16' not supported on .target 'sm_120'",
        "arch-specific-code",
    ),
    (
        "ptxas /tmp/t.ptx, line 1355; error   : Instruction 'mma with block scale' not supported on .target 'sm_120'",
        "arch-specific-code",
    ),
    (
        "backends/deepgemm/adapter.cuh:9:2: error: #error \"DeepGEMM's kernels are compiled for sm_120a and for nothing "
        'else"',
        "arch-specific-code",
    ),
    (
        "ptxas x.ptx, line 12; error   : Instruction 'mma' requires .target sm_120a or higher",
        "arch-unsupported-by-toolkit",
    ),
    ("nvcc warning : Cannot find valid GPU for '-arch=native', default arch is used", "native-without-gpu"),
    ("ptxas fatal   : Unsupported .version 8.7; current version is '8.4'", "toolkits-mixed"),
    ("x.cu:(.text+0x3): relocation truncated to fit: R_X86_64_PC32 against `.nv_fatbin'", "relocation-truncated"),
    ("cicc: /lib64/libc.so.6: version `GLIBC_2.38' not found (required by cicc)", "system-library-too-old"),
    ("x.cu:3:10: fatal error: deep_gemm/common/utils.cuh: No such file or directory", "deepgemm-headers-missing"),
    ("x.cpp:1:10: fatal error: Python.h: No such file or directory", "python-headers-missing"),
    (
        "/usr/include/stdio.h:27:10: fatal error: bits/libc-header-start.h: No such file or directory",
        "system-headers-missing",
    ),
    ('x.cu(7): error: identifier "cudaGetDriverEntryPointByVersion" is undefined', "toolkit-too-old"),
    ("nvcc fatal   : Don't know what to do with 'tools/cuda-12.8/include'", "path-split"),
    ("mkdir: cannot create directory 'build': Read-only file system", "permission-denied"),
    ("CMake 3.24 or higher is required.  You are running version 3.16.3", "cmake-too-old"),
    ('  CMake was unable to find a build program corresponding to "Ninja".', "build-tool-missing"),
    (
        "ninja: error: manifest 'build.ninja' still dirty after 100 tries, perhaps system time is not set",
        "dates-in-the-future",
    ),
    ("Error: generator : Ninja\nDoes not match the generator used previously: Unix Makefiles", "stale-build-folder"),
]


@pytest.mark.parametrize(("line", "kind"), LINES)
def test_lines(line: str, kind: str) -> None:
    assert classify(line).id == kind


def test_the_first_cause_counts_not_what_follows_from_it() -> None:
    log = """[1/9] Building CUDA object x.cu.o
FAILED: x.cu.o
/usr/local/cuda/bin/nvcc -forward-unknown-to-host-compiler -c x.cu
x.cu(12): warning #177-D: variable "y" was declared but never referenced
/usr/local/cuda-12.1/include/crt/host_config.h:132:2: error: #error -- unsupported GNU version! gcc versions later than 12
nvcc fatal   : Unsupported gpu architecture 'compute_120'
/usr/bin/ld: cannot find -lcudart
ninja: build stopped: subcommand failed.
"""
    cause = classify(log)
    assert (cause.id, cause.line) == ("host-compiler-too-new", 5)
    assert "gcc versions later than 12" in cause.text
    assert cause.fix


def test_messages_that_cmake_breaks_over_lines_are_read() -> None:
    log = """CMake Error at CMakeLists.txt:4 (project):
  CMAKE_CUDA_ARCHITECTURES is set to "native", but the machine has
  no NVIDIA GPU.
"""
    assert classify(log).id == "native-without-gpu"


@pytest.mark.parametrize(
    "log",
    [
        "",
        "error: expected ';' before '}' token",
        "ninja: build stopped: subcommand failed.",
        "-- Looking for pthread.h - not found",
        "-- Performing Test HAVE_X - Failed",
        "nvcc -I/usr/include -o no_space_left.o -lcuda -lcudart",
        "error: 'killed' was not declared in this scope",
        "x.cpp:3:10: fatal error: mylib.h: No such file or directory",
        "warning: memory may be exhausted",
        "undefined reference to `my_function'",
        "undefined reference to `curl_easy_init'",
        'x.cu(3): error: identifier "__builtin_mine" is undefined',
        "error: Killed is not a type",
        "nvcc fatal   : Failed to preprocess host compiler properties.",
        "error: static assertion failed: sm_90 wanted",
    ],
)
def test_what_is_not_known_stays_unknown(log: str) -> None:
    assert classify(log).id == UNKNOWN
    assert classify(log).line is None


def test_unknown_shows_the_first_error() -> None:
    assert classify("fine\nx.cpp:1: error: nonsense\nx.cpp:2: error: more").text == "x.cpp:1: error: nonsense"


def test_limits_hold() -> None:
    assert classify(["x"] * 200_001 + ["nvcc: not found"]).id == UNKNOWN
    assert classify("error " + "a" * 5000 + " nvcc: not found").id == UNKNOWN
    assert classify("\x00\xff error \u2028 nvcc: not found").id == "nvcc-missing"


def test_classes_are_told_apart() -> None:
    assert len({known.id for known in CLASSES}) == len(CLASSES)
    assert {kind for _, kind in LINES} >= {known.id for known in CLASSES} - {
        "host-compiler-32bit",
        "configure-missing",
        "glibc-math-clash",
        "host-compiler-too-old",  # in the cases, below
    }
    assert (
        classify("#error -- unsupported GNU version! gcc 4.7 and below are not supported!").id
        == "host-compiler-too-old"
    )
