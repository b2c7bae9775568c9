from __future__ import annotations

import os
from pathlib import Path

import pytest

from coli.backends.files import is_file, is_folder, is_there
from coli.build_matrix.choose import ChosenToolkit, choose_toolkit
from coli.build_matrix.compilers import find_compilers
from coli.build_matrix.headers import newest_compilers, newest_glibc
from coli.build_matrix.matrix import load_matrix
from coli.build_matrix.recipe import Refusal
from coli.build_matrix.request import Value
from coli.build_matrix.toolkits import Places, Toolkit, find_toolkits, probe_toolkit
from coli.build_matrix.version import Version

from machines import nvcc, places, program, toolkit  # isort: skip


def only(found: tuple[Toolkit, ...]) -> Toolkit:
    assert len(found) == 1, [one.root for one in found]
    return found[0]


def codes(one: Toolkit) -> set[str]:
    return {finding.code for finding in one.findings}


def test_an_installed_toolkit_is_whole(tmp_path: Path) -> None:
    toolkit(tmp_path / "usr/local/cuda-12.4", "12.4.131", gcc=13, clang=18, cublas="12.4.5")
    (tmp_path / "usr/local/cuda").symlink_to("cuda-12.4")
    one = only(find_toolkits(places(tmp_path, "/usr/local/cuda/bin:/usr/bin")))
    assert one.root == tmp_path / "usr/local/cuda-12.4"
    assert (one.origin, one.also[0]) == ("PATH", str(tmp_path / "usr/local/cuda"))
    assert (one.version, one.version_source) == (Version(12, 4, 131), "nvcc --version")
    assert one.findings == () and one.usable
    assert (one.newest_gcc, one.newest_clang) == (13, 17)  # "must be less than 18"
    assert one.cublas == Version(12, 4, 5)
    assert one.libdir == one.root / "lib64"


def test_all_are_listed_newest_folder_first(tmp_path: Path) -> None:
    for version in ("11.8.89", "12.10.1", "12.9.86"):
        toolkit(tmp_path / f"usr/local/cuda-{'.'.join(version.split('.')[:2])}", version)
    toolkit(tmp_path / "opt/cuda", "13.0.88")
    found = find_toolkits(places(tmp_path))
    assert [one.root.name for one in found] == ["cuda-12.10", "cuda-12.9", "cuda-11.8", "cuda"]


def test_a_link_on_path_leads_to_its_root(tmp_path: Path) -> None:
    toolkit(tmp_path / "opt/nvidia/12.8", "12.8.93")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvcc").symlink_to(tmp_path / "opt/nvidia/12.8/bin/nvcc")
    assert only(find_toolkits(places(tmp_path))).root == tmp_path / "opt/nvidia/12.8"


def test_a_script_on_path_leads_to_its_root(tmp_path: Path) -> None:
    real = toolkit(tmp_path / "usr/local/cuda-13.0", "13.0.88")
    wrapper = program(tmp_path / "usr/local/bin/nvcc")
    wrapper.write_text(f'#!/bin/sh\nexec {real}/bin/nvcc "$@"\n')
    assert only(find_toolkits(places(tmp_path, "/usr/local/bin"))).root == real


def test_a_compiler_cache_is_no_toolkit(tmp_path: Path) -> None:
    program(tmp_path / "usr/bin/ccache")
    (tmp_path / "usr/lib/ccache/bin").mkdir(parents=True)
    (tmp_path / "usr/lib/ccache/bin/nvcc").symlink_to("../../../bin/ccache")
    assert find_toolkits(places(tmp_path, "/usr/lib/ccache/bin")) == ()


