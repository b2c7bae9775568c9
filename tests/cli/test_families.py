from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors

from coli.cli import main

FLASH = {"hidden_size": 4096, "num_hidden_layers": 43, "n_routed_experts": 256}

PLUGIN_TOML = """
id = "{0}"
api = "{1}"
name = "Plugin {0}"
model_types = ["{0}_type"]
engine = "{0}.engine:Engine"
roles = [{{ kind = "embedding", names = ["embed.weight"] }}]
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("COLI_PLUGINS", raising=False)


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install three plugins: a good one, one whose engine raises, one for another API version."""
    site = tmp_path / "site"
    for name, api, engine in (
        ("fine", ">=1", "class Engine:\n def forward(self): ...\n def reset(self): ...\n def close(self): ..."),
        ("raises", ">=1", "raise RuntimeError('broken inside')"),
        ("future", ">=7", ""),
    ):
        package, info = site / name, site / f"{name}_plugin-2.5.dist-info"
        package.mkdir(parents=True)
        info.mkdir()
        (package / "__init__.py").write_text("")
        (package / "engine.py").write_text(engine)
        (package / "family.toml").write_text(PLUGIN_TOML.format(name, api))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-plugin\nVersion: 2.5\n")
        (info / "entry_points.txt").write_text(f"[coli.families]\nx = {name}\n")
    monkeypatch.syspath_prepend(site)


def document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main(["families", *arguments]) == code
    return json.loads(capsys.readouterr().out)


def checkpoint(folder: Path, **config: object) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families"]) == 0
    out = capsys.readouterr().out
    assert "deepseek_v4" in out and "names only" in out
    found = document(capsys, "--json")
    assert found["schema"] == "coli.families/1"
    status = {f["id"]: f["status"] for f in found["families"]}
    assert status["deepseek_v4"] == "engine" and status["olmoe"] == "names only"
    assert found["refused"] == []


def test_list_with_plugins(capsys: pytest.CaptureFixture[str], plugins: None) -> None:
    found = document(capsys, "--json")
    records = {f["id"]: f for f in found["families"]}
    assert records["fine"]["status"] == "engine"
    assert records["fine"]["provider"]["distribution"] == "fine-plugin"
    assert records["raises"]["status"] == "refused"
    assert "RuntimeError: broken inside" in records["raises"]["probe"]["reason"]
    assert [(r["provider"]["distribution"], r["code"]) for r in found["refused"]] == [("future-plugin", "plugin.api")]
    assert main(["families"]) == 0
    out = capsys.readouterr().out
    assert "raises: engine of plugin raises-plugin 2.5 refused" in out
    assert "plugin future-plugin 2.5 refused: it wants family API >=7" in out


def test_allow_list(capsys: pytest.CaptureFixture[str], plugins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLI_PLUGINS", "")
    found = document(capsys, "--json")
    assert all(f["provider"]["source"] == "built in" for f in found["families"])
    assert {r["code"] for r in found["refused"]} == {"plugin.not-allowed", "plugin.api"}
    monkeypatch.setenv("COLI_PLUGINS", "fine-plugin")
    assert "fine" in {f["id"] for f in document(capsys, "--json")["families"]}


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families", "show", "deepseek_v4"]) == 0
    out = capsys.readouterr().out
    assert "mtp.{layer}.**" in out and "flash-0731" in out
    found = document(capsys, "show", "deepseek_v4", "--json")["family"]
    assert found["descriptor"]["engine"] == "coli.families.deepseek_v4.engine:Engine"
    assert document(capsys, "show", "deepseek_v9", "--json", code=1)["error"]["code"] == "family.unknown-id"


def test_explain_a_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = checkpoint(tmp_path, model_type="deepseek_v4", **FLASH, max_position_embeddings=1048576)
    found = document(capsys, "explain", path, "--json")
    assert found["resolution"]["name"] == "DeepSeek V4 Flash"
    assert found["resolution"]["context"] == 1048576
    assert found["facts"]["experts"] == 256
    assert found["error"] is None
    assert main(["families", "explain", path]) == 0
    assert "geometry of DeepSeek V4 Flash" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("subject", "code"), [("deepseek_v41", "family.no-engine"), ("deepseek_v5", "family.unknown-type")]
)
def test_explain_a_type_that_cannot_run(capsys: pytest.CaptureFixture[str], subject: str, code: str) -> None:
    assert document(capsys, "explain", subject, "--json", code=1)["error"]["code"] == code
    assert main(["families", "explain", subject]) == 1
    streams = capsys.readouterr()
    assert f"model_type is '{subject}'" in streams.out and "coli: " in streams.err


def test_explain_takes_the_folders_that_run_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--a--b" / "snapshots" / "1f"
    snapshot.mkdir(parents=True)
    checkpoint(snapshot, model_type="deepseek_v4", **FLASH)
    for folder in (tmp_path, snapshot.parent.parent, snapshot, snapshot / "config.json"):
        assert document(capsys, "explain", str(folder), "--json")["resolution"]["variant"] == "flash"
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "m.gguf").write_bytes(b"GGUF")
    for path in (tmp_path / "q", tmp_path / "q" / "m.gguf"):
        assert "GGUF is not read" in document(capsys, "explain", str(path), "--json", code=1)["error"]["fix"]


def test_explain_a_broken_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert main(["families", "explain", str(tmp_path)]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_known_type_is_a_type_even_beside_a_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deepseek_v4").mkdir()
    monkeypatch.chdir(tmp_path)
    assert document(capsys, "explain", "deepseek_v4", "--json")["resolution"]["family"] == "deepseek_v4"


@pytest.mark.parametrize("subject", ["", "nowhere/model", "./deepseek_v4"])
def test_explain_of_a_folder_that_is_not_there(
    subject: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["families", "explain", subject]) == 1
    assert "neither a model type nor a folder or file that is there" in capsys.readouterr().err


def test_a_checkpoint_is_inventoried_with_every_byte(capsys: Any, oracle_path: Path) -> None:
    inventory = document(capsys, "explain", str(oracle_path), "--json")["inventory"]
    # Counted with the reference library: all tensors of the seven files, and their bytes.
    names = bytes_ = 0
    for shard in sorted(oracle_path.glob("*.safetensors")):
        with safetensors.safe_open(shard, framework="np") as file:
            names += len(file.keys())
        header = int.from_bytes(shard.read_bytes()[:8], "little")
        bytes_ += shard.stat().st_size - 8 - header
    assert sum(kind["tensors"] for kind in inventory["kinds"].values()) == names
    assert sum(kind["nbytes"] for kind in inventory["kinds"].values()) == inventory["total_bytes"] == bytes_
    assert inventory["unknown"] == []


def test_files_that_cannot_be_listed_are_a_note(capsys: Any, oracle_path: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((oracle_path / "config.json").read_bytes())
    found = document(capsys, "explain", str(tmp_path), "--json")
    assert found["inventory"] is None and any("cannot be listed" in note for note in found["notes"])
