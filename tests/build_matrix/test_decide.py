from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from coli.build_matrix.arch import Card
from coli.build_matrix.compilers import HostCompiler, find_compilers
from coli.build_matrix.decide import Facts, decide_cell, decide_cells
from coli.build_matrix.deepgemm import DeepGemm
from coli.build_matrix.matrix import load_matrix, parse_cell
from coli.build_matrix.recipe import Recipe, Refusal
from coli.build_matrix.request import Request, for_cell, read_request
from coli.build_matrix.toolkits import Toolkit, find_toolkits
from coli.build_matrix.version import Version
from coli.errors import BackendRefused, UsageError

from machines import gcc, places, toolkit  # isort: skip

MATRIX = load_matrix()
GCC = tuple(
    HostCompiler(Path(f"/usr/bin/g++-{major}"), (f"g++-{major}",), "gcc", Version(major, 2), major == 14)
    for major in (14, 13, 12)
)


def tool(version: str, *, origin: str = "/usr/local", cublas: str | None = None, root: str = "") -> Toolkit:
    """Return a whole toolkit as the finder would describe it."""
    major, minor, *patch = map(int, version.split("."))
    folder = Path(root or f"/usr/local/cuda-{major}.{minor}")
    return Toolkit(
        root=folder,
        origin=origin,
        also=(),
        layout="plain",
        nvcc=folder / "bin/nvcc",
        version=Version(major, minor, *patch),
        version_source="nvcc --version",
        include=folder / "include",
        libdir=folder / "lib64",
        cudart_runtime=f"libcudart.so.{major}",
        cudart_link_name=True,
        cudart_static=True,
        stub=None,
        cublas=Version(*map(int, cublas.split("."))) if cublas else None,
        newest_gcc=None,
        newest_clang=None,
        newest_glibc=None,
        findings=(),
    )


def headers(include: str = "/pinned", **more: object) -> DeepGemm:
    """Return headers of DeepGEMM that our adapter was written for."""
    return replace(DeepGemm(Path(include), MATRIX.deepgemm_api, 28, 18, "0"), **more)  # type: ignore[arg-type]


def facts(*toolkits: Toolkit, cards: tuple[Card, ...] = (), driver: str | None = None, **more: object) -> Facts:
    cuda = Version(*map(int, driver.split("."))) if driver else None
    return replace(Facts(toolkits, GCC, cards, cuda), **more)  # type: ignore[arg-type]


def decide(found: Facts, flavour: str = "generic", **variables: str) -> Recipe | Refusal:
    return decide_cell(read_request(variables), found, MATRIX, flavour)


def built(outcome: Recipe | Refusal) -> Recipe:
    assert isinstance(outcome, Recipe), outcome
    return outcome


def refused(outcome: Recipe | Refusal, rule: str) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    assert outcome.rule == rule
    assert outcome.fix and outcome.reason and outcome.subject
    assert outcome.error().code == f"build.{rule}"
    return outcome


def test_defaults_are_portable_with_what_the_headers_have() -> None:
    recipe = built(decide(facts(tool("13.0.88"))))
    assert recipe.cell.id == "cuda13.0-portable-notc-generic"
    assert any(note.startswith("NO_TC=1 by itself: no cuBLASLt headers") for note in recipe.notes)
    assert "CUDA_ARCH=portable (default)" in recipe.notes
    recipe = built(decide(facts(tool("13.0.88", cublas="13.0.2"))))
    assert recipe.cell.id == "cuda13.0-portable-tc-generic"
    assert [target.short for target in recipe.targets] == ["80", "86", "89", "90", "120", "80-ptx", "120-ptx"]


def test_portable_says_what_an_older_toolkit_leaves_out() -> None:
    recipe = built(decide(facts(tool("12.4.131", cublas="12.4.5"))))
    assert recipe.cell.id == "cuda12.4-portable-notc-generic"
    assert any("portable without sm_120: it needs toolkit 12.8" in note for note in recipe.notes)
    assert any("cuBLAS headers 12.4.5; block scaling needs 12.8" in note for note in recipe.notes)