def test_a_distribution_has_its_parts_below_usr(tmp_path: Path) -> None:
    nvcc(tmp_path / "usr/lib/nvidia-cuda-toolkit/bin/nvcc", "12.4.131")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvcc").symlink_to("../lib/nvidia-cuda-toolkit/bin/nvcc")
    for name in ("include/cuda_runtime.h", "lib/x86_64-linux-gnu/libcudart_static.a", "lib/libfoo.so"):
        (tmp_path / "usr" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "usr" / name).touch()
    one = only(find_toolkits(places(tmp_path)))
    assert (one.root, one.layout) == (tmp_path / "usr", "distribution")
    assert one.libdir == tmp_path / "usr/lib/x86_64-linux-gnu"
    assert one.usable


def test_wheels_and_made_ones(tmp_path: Path) -> None:
    site = tmp_path / "venv/lib/python3.12/site-packages"
    wheel = toolkit(site / "nvidia/cu13", "13.0.88")
    (wheel / "lib64").rename(wheel / "lib")
    for name in ("lib/libcudart.so", "lib/stubs/libcuda.so"):
        (wheel / name).unlink()
    (site / "nvidia/cuda_nvcc/bin").mkdir(parents=True)  # the cu12 wheels have no nvcc
    made = toolkit(tmp_path / "cache/x", "13.0.88")
    found = find_toolkits(Places({"PATH": "", "VIRTUAL_ENV": "/venv"}, "x86_64", tmp_path, made={"pypi:13.0": made}))
    assert [(one.origin, one.layout) for one in found] == [("wheel", "wheel"), ("pypi:13.0", "made")]
    one = found[0]
    assert (one.cudart_runtime, one.cudart_link_name, one.cudart_static, one.stub) == (
        "libcudart.so.13",
        False,
        True,
        None,
    )
    assert codes(one) == {"cudart-link-name-missing", "driver-stub-missing"}
    assert one.usable


def test_conda_has_everything_below_targets(tmp_path: Path) -> None:
    prefix = toolkit(tmp_path / "conda/envs/my env", "12.6.77")
    target = prefix / "targets/x86_64-linux"
    target.mkdir(parents=True)
    (prefix / "include").rename(target / "include")
    (prefix / "lib64").rename(target / "lib")
    for name in ("lib64", "lib"):  # of the environment, without a part of CUDA
        (prefix / name).mkdir()
        (prefix / name / "libz.so").touch()
    one = only(find_toolkits(places(tmp_path, CONDA_PREFIX="/conda/envs/my env")))
    assert (one.include, one.libdir) == (target / "include", target / "lib")
    assert (one.layout, one.findings) == ("targets", ())


@pytest.mark.parametrize(
    ("make", "says", "fix"),
    [
        (None, "no such folder", "unset CUDA_HOME"),
        ("doc/EULA.txt", "bin/nvcc is missing", "unset CUDA_HOME"),
        ("nvcc", "bin/nvcc is missing", "the folder above bin"),
    ],
)
def test_a_stale_cuda_home_is_named(tmp_path: Path, make: str | None, says: str, fix: str) -> None:
    if make:
        (tmp_path / "opt/cuda-11.8" / make).parent.mkdir(parents=True)
        (tmp_path / "opt/cuda-11.8" / make).touch()
    one = only(find_toolkits(places(tmp_path, CUDA_HOME="/opt/cuda-11.8/")))
    assert (one.usable, one.version, one.missing) == (False, None, ("bin/nvcc",))
    assert says in one.findings[0].text and "CUDA_HOME=" in one.findings[0].text
    assert fix in one.findings[0].fix


def test_a_variable_that_names_the_program(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "opt/cuda-12.8", "12.8.93")
    found = find_toolkits(places(tmp_path, "", CUDA_HOME="/opt/cuda-12.8/bin/nvcc"))
    assert found[0].findings[0].fix == f"set CUDA_HOME={root}"


