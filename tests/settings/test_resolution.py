from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from coli.errors import UsageError
from coli.settings import SETTINGS, Environment, Origin, find, resolve


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text("")
    return path


def resolved(file: Path, options: dict[str, Any] | None = None, **variables: str) -> Any:
    return resolve(options, Environment({"COLI_CONFIG": str(file), **variables}))


def test_order_and_origin(file: Path) -> None:
    assert resolved(file)["context"] == 4096
    assert resolved(file).origin("context") == Origin("default", "default")
    file.write_text("context = 100")
    assert resolved(file)["context"] == 100
    assert resolved(file).origin("context") == Origin("file", str(file))
    assert resolved(file, COLI_CTX="200")["context"] == 200
    assert resolved(file, COLI_CTX="200").origin("context") == Origin("variable", "COLI_CTX")
    both = resolved(file, {"context": "300"}, COLI_CTX="200")
    assert both["context"] == 300
    assert both.origin("context") == Origin("option", "--ctx")


def test_every_name_appears_once() -> None:
    for field in ("name", "variable", "toml_key"):
        names = [getattr(setting, field) for setting in SETTINGS if getattr(setting, field)]
        assert len(names) == len(set(names))
    # An option may mean another thing to another command: `run --explain`, `build --explain CELL`.
    options = [(reader, setting.option) for setting in SETTINGS if setting.option for reader in setting.readers]
    assert len(options) == len(set(options))
    for setting in SETTINGS:
        assert setting.help.endswith(".") and setting.readers
        assert setting.default is not None or setting.unset


@pytest.mark.parametrize(
    ("toml", "name", "value"),
    [
        ('ram = "12GB"', "ram", 12_000_000_000),
        ("ram = 12", "ram", 12 << 30),
        ("ram = 0.5", "ram", 1 << 29),
        ('plugins = ["a", "b"]', "plugins", ("a", "b")),
        ("plugins = []", "plugins", ()),
        ('stop = ["\\n\\n"]', "stop", ("\n\n",)),
        ("temperature = 1", "temperature", 1.0),
        ('io = "direct"', "io", "direct"),
        ("thinking = true", "thinking", True),
        ('model = "~/flash"', "model", str(Path("~/flash").expanduser())),
        ('backend_path = ["/a", "/b"]', "backend_path", ("/a", "/b")),
    ],
)
def test_file_values(file: Path, toml: str, name: str, value: object) -> None:
    file.write_text(toml)
    assert resolved(file)[name] == value


@pytest.mark.parametrize(
    "toml",
    [
        "threads = 0",
        'threads = "2"\n[x]',
        "threads = true",
        "threads = 1.5",
        'ram = "12G"',
        'io = "fast"',
        "io = true",
        "ram = -1",
        "ram = nan",
        "ram = [1]",
        "temperature = nan",
        "temperature = inf",
        "thinking = 1",
        'stop = "a"\nplugins = [1]',
        "model = 3",
        "ram = 1e300",
        "ram = 99999999999999999999",
        'model = ""',
        'model = "a\\u0000b"',
        'stop = [""]',
        "top_p = 0",
        "threads =",
        "threads = 1\nthreads = 2",
        "sed = 1",
        "\xff",
        "a = " + "[" * 10000,
    ],
)
def test_file_is_refused_with_its_name(file: Path, toml: str) -> None:
    file.write_bytes(toml.encode("latin-1"))
    with pytest.raises(UsageError, match=r"config\.toml"):
        resolved(file)


def test_misspelt_key_is_named_with_the_right_one(file: Path) -> None:
    file.write_text("temprature = 1")
    with pytest.raises(UsageError, match=r"temprature: is not a setting(.|\n)*did you mean temperature"):
        resolved(file)


def test_file_too_large_or_missing(file: Path, tmp_path: Path) -> None:
    file.write_text("#" * (1 << 20) + "\n")
    with pytest.raises(UsageError, match="at most 1MiB"):
        resolved(file)
    with pytest.raises(UsageError, match="correct or unset COLI_CONFIG"):
        resolved(tmp_path / "none.toml")