def test_cublas_headers_count_not_the_toolkit() -> None:
    assert built(decide(facts(tool("13.0.88", cublas="12.6.4")))).no_tc
    assert not built(decide(facts(tool("12.4.131", cublas="12.8.0")))).no_tc
    refusal = refused(decide(facts(tool("13.0.88", cublas="12.6.4")), NO_TC="0"), "tensor-cores-need-cublaslt")
    assert "NO_TC=0 (environment)" in refusal.subject and "12.6.4" in (refusal.observed or "")
    refused(decide(facts(tool("13.0.88")), NO_TC="0"), "tensor-cores-need-cublaslt")
    assert built(decide(facts(tool("13.0.88", cublas="13.0.2")), NO_TC="1")).no_tc


def test_no_tc_0_is_refused_with_ways_out_and_takes_the_toolkit_that_can() -> None:
    refusal = refused(decide(facts(tool("12.4.131")), NO_TC="0"), "tensor-cores-need-cublaslt")
    assert [choice.value for choice in refusal.choices] == ["pypi:13.0", "NO_TC=1"]
    both = facts(tool("13.0.88", origin="PATH"), tool("12.8.61", cublas="12.8.3"))
    assert built(decide(both)).toolkit.root == Path("/usr/local/cuda-13.0")
    recipe = built(decide(both, NO_TC="0"))
    assert recipe.toolkit.root == Path("/usr/local/cuda-12.8")
    assert any("it has the cuBLAS headers that NO_TC=0 needs" in note for note in recipe.notes)


def test_a_toolkit_without_the_static_runtime_gives_a_library_that_needs_the_shared_one() -> None:
    recipe = built(decide(facts(replace(tool("12.4.131"), cudart_static=False))))
    assert recipe.shared_cudart == "libcudart.so.12"
    assert {"-DCOLI_CUDART=shared", "-DCMAKE_CUDA_FLAGS=-cudart shared"} <= set(recipe.cmake_arguments())
    assert any("COLI_CUDART=shared by itself: no libcudart_static.a" in note for note in recipe.notes)
    plain = built(decide(facts(tool("12.4.131"))))
    assert plain.shared_cudart is None and not any("CUDART" in word for word in plain.cmake_arguments())
    assert plain.identity() != recipe.identity()


@pytest.mark.parametrize(("name", "text"), [("NO_TC", "yes"), ("DEEPGEMM", "2"), ("NO_TC", "01")])
def test_options_that_are_not_understood(name: str, text: str) -> None:
    outcome = decide_cells(read_request({name: text}), facts(tool("13.0.88")), MATRIX)[0]
    assert name in refused(outcome, "option-value").subject


def test_an_empty_variable_is_not_set() -> None:
    assert built(decide(facts(tool("13.0.88")), CUDA_ARCH="", NO_TC=" ")).cell.arch == "portable"


def test_options_only_add() -> None:
    """Architecture, host compiler and standard survive every combination (the standard once)."""
    found = facts(tool("13.0.88", cublas="13.0.2"), deepgemm_pinned=headers())
    for arch, no_tc, deepgemm in itertools.product(("portable", "sm_90", "sm_120a"), "01", "01"):
        request = read_request({"CUDA_ARCH": arch, "NO_TC": no_tc, "DEEPGEMM": deepgemm, "NVCC_CCBIN": "g++-13"})
        outcomes = [built(outcome) for outcome in decide_cells(request, found, MATRIX)]
        assert [one.cell.flavour for one in outcomes] == ["generic", "deepgemm"][: 1 + int(deepgemm)]
        for one in outcomes:
            assert one.cell.arch == arch
            assert one.host_compiler.path == Path("/usr/bin/g++-13")
            assert one.no_tc is (no_tc == "1")
            command, arguments = one.nvcc_arguments(), one.cmake_arguments()
            assert sum(word.startswith("-std") for word in command) == 1
            assert sum("STANDARD" in word for word in arguments) == 1
            assert "-DCMAKE_CUDA_HOST_COMPILER=/usr/bin/g++-13" in arguments
            assert one.standard == 17
        assert outcomes[0].flavour_arch is None
        for one in outcomes[1:]:
            assert one.flavour_arch == "120a"
            # A library that serves 12.0 only needs the exact kernels there; nothing that was asked for goes.
            added = [target.name for target in one.targets if target not in outcomes[0].targets]
            assert added == (["sm_120a"] if arch == "sm_90" else [])
            assert one.targets[: len(outcomes[0].targets)] == outcomes[0].targets
            assert "sm_120a" in [target.name for target in one.all_targets]