@pytest.mark.parametrize(
    ("remove", "code", "blocking"),
    [
        ("include/cuda_runtime.h", "headers-missing", True),
        ("lib64", "libraries-missing", True),
        ("lib64/libcudart_static.a", "cudart-static-missing", False),
        ("lib64/libcudart.so", "cudart-link-name-missing", False),
        ("lib64/stubs/libcuda.so", "driver-stub-missing", False),
    ],
)
def test_what_is_missing_is_one_finding_each(tmp_path: Path, remove: str, code: str, blocking: bool) -> None:
    root = toolkit(tmp_path / "cuda", "12.8.93")
    target = root / remove
    target.rename(tmp_path / "elsewhere")
    one = probe_toolkit(root, "PATH", places(tmp_path))
    assert [(finding.code, finding.blocking) for finding in one.findings] == [(code, blocking)]
    assert one.findings[0].fix
    assert one.usable is not blocking


def test_headers_of_another_release(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "cuda", "11.5.119")
    (root / "include/cuda.h").write_text("#define CUDA_VERSION 12080\n")
    one = probe_toolkit(root, "PATH", places(tmp_path))
    assert "headers-of-another-release" in codes(one) and not one.usable
    (root / "include/cuda.h").write_text("#define CUDA_VERSION 11040\n")
    one = probe_toolkit(root, "PATH", places(tmp_path))
    assert "headers-of-another-release" in codes(one) and one.usable


def test_an_nvcc_that_does_not_run(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "cuda", "12.8.93")
    program(root / "bin/nvcc", errors="nvcc: cannot execute binary file", status=126)
    (root / "version.json").write_text('{"cuda": {"name": "CUDA SDK", "version": "12.8.1"}}')
    one = probe_toolkit(root, "PATH", places(tmp_path))
    assert (one.version, one.version_source) == (Version(12, 8, 1), "version.json")
    assert "nvcc-does-not-run" in codes(one) and "126" in one.findings[0].text
    assert not one.usable


def test_an_nvcc_without_a_version(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "cuda", "12.8.93")
    program(root / "bin/nvcc", "hello")
    one = probe_toolkit(root, "PATH", places(tmp_path))
    assert (one.version, one.version_source) == (Version(12, 8), "cuda.h")
    (root / "include/cuda.h").write_text("#define CUDA_VERSION twelve\n")
    one = probe_toolkit(root, "PATH", places(tmp_path))
    assert "version-unknown" in codes(one) and not one.usable


def test_relative_entries_of_path_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc(tmp_path / "bin/nvcc", "12.8.93")
    monkeypatch.chdir(tmp_path)
    assert find_toolkits(places(tmp_path / "empty", "bin:.::")) == ()


def test_clang_and_gcc_bounds_of_real_headers() -> None:
    horizon = "#if (__clang_major__ >= 99)\n#error -- unsupported HOS clang version!\n#endif\n"
    gnu = "#if __GNUC__ > 15\n\n#error -- unsupported GNU version! gcc versions later than 15 are not supported!\n"
    clang = "#if (__clang_major__ >= 21) || (__clang_major__ < 3)\n#error -- unsupported clang version!\n"
    assert newest_compilers(horizon + gnu + clang) == (15, 20)
    assert newest_compilers("#if __GNUC__ >= 12\n#error -- unsupported GNU version!") == (11, None)
    assert newest_compilers("") == (None, None)


def test_c_library_that_headers_know() -> None:
    assert newest_glibc("#if __GNUC_PREREQ(2,41) && (__GLIBC_USE_ISOC23)") == Version(2, 41)
    assert newest_glibc("#if __GLIBC_PREREQ (2, 42)\n#if __GNUC_PREREQ(2,41)") == Version(2, 42)
    assert newest_glibc("double rsqrt(double x);") == Version(2, 40)
    assert newest_glibc("") is None


def test_the_toolkit_of_this_machine(tmp_path: Path) -> None:
    root = Path("/usr/local/cuda")
    if not (root / "bin/nvcc").is_file():
        pytest.skip("not run: no toolkit in /usr/local/cuda")
    found = find_toolkits(Places({"PATH": "/usr/bin:/bin"}, "x86_64"))
    one = next(one for one in found if one.root.resolve() == root.resolve())
    assert one.usable and one.version_source == "nvcc --version"
    assert one.newest_gcc is not None and one.newest_gcc >= 11


