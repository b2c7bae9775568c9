from __future__ import annotations

import hashlib
import os
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from coli.build_matrix.tool import Answer
from coli.build_matrix.toolkits import Places, probe_toolkit
from coli.build_matrix.wheels import (
    Bundle,
    Wheel,
    load_bundles,
    made_bundle,
    make_bundle,
    read_bundles,
)
from coli.errors import ColiError, UsageError


def wheel_file(
    folder: Path, name: str, files: dict[str, str], *, executable: tuple[str, ...] = (), link: str = ""
) -> str:
    """Write a wheel that pip accepts and return its hash."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            entry = zipfile.ZipInfo(file)
            entry.external_attr = (0o100755 if file in executable else 0o100644) << 16
            if file == link:
                entry.external_attr = 0o120777 << 16
            archive.writestr(entry, text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
        archive.writestr(f"{info}/licenses/License.txt", "licence")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def environment(folder: Path) -> dict[str, str]:
    """Return variables that let pip see ``folder`` and nothing else."""
    return {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}


NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"
FILES = {
    "nvidia/cu13/bin/nvcc": NVCC,
    "nvidia/cu13/include/cuda_runtime.h": "",
    "nvidia/cu13/lib/libcudart_static.a": "x",
    "nvidia/cu13/lib/libcudart.so.13": "x",
    "nvidia/cu13/lib/libnvvm.so.4": "x",
    "other/secret.txt": "not ours",
}


def toolkit_bundle(digest: str, extra: tuple[Wheel, ...] = ()) -> Bundle:
    wheel = Wheel("parts", "1.0", {"x86_64": digest}, None, "nvidia/cu13/")
    return Bundle("pypi:13.0", "toolkit", "cuda-13.0", "nvidia/cu13/", ("bin/nvcc",), "licence", (wheel, *extra))


def make(tmp_path: Path, bundle: Bundle, *options: str, pip: bool = False) -> Path:
    """Make a bundle, with pip itself or, in a fraction of the time, with a stand-in that copies all wheels."""
    python = Path(sys.executable)
    if not pip:
        python = tmp_path / "python"
        fresh = tmp_path / f"python-{threading.get_ident()}"  # two at once must not write what the other one runs
        fresh.write_text('#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done\ncp "$PIP_FIND_LINKS"/*.whl "$2"\n')
        fresh.chmod(0o755)
        fresh.replace(python)
    variables = environment(tmp_path / "index")
    return make_bundle(bundle, tmp_path / "my cache ü", "x86_64", variables, options, python=python)


def test_a_toolkit_is_made_once_and_then_offline(tmp_path: Path) -> None:
    bundle = toolkit_bundle(wheel_file(tmp_path / "index", "parts", FILES, executable=("nvidia/cu13/bin/nvcc",)))
    assert made_bundle(bundle, tmp_path / "my cache ü", "x86_64") is None
    root = make(tmp_path, bundle, pip=True)
    assert (root / "bin/nvcc").stat().st_mode & 0o111
    assert not (root / "include/cuda_runtime.h").stat().st_mode & 0o111
    assert (root / "lib64").readlink() == Path("lib")
    assert (root / "lib/libcudart.so").readlink() == Path("libcudart.so.13")
    assert (root / "lib/libnvvm.so").readlink() == Path("libnvvm.so.4")
    assert (root / "licenses/parts/License.txt").read_text() == "licence"
    assert not list(root.rglob("secret.txt"))
    assert sorted(path.name for path in root.parent.iterdir()) == sorted([root.name, root.name + ".lock"])
    found = probe_toolkit(root, "pypi:13.0", Places({"PATH": "/usr/bin:/bin"}, "x86_64"))
    assert found.usable and found.layout == "made" and found.cudart_link_name
    for file in (tmp_path / "index").iterdir():
        file.unlink()
    assert make(tmp_path, bundle) == root  # no index is asked again


@pytest.mark.parametrize("harm", ["cut", "remove", "add", "stamp"])
def test_a_tree_that_was_touched_is_made_again(tmp_path: Path, harm: str) -> None:
    bundle = toolkit_bundle(wheel_file(tmp_path / "index", "parts", FILES))
    root = make(tmp_path, bundle)
    file = root / "bin/nvcc"
    if harm == "cut":
        file.write_text("x")
    elif harm == "remove":
        file.unlink()
    elif harm == "add":
        (root / "include/evil.h").touch()
    else:
        (root / "coli-bundle.json").write_text("{")
    assert made_bundle(bundle, tmp_path / "my cache ü", "x86_64") is None
    assert make(tmp_path, bundle) == root
    assert file.read_text() == NVCC and not (root / "include/evil.h").exists()


def test_changed_bytes_are_seen_and_a_copy_of_the_cache_is_taken(tmp_path: Path) -> None:
    bundle = toolkit_bundle(wheel_file(tmp_path / "index", "parts", FILES))
    root = make(tmp_path, bundle)
    file, date = root / "bin/nvcc", (root / "bin/nvcc").stat()
    (root / "coli-bundle.json").rename(root / "away")
    (root / "away").rename(root / "coli-bundle.json")  # as a copy does: no date says which was first
    file.write_text(NVCC)
    assert made_bundle(bundle, tmp_path / "my cache ü", "x86_64") == root
    file.write_text(NVCC.swapcase())  # as long as before
    os.utime(file, ns=(date.st_atime_ns, date.st_mtime_ns))
    assert made_bundle(bundle, tmp_path / "my cache ü", "x86_64") is None
    assert make(tmp_path, bundle) == root and file.read_text() == NVCC


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    bundle = toolkit_bundle(wheel_file(tmp_path / "index", "parts", FILES))
    root = make(tmp_path, bundle)
    (root / "bin/nvcc").unlink()
    left = root.with_name(f".making-{root.name}-abc")
    left.mkdir()
    (left / "half.whl").touch()
    make(tmp_path, bundle)
    assert not left.exists()


def test_without_a_network_it_says_what_to_bring_and_how(tmp_path: Path) -> None:
    bundle = toolkit_bundle(wheel_file(tmp_path / "index", "parts", FILES))
    (tmp_path / "index").rename(tmp_path / "elsewhere")
    (tmp_path / "index").mkdir()
    with pytest.raises(ColiError) as caught:
        make(tmp_path, bundle, pip=True)
    assert caught.value.code == "build.wheels-download"
    assert "parts==1.0` on a machine" in (caught.value.fix or "") and "PIP_FIND_LINKS=FOLDER" in (
        caught.value.fix or ""
    )


@pytest.mark.parametrize("where", ["pip", "cache"])
def test_a_full_disk_is_no_fault_of_the_network(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = toolkit_bundle(wheel_file(tmp_path / "index", "parts", FILES))
    if where == "pip":
        said = "OSError: [Errno 28] No space left on device: 'x.whl'"
        monkeypatch.setattr("coli.build_matrix.wheels.ask", lambda *_: Answer(2, "", said))
    else:
        (tmp_path / "my cache ü").write_text("a file where a folder should be")
    with pytest.raises(ColiError) as caught:
        make(tmp_path, bundle)
    assert caught.value.code == "build.wheels-io" and "XDG_CACHE_HOME" in (caught.value.fix or "")


@pytest.mark.parametrize("pip", [True, False])
def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path, pip: bool) -> None:
    wheel_file(tmp_path / "index", "parts", FILES)
    with pytest.raises(ColiError) as caught:
        make(tmp_path, toolkit_bundle("0" * 64), pip=pip)
    assert caught.value.code == "build.wheels-hash"
    assert [path.suffix for path in (tmp_path / "my cache ü/bundles").iterdir()] == [".lock"]


def test_without_an_index_the_error_says_so(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(ColiError) as caught:
        make(tmp_path, toolkit_bundle("0" * 64), pip=True)
    assert caught.value.code == "build.wheels-download"
    assert "parts" in (caught.value.observed or "") and "network" in (caught.value.fix or "")


@pytest.mark.parametrize(
    "name", ["nvidia/cu13/../../../evil", "/nvidia/cu13/evil", "nvidia/cu13/a\\..\\evil", "nvidia/cu13/link"]
)
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    digest = wheel_file(tmp_path / "index", "parts", {**FILES, name: "/etc/passwd"}, link="nvidia/cu13/link")
    with pytest.raises(ColiError) as caught:
        make(tmp_path, toolkit_bundle(digest))
    assert caught.value.code == "build.wheels-name"
    assert not list(tmp_path.rglob("evil"))


def test_a_bundle_that_does_not_make_a_whole_is_refused(tmp_path: Path) -> None:
    digest = wheel_file(tmp_path / "index", "parts", {"nvidia/cu13/include/x.h": ""})
    with pytest.raises(ColiError) as caught:
        make(tmp_path, toolkit_bundle(digest))
    assert (caught.value.code, caught.value.observed) == ("build.wheels-incomplete", "missing: bin/nvcc")


def test_an_option_adds_a_wheel_and_serves_those_who_do_not_ask(tmp_path: Path) -> None:
    first = wheel_file(tmp_path / "index", "parts", FILES)
    big = {"nvidia/cu13/include/cublasLt.h": "", "nvidia/cu13/lib/libcublasLt.so.13": "large"}
    second = wheel_file(tmp_path / "index", "blas", big)
    wheel = Wheel("blas", "1.0", {"x86_64": second}, "cublas", "nvidia/cu13/include/")
    bundle = toolkit_bundle(first, (wheel,))
    plain, full = make(tmp_path, bundle), make(tmp_path, bundle, "cublas")
    assert plain != full
    assert (full / "include/cublasLt.h").exists() and not (full / "lib/libcublasLt.so.13").exists()
    assert not (plain / "include/cublasLt.h").exists()
    assert made_bundle(bundle, tmp_path / "my cache ü", "x86_64") == full


def test_two_at_once_make_one(tmp_path: Path) -> None:
    bundle = toolkit_bundle(wheel_file(tmp_path / "index", "parts", FILES))
    roots: list[Path] = []
    workers = [threading.Thread(target=lambda: roots.append(make(tmp_path, bundle))) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(roots) == 2 and len(set(roots)) == 1


def test_other_machines_and_python_without_pip(tmp_path: Path) -> None:
    bundle = toolkit_bundle(wheel_file(tmp_path / "index", "parts", FILES))
    with pytest.raises(UsageError, match="x86_64"):
        make_bundle(bundle, tmp_path / "c", "riscv64", {})
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -c "import sys; sys.exit(\'No module named pip\')"\n')
    python.chmod(0o755)
    with pytest.raises(ColiError) as caught:
        make_bundle(bundle, tmp_path / "c", "x86_64", dict(os.environ), python=python)
    assert caught.value.code == "build.pip-missing"


def test_the_pins_are_whole() -> None:
    bundles = load_bundles()
    assert set(bundles) == {"pypi:13.0", "deepgemm"}
    for bundle in bundles.values():
        for wheel in bundle.wheels:
            assert set(wheel.sha256) == {"x86_64", "aarch64"}
            assert all(set(digest) <= set("0123456789abcdef") and len(digest) == 64 for digest in wheel.sha256.values())
    names = [wheel.name for wheel in bundles["pypi:13.0"].chosen()]
    assert names == ["nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl"]
    assert "nvidia-cublas" in [wheel.name for wheel in bundles["pypi:13.0"].chosen(["cublas"])]
    with pytest.raises(ValueError, match="schema"):
        read_bundles("schema = 7")


@pytest.mark.full
def test_the_pinned_toolkit_compiles(tmp_path: Path) -> None:
    """Needs the network, 104 MB: the real wheels become a toolkit whose nvcc compiles and links."""
    import platform
    import subprocess

    machine = platform.machine()
    try:
        root = make_bundle(load_bundles()["pypi:13.0"], tmp_path / "my cache ü", machine, dict(os.environ))
    except ColiError as error:
        if error.code == "build.wheels-download":
            pytest.skip(f"not run: {error.observed}")
        raise
    found = probe_toolkit(root, "pypi:13.0", Places(dict(os.environ), machine))
    assert found.usable and found.version is not None and found.version.short == "13.0"
    assert {finding.code for finding in found.findings} == {"driver-stub-missing"}
    source = tmp_path / "x.cu"
    source.write_text(
        "#include <cstdio>\n__global__ void f(float* x) { *x = 1; }\nint main() { f<<<1, 1>>>(nullptr); }\n"
    )
    target = tmp_path / "out file"
    subprocess.run([root / "bin/nvcc", "-arch=sm_86", "-cudart", "static", source, "-o", target], check=True)
    assert b"sm_86" in target.read_bytes()