def test_deepgemm_needs_its_toolkit_and_its_headers() -> None:
    old = refused(decide(facts(tool("12.6.85")), "deepgemm", DEEPGEMM="1"), "deepgemm-needs-toolkit")
    assert "sm_120a code needs toolkit 12.8 or later" in old.reason
    refused(decide(facts(tool("12.8.93")), "deepgemm", DEEPGEMM="1"), "deepgemm-needs-headers")
    home = facts(tool("12.8.93"), deepgemm_home=headers("/home/dg"), deepgemm_pinned=headers())
    recipe = built(decide(home, "deepgemm", DEEPGEMM="1", DEEPGEMM_HOME="/home/dg"))
    assert (recipe.deepgemm, recipe.unpinned) == (home.deepgemm_home, ("DEEPGEMM_HOME",))
    assert "-DCOLI_DEEPGEMM_INCLUDE=/home/dg" in recipe.cmake_arguments()
    # A folder that was named and has nothing is not replaced by the pinned one.
    empty = facts(tool("12.8.93"), deepgemm_pinned=headers())
    refused(decide(empty, "deepgemm", DEEPGEMM="1", DEEPGEMM_HOME="/x"), "deepgemm-needs-headers")


@pytest.mark.parametrize(
    ("changes", "observed"),
    [
        ({"api": "1", "template_parameters": 27}, "27 template parameters and 18 of the function"),
        ({"api": "1"}, "28 template parameters and 18 of the function, of other names or kinds"),
        ({"api": None, "template_parameters": 0, "parameters": 0}, "the declaration of its kernel cannot be read"),
    ],
)
def test_other_headers_are_refused_before_compiling(changes: dict[str, object], observed: str) -> None:
    found = facts(tool("13.0.88"), deepgemm_home=headers("/home/dg", **changes), deepgemm_pinned=headers())
    refusal = refused(decide(found, "deepgemm", DEEPGEMM="1", DEEPGEMM_HOME="/home/dg"), "deepgemm-api")
    assert refusal.subject == "DEEPGEMM_HOME=/home/dg (environment)"
    assert (refusal.observed, refusal.expected) == (observed, "28 and 18, as in sgl-deep-gemm 0.2.5")
    pinned = facts(tool("13.0.88"), deepgemm_pinned=headers(**changes))
    assert refused(decide(pinned, "deepgemm", DEEPGEMM="1"), "deepgemm-api").subject == "the pinned headers"


def test_both_flavours_come_from_one_toolkit() -> None:
    found = facts(tool("12.6.85", origin="PATH"), tool("13.0.88"), deepgemm_pinned=headers())
    request = read_request({"CUDA_ARCH": "sm_90", "DEEPGEMM": "1"})
    assert {built(one).toolkit.root.name for one in decide_cells(request, found, MATRIX)} == {"cuda-13.0"}
    assert built(decide(found, CUDA_ARCH="sm_90")).toolkit.root.name == "cuda-12.6"


def test_a_young_target_is_refused_before_compiling_with_ways_out() -> None:
    refusal = refused(decide(facts(tool("12.4.131")), CUDA_ARCH="sm_90,sm_120a,103"), "arch-needs-toolkit")
    assert refusal.subject == "sm_120a sm_103"
    assert refusal.needs_toolkit == Version(12, 9)
    assert "sm_120a code needs toolkit 12.8 or later" in refusal.reason
    assert [(one.kind, one.value) for one in refusal.choices] == [("toolkit", "12.9"), ("ptx", "compute_90")]
    both = facts(tool("12.4.131", origin="CUDA_HOME"), tool("12.8.93"))
    refusal = refused(decide(both, CUDA_ARCH="120"), "arch-needs-toolkit")
    assert refusal.choices[0].value == "/usr/local/cuda-12.8"
    assert isinstance(refusal.error(), BackendRefused)


def test_a_renamed_target_is_named() -> None:
    refusal = refused(decide(facts(tool("13.0.88")), CUDA_ARCH="sm_101a"), "arch-dropped-by-toolkit")
    assert refusal.expected == "sm_110a"
    assert refused(decide(facts(tool("12.8.93")), CUDA_ARCH="110"), "arch-needs-toolkit").needs_toolkit == Version(
        13, 0
    )