def test_a_folder_that_was_asked_for_counts_wherever_it_lies(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "my tools ü/cuda", "12.8.93", gcc=14)
    link = tmp_path / "link"
    link.symlink_to(root)
    for asked in (root, link):
        found = find_toolkits(Places({"PATH": ""}, "x86_64", tmp_path, asked=asked))
        chosen = choose_toolkit(Value(str(asked), "--toolkit"), found, (), None, load_matrix())
        assert isinstance(chosen, ChosenToolkit) and chosen.toolkit.root == asked
    known = find_toolkits(Places({"PATH": "", "CUDA_HOME": str(root)}, "x86_64", tmp_path, asked=link))
    chosen = choose_toolkit(Value(str(link), "--toolkit"), known, (), None, load_matrix())
    assert isinstance(chosen, ChosenToolkit) and chosen.toolkit.root == root and len(known) == 1
    absent = find_toolkits(Places({"PATH": ""}, "x86_64", tmp_path, asked=tmp_path / "none"))
    refused = choose_toolkit(Value(str(tmp_path / "none"), "--toolkit"), absent, (), None, load_matrix())
    assert isinstance(refused, Refusal) and "no such folder" in str(refused.observed)


def test_a_relative_cuda_home_becomes_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit(tmp_path / "cuda", "12.8.93", gcc=14)
    monkeypatch.chdir(tmp_path)
    assert find_toolkits(Places({"PATH": "", "CUDA_HOME": "cuda"}, "x86_64"))[0].root == tmp_path / "cuda"


def test_flags_of_the_user_do_not_make_a_toolkit_look_broken(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "cuda", "12.8.93", gcc=14)
    text = (root / "bin/nvcc").read_text()
    (root / "bin/nvcc").write_text(
        text.replace("\n", '\n[ -z "$NVCC_APPEND_FLAGS$NVCC_PREPEND_FLAGS" ] || exit 1\n', 1)
    )
    flags = {"NVCC_APPEND_FLAGS": "-optf x", "NVCC_PREPEND_FLAGS": "--bogus"}
    found = find_toolkits(Places({"PATH": "/usr/bin:/bin", "CUDA_HOME": str(root), **flags}, "x86_64"))
    assert found[0].usable


def test_a_path_that_cannot_be_looked_at_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "/" + "a" * 5000
    names = ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "VIRTUAL_ENV")
    found = find_toolkits(Places({"PATH": long, **dict.fromkeys(names, long)}, "x86_64", tmp_path))
    assert [one.usable for one in found] == [False]
    assert find_compilers(Places({"PATH": long}, "x86_64"), long) == ()

    def forbidden(path: object, *_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    # A superuser's test cannot have such a folder; below Python 3.14 Path.is_file hands the error on.
    monkeypatch.setattr(os, "stat", forbidden)
    assert not (is_file(tmp_path) or is_folder(tmp_path) or is_there(tmp_path))


def test_a_variable_that_does_not_count_beside_what_is_asked_for_is_named(tmp_path: Path) -> None:
    older = toolkit(tmp_path / "older", "12.8.93", gcc=14)
    newer = toolkit(tmp_path / "newer", "13.0.88", gcc=15)
    (tmp_path / "empty").mkdir()
    for home, said in ((older, "13.0 is asked for (--cell)"), (tmp_path / "empty", "bin/nvcc is missing")):
        variables = {"PATH": f"{newer}/bin:/usr/bin:/bin", "CUDA_HOME": str(home)}
        found = find_toolkits(Places(variables, "x86_64", site_folders=()))
        chosen = choose_toolkit(Value("13.0", "--cell"), found, (), None, load_matrix())
        assert isinstance(chosen, ChosenToolkit) and chosen.toolkit.version == Version(13, 0, 88)
        assert any(f"CUDA_HOME={home} is not used" in text and said in text for text in chosen.warnings)