def test_a_pipe_is_no_settings_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    with pytest.raises(UsageError, match="is a pipe"):
        resolved(tmp_path / "pipe")
    assert resolved(Path(os.devnull))["seed"] == 0  # a common way to say: none


def test_settings_file_in_the_home_of_nobody() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        resolve({}, Environment({"COLI_CONFIG": "~nobody-of-this-name/config.toml"}))


def test_default_file_is_optional(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert resolve({}, Environment({}))["seed"] == 0
    (tmp_path / "coli").mkdir()
    (tmp_path / "coli" / "config.toml").write_text("seed = 5")
    assert resolve({}, Environment({}))["seed"] == 5


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("COLI_THREDS", "COLI_THREADS"),
        ("COLI_RAN", "COLI_RAM"),
        ("COLI_MODLE", "COLI_MODEL"),
        ("COLI_BACKENDS", "COLI_BACKEND"),
        ("COLI_TOPP", "COLI_TOP_P"),
        ("COLI_MAXTOKENS", "COLI_MAX_TOKENS"),
        ("COLI_COLOR", "NO_COLOR"),
    ],
)
def test_misspelt_variable(file: Path, name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}: is not a variable of coli(.|\n)*did you mean {hint}\?"):
        resolved(file, **{name: "1"})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("COLI_MODEL_MIRROR", "no counterpart"),
        ("DSV4_CUDA_VRAM_RESERVE_MB", "no counterpart"),
        ("COLI_TEMP", "use COLI_TEMPERATURE or --temperature"),
        ("COLI_CUDA", "use COLI_BACKEND or --backend"),
        ("COLI_CUDA_MOE_BATCH", "belongs to colibri"),
        ("COLI_V4_PREWARM", "belongs to colibri"),
        ("COLI_RAM_OVERCOMMIT", "use COLI_RAM"),
        ("COLI_SOMETHING_ELSE", "is not a variable of coli and is not read"),
    ],
)
def test_foreign_variable_is_a_note(file: Path, name: str, says: str) -> None:
    (note,) = resolved(file, **{name: "1"}).notes
    assert name in note and says in note


def test_alias_of_the_incumbent(file: Path) -> None:
    both = resolved(file, COLI_DSV4_DLL="/x/lib.so")
    assert both["backend"] == "/x/lib.so"
    assert both.origin("backend").text == "COLI_DSV4_DLL"
    assert "COLI_BACKEND is its name here" in both.notes[0]
    assert resolved(file, COLI_DSV4_DLL="/x/lib.so", COLI_BACKEND="cpu-portable")["backend"] == "cpu-portable"


@pytest.mark.parametrize(
    ("variables", "name", "value"),
    [
        ({"COLI_PLUGINS": ""}, "plugins", ()),
        ({"COLI_PLUGINS": "a, b"}, "plugins", ("a", "b")),
        ({}, "plugins", None),
        ({"COLI_CTX": ""}, "context", 4096),
        ({"COLI_THINKING": "yes"}, "thinking", True),
        ({"COLI_THINKING": "0"}, "thinking", False),
        ({"NO_COLOR": "0"}, "no_color", True),
        ({"NO_COLOR": ""}, "no_color", False),
        ({"COLI_RAM": "2"}, "ram", 2 << 30),
        ({"COLI_BACKEND_PATH": "/a:/b"}, "backend_path", ("/a", "/b")),
    ],
)
def test_variables(file: Path, variables: dict[str, str], name: str, value: object) -> None:
    assert resolved(file, **variables)[name] == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("COLI_CTX", "many"),
        ("COLI_CTX", "1_000"),
        ("COLI_CTX", "9" * 5000),
        ("COLI_SEED", "-1"),
        ("COLI_SEED", str(2**64)),
        ("COLI_THINKING", "maybe"),
        ("COLI_TEMPERATURE", "inf"),
        ("COLI_MODEL", "a\udcff"),
    ],
)
def test_variable_is_refused_with_its_name(file: Path, name: str, text: str) -> None:
    with pytest.raises(UsageError, match=name):
        resolved(file, **{name: text})


def test_find() -> None:
    assert find("context").option == "--ctx"
    with pytest.raises(KeyError):
        find("contxt")