def test_slips_in_the_architecture_name_the_variable() -> None:
    refusal = refused(decide(facts(tool("13.0.88")), CUDA_ARCH="sm_91"), "arch-unknown")
    assert "environment" in refusal.subject
    assert isinstance(refusal.error(), UsageError)
    refused(decide(facts(tool("13.0.88")), CUDA_ARCH="75"), "arch-below-minimum")


def test_native() -> None:
    cards = (Card(0, "RTX 3060", (8, 6)), Card(1, "GTX 1080 Ti", (6, 1)))
    recipe = built(decide(facts(tool("13.0.48"), cards=cards), CUDA_ARCH="native"))
    assert recipe.cell.id == "cuda13.0-sm_86-notc-generic"
    assert "-DCMAKE_CUDA_ARCHITECTURES=86-real" in recipe.cmake_arguments()
    assert "GPU 1 (GTX 1080 Ti, 6.1) is skipped: below sm_80" in recipe.warnings
    assert not any("native" in word or "61" in word for word in recipe.cmake_arguments())
    refused(decide(facts(tool("13.0.48")), CUDA_ARCH="native"), "native-without-gpu")
    refused(decide(facts(), CUDA_ARCH="native"), "native-without-gpu")  # before anything about toolkits
    refused(decide(facts(tool("13.0.48"), cards=cards[1:]), CUDA_ARCH="native"), "native-without-usable-gpu")


def test_no_toolkit_and_incomplete_ones() -> None:
    refusal = refused(decide(facts()), "toolkit-missing")
    assert refusal.choices[0].value == "pypi:13.0"
    with_gap = replace(tool("12.8.93"), version=None)
    refused(decide(facts(with_gap)), "toolkit-incomplete")


def test_the_toolkit_that_can_target_the_cards_is_chosen() -> None:
    card = (Card(0, "RTX 5080", (12, 0)),)
    old, new = tool("11.5.119", origin="PATH", root="/usr"), tool("12.8.61")
    recipe = built(decide(facts(old, new, cards=card), CUDA_ARCH="native"))
    assert recipe.toolkit == new and recipe.nvcc == new.nvcc
    assert "CUDA 11.5 cannot target sm_120" in " ".join(recipe.notes)
    assert any("several toolkits" in warning for warning in recipe.warnings)
    named = replace(old, origin="CUDA_HOME")
    refusal = refused(decide(facts(named, new, cards=card), CUDA_ARCH="native"), "arch-needs-toolkit")
    assert refusal.observed == "CUDA 11.5 in /usr"
    # Where it can target some, the user's choice wins with a warning.
    recipe = built(decide(facts(replace(tool("12.4.131"), origin="CUDA_HOME"), new)))
    assert recipe.toolkit.version == Version(12, 4, 131) and recipe.unpinned == ("CUDA_HOME",)
    assert any("cannot target sm_120" in warning for warning in recipe.warnings)


def test_path_wins_among_equals_and_the_driver_before_all() -> None:
    a, b = tool("12.8.93"), tool("12.9.86", origin="PATH")
    assert built(decide(facts(a, b))).toolkit == b
    assert built(decide(facts(b, a))).toolkit == b
    assert built(decide(facts(tool("13.0.88", origin="PATH"), a, driver="12.8"))).toolkit == a


def test_a_driver_that_will_refuse_is_announced_with_the_choices() -> None:
    home = tool("13.0.88", origin="CUDA_HOME")
    refusal = refused(decide(facts(home, tool("12.8.93"), driver="12.4")), "driver-refuses-toolkit")
    assert [one.kind for one in refusal.choices] == ["driver", "toolkit", "anyway"]
    assert "12.8" in refusal.choices[1].text and "--anyway" in str(refusal.error())
    request = replace(read_request({}), anyway=True)
    recipe = built(decide_cell(request, facts(home, driver="12.4"), MATRIX, "generic"))
    assert any("will refuse" in warning for warning in recipe.warnings)
    # Within a major the machine code runs and only the PTX does not.
    recipe = built(decide(facts(tool("12.8.93"), driver="12.4")))
    assert any("error 222" in note for note in recipe.notes)
    assert built(decide(facts(home, driver="13.0")))
    assert built(decide(facts(home)))


