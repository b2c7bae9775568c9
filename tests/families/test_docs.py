"""docs/families.md: its example is installed and run, its tables agree with the program."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from coli.families import descriptor
from coli.families.probe import load_engine, probe
from coli.families.registry import Registry
from coli.families.roles import RoleTable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = Path(__file__).parents[2] / "docs" / "families.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text("utf-8")


def example_files(page: str) -> dict[str, str]:
    return dict(re.findall(r"^\*\*`([^`]+)`\*\*\n\n```\w+\n(.*?)```$", page, re.MULTILINE | re.DOTALL))


def wheel(files: dict[str, str], folder: Path) -> Path:
    """Build the wheel that the example's pyproject describes, so that the test needs neither network nor setuptools."""
    project = tomllib.loads(files["pyproject.toml"])
    name, version = project["project"]["name"], project["project"]["version"]
    stem = f"{name.replace('-', '_')}-{version}"
    groups = project["project"]["entry-points"]
    entries = "".join(f"[{g}]\n" + "".join(f"{k} = {v}\n" for k, v in e.items()) for g, e in groups.items())
    packages = tuple(f"{p}/" for p in project["tool"]["setuptools"]["packages"])
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            if file.startswith(packages):
                archive.writestr(file, text)
        info = f"{stem}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/entry_points.txt", entries)
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_the_example_installs_and_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = example_files(page)
    assert set(files) == {
        "pyproject.toml",
        "coli_bigram/family.toml",
        "coli_bigram/__init__.py",
        "coli_bigram/engine.py",
    }
    pytest.importorskip("pip", reason="not run: pip is not installed")
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--quiet"]
    command = [*install, "--disable-pip-version-check", "--target", str(site), str(wheel(files, tmp_path))]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()

    registry = Registry.load()
    assert registry.refused() == ()
    config = {"model_type": "bigram", "vocab_size": 256, "max_position_embeddings": 4096}
    found = registry.resolve(config)
    assert (found.name, found.context, found.family.provider.distribution) == ("Bigram of bytes", 4096, "coli-bigram")
    assert RoleTable(found.descriptor).classify("table.weight").kind == "head"
    assert probe(found.family, None).ok

    table = np.arange(256 * 256, dtype=np.float32).reshape(256, 256)

    class Checkpoint:
        def read(self, name: str) -> np.ndarray:
            assert name == "table.weight"
            return table.reshape(-1).view(np.uint8)

    engine_class = load_engine(found.family, None)
    engine = engine_class(Checkpoint(), found.text, None, None, context=16, prefill_chunk=4, progress=None)
    assert np.array_equal(engine.forward([3, 7, 5], 0, 2), table[[7, 5]])
    engine.reset()
    engine.close()


def test_tables_name_every_key_kind_and_family(page: str) -> None:
    for kind in descriptor.ROLE_KINDS:
        assert f"| `{kind}` |" in page
    for key in descriptor._FIELDS:
        assert re.search(rf"^\| (.*, )?`{key}`", page, re.MULTILINE), key
    for family in Registry.load(()).families():
        for name in (family.descriptor.id, *family.descriptor.types()):
            assert f"`{name}`" in page, name
    assert f"this is {descriptor.API_VERSION}" in page