def test_toolkits_asked_for() -> None:
    found = facts(tool("12.4.131"), tool("13.0.88", origin="pypi:13.0", root="/cache/x"))

    def ask(text: str) -> Recipe | Refusal:
        return decide_cell(read_request({}, toolkit=text), found, MATRIX, "generic")

    assert built(ask("12.4")).toolkit.root.name == "cuda-12.4"
    assert built(ask("pypi:13.0")).toolkit.root == Path("/cache/x")
    assert built(ask("/usr/local/cuda-12.4/")).toolkit.root.name == "cuda-12.4"
    for text in ("12.9", "pypi:12.0", "/nowhere", "13.0.1"):
        refused(ask(text), "toolkit-missing")


def test_host_compilers() -> None:
    recipe = built(decide(facts(tool("12.4.131"))))  # accepts up to gcc 13
    assert recipe.host_compiler.path.name == "g++-13"
    assert any("gcc 14.2 is newer than 13" in note for note in recipe.notes)
    assert built(decide(facts(tool("12.8.93")))).host_compiler.path.name == "g++-14"
    for word in built(decide(facts(tool("12.4.131")))).nvcc_arguments():
        assert "unsupported" not in word
    assert built(decide(facts(tool("12.4.131")), NVCC_CCBIN="g++-12")).host_compiler.path.name == "g++-12"
    assert built(decide(facts(tool("12.4.131")), NVCC_CCBIN="/usr/bin/g++-12")).host_compiler.path.name == "g++-12"
    refusal = refused(decide(facts(tool("12.4.131")), NVCC_CCBIN="g++-14"), "host-compiler-unsupported")
    assert "newer than 13" in (refusal.observed or "")
    allowed = decide(facts(tool("12.4.131")), NVCC_CCBIN="g++-14", NVCC_APPEND_FLAGS="-allow-unsupported-compiler")
    assert any("lets it pass" in warning for warning in built(allowed).warnings)
    refused(decide(facts(tool("12.4.131")), NVCC_CCBIN="g++-99"), "host-compiler-missing")
    none = refused(decide(facts(tool("11.8.89"), compilers=GCC[:1])), "host-compiler-missing")
    assert "g++-11" in none.choices[0].text


@pytest.mark.parametrize(
    "flags",
    [
        "-std=c++20",
        "--std c++20",
        "-arch=sm_90",
        "-gencode arch=compute_90,code=sm_90",
        "-ccbin g++-9",
        "--use_fast_math",
        "-fmad=true",
        "--ftz=true",
        "-Xcompiler -ffast-math",
        "-Xcompiler=-ffp-contract=fast",
        "-Xcompiler -std=c++20",
        "-Xcompiler -Ofast",
        "-Xcompiler=-O2,-funsafe-math-optimizations",
        "-optf flags.txt",
        "--options-file=flags.txt",
        "@flags.txt",
        "-Xcompiler @flags.txt",
        "-Xcompiler=-O2,@flags.txt",
        "-D'X=\"a b\"'",
        "'",
        '"',
    ],
)
def test_flags_that_would_replace_ours_are_refused(flags: str) -> None:
    refused(decide(facts(tool("13.0.88")), NVCC_APPEND_FLAGS=flags), "flags-replace-ours")


def test_other_flags_are_kept_whole() -> None:
    recipe = built(decide(facts(tool("13.0.88")), NVCC_APPEND_FLAGS="-lineinfo '-I/my folder'"))
    assert recipe.append_flags == ("-lineinfo", "-I/my folder")
    assert recipe.nvcc_arguments()[-2:] == recipe.append_flags
    # nvcc 13.0 takes quotes behind an option's name only, and no single ones.
    assert recipe.environment_changes()["NVCC_APPEND_FLAGS"] == '-lineinfo -I"/my folder"'
    assert recipe.identity() != built(decide(facts(tool("13.0.88")))).identity()


@pytest.mark.parametrize(
    ("flags", "handed_on"),
    [
        ('-I"/my folder"', '-I"/my folder"'),
        ('-I "/my folder"', '-I "/my folder"'),
        ("--include-path=/my\\ folder -G", '--include-path="/my folder" -G'),
        ("-I/tmp/ä -DX=(1)*2", "-I/tmp/ä -DX=(1)*2"),
        ('-DX="a"', '-DX="a"'),
        ("-Xcompiler '-I/my folder'", '-Xcompiler -I"/my folder"'),
    ],
)
def test_flags_reach_nvcc_in_the_form_that_it_reads(flags: str, handed_on: str) -> None:
    recipe = built(decide(facts(tool("13.0.88")), NVCC_APPEND_FLAGS=flags))
    assert recipe.environment_changes()["NVCC_APPEND_FLAGS"] == handed_on


def test_what_else_would_sway_the_compiler_is_unset() -> None:
    changes = built(decide(facts(tool("13.0.88")))).environment_changes()
    assert [changes[name] for name in ("CUDAFLAGS", "NVCC_PREPEND_FLAGS", "CUDAARCHS", "NVCC_APPEND_FLAGS")] == [
        None
    ] * 4
    assert changes["CUDA_HOME"] == "/usr/local/cuda-13.0"


def test_a_c_library_that_the_headers_do_not_know_is_a_warning() -> None:
    for glibc, version, warned in ((Version(2, 41), "12.8.93", True), (Version(2, 41), "13.0.88", False),
                                   (Version(2, 42), "13.0.88", True), (Version(2, 36), "12.8.93", False)):  # fmt: skip
        recipe = built(decide(facts(tool(version), glibc=glibc)))
        assert any("glibc-math-clash" in warning for warning in recipe.warnings) is warned


def test_targets_with_f_need_a_newer_cmake() -> None:
    assert built(decide(facts(tool("13.0.88")), CUDA_ARCH="120a")).minimum_cmake == Version(3, 24)
    assert built(decide(facts(tool("13.0.88")), CUDA_ARCH="120f")).minimum_cmake == Version(3, 31, 8)


def test_each_path_is_one_argument() -> None:
    recipe = built(decide(facts(tool("12.8.93", root="/opt/my tools/cuda-12.8 ü"))))
    assert "-DCUDAToolkit_ROOT=/opt/my tools/cuda-12.8 ü" in recipe.cmake_arguments()
    assert "-DCMAKE_CUDA_COMPILER=/opt/my tools/cuda-12.8 ü/bin/nvcc" in recipe.cmake_arguments()


@pytest.mark.parametrize("id", [cell.id for cell in MATRIX.cells.values() if cell.kind == "cuda"])
def test_every_cell_of_the_matrix_is_built_or_refused_by_its_rule(id: str) -> None:
    cell = MATRIX.cells[id]
    assert cell.toolkit is not None
    found = facts(
        tool(cell.toolkit.short, cublas=cell.toolkit.short),
        cards=(Card(0, "RTX 4090", (8, 9)),),
        deepgemm_pinned=headers(),
    )
    outcome = decide_cell(for_cell(Request(), cell), found, MATRIX, cell.flavour)
    if cell.refused_by:
        refused(outcome, cell.refused_by)
    else:
        assert built(outcome).cell.id == id.replace("native", "sm_89")


def test_a_cell_overrides_variables_and_says_so() -> None:
    request = for_cell(
        read_request({"CUDA_ARCH": "sm_90", "NO_TC": "1"}), parse_cell("cuda13.0-sm_80+sm_86-notc-generic")
    )
    recipe = built(decide_cell(request, facts(tool("13.0.88")), MATRIX, "generic"))
    assert recipe.cell.id == "cuda13.0-sm_80+sm_86-notc-generic"
    assert recipe.notes[0] == "CUDA_ARCH=sm_90 (environment) does not count: the cell says sm_80 sm_86"


def test_a_stale_cuda_home_is_named_and_never_mixed(tmp_path: Path) -> None:
    (tmp_path / "opt/cuda-11.8/doc").mkdir(parents=True)
    whole = toolkit(tmp_path / "usr/local/cuda-12.6", "12.6.85", gcc=13)
    gcc(tmp_path / "usr/bin/g++-13", "13.3.0")
    where = places(tmp_path, CUDA_HOME="/opt/cuda-11.8")
    recipe = built(decide(Facts(find_toolkits(where), find_compilers(where))))
    assert recipe.toolkit.root == whole
    warning = next(text for text in recipe.warnings if "CUDA_HOME" in text)
    assert "bin/nvcc is missing" in warning and "is not used" in warning
    assert all("11.8" not in word for word in recipe.cmake_arguments())
