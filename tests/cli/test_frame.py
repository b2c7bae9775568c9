from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import coli
from coli.cli.group import COMMANDS

HEAVY = {
    "numpy",
    "rich",
    "tokenizers",
    "msgspec",
    "jinja2",
    "psutil",
    "archspec",
    "importlib.metadata",
    "coli.backends._host",
}

_LIST_MODULES = """
import sys
from coli.cli import main
code = main(sys.argv[1:])
sys.stderr.write("\\n".join(sys.modules))
sys.exit(code)
"""


def start(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COLI_")}
    environment |= options.pop("variables", {})
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, **options
    )


def modules_after(*arguments: str) -> set[str]:
    done = start("-c", _LIST_MODULES, *arguments)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines())


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("run", "--help"), ("chat", "--help")])
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    loaded = modules_after(*arguments)
    assert not loaded & HEAVY
    # Python itself and click: 0.1 s. Every hundred modules more cost about 20 ms.
    assert len(loaded) < 260


def test_help_imports_no_command() -> None:
    assert not {f"coli.cli.{name}" for name in COMMANDS} & modules_after("--help")


def test_families_loads_neither_numbers_nor_native_code() -> None:
    loaded = modules_after("families")
    assert "coli.families.registry" in loaded
    assert not loaded & {"numpy", "tokenizers", "jinja2", "psutil", "coli.engine", "coli.backends"}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_command_has_help(run: Any, name: str) -> None:
    done = run(name, "--help")
    assert done.code == 0 and f"coli {name}" in done.out
    assert COMMANDS[name] in run("--help").out


def test_version(run: Any) -> None:
    assert run("--version").out == f"coli {coli.__version__}\n"


@pytest.mark.parametrize(("words", "line"), [((), "  demo      Show that"), (("config",), "  show  Show the value")])
def test_a_bare_name_shows_help_as_it_is_laid_out(run: Any, words: tuple[str, ...], line: str) -> None:
    done = run(*words)
    assert done.code == 2 and not done.out
    assert any(shown.startswith(line) for shown in done.err.splitlines())


def test_an_option_may_stand_before_or_behind_a_subcommand(run: Any) -> None:
    for words in (("families", "show", "deepseek_v4"), ("backends", "explain", "cpu-portable")):
        assert run(words[0], "--json", *words[1:]).out == run(*words, "--json").out
        assert json.loads(run(*words, "--json").out)["schema"] == f"coli.{words[0]}/1"
    assert "╭" in run("families", "show", "deepseek_v4").out
    for words in (("--ascii", "show", "deepseek_v4"), ("show", "deepseek_v4", "--ascii")):
        done = run("families", *words)
        assert done.code == 0 and done.out.isascii()


def test_notes_on_the_environment_are_shown_once(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLI_SOMETHING_ELSE", "1")
    assert run("families", "show", "deepseek_v4").err.count("COLI_SOMETHING_ELSE") == 1


@pytest.mark.parametrize("arguments", [["--version"], ["config", "show"], ["families", "--json"]])
def test_closed_stdout_is_a_reason(arguments: list[str]) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "coli", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("coli: standard output: is closed")


def test_closed_stdin_and_stderr_do_no_harm() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", sys.executable, "-m", "coli", "run", "nowhere"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and done.stdout == ""  # PROMPT is missing, and nobody is there to read it


def test_ctrl_c_while_modules_load(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import builtins

    from coli.cli import main

    real = builtins.__import__

    def interrupted(name: str, *rest: Any) -> Any:
        if name == "coli.cli.failure":
            raise KeyboardInterrupt
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    code = main(["--version"])
    monkeypatch.undo()
    assert code == 130 and capsys.readouterr().err == "\ninterrupted\n"


def test_wrong_environment_does_not_hide_the_help(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLI_THREDS", "2")
    assert run("--help").code == 0
    done = run("config", "show")
    assert done.code == 2 and "did you mean COLI_THREADS?" in done.err


def test_full_disk_on_output() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "coli", "config", "show"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_full_disk_is_seen_even_when_nobody_flushed() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    code = "import sys; from coli.cli.failure import guarded; sys.exit(guarded(lambda: sys.stdout.write('x') * 0, []))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert "No space left" in done.stderr and "Exception ignored" not in done.stderr


def test_reader_that_goes_away_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from coli.cli import main; input(); sys.exit(main(['config', 'show']))"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin and process.stdout and process.stderr
    process.stdout.close()
    process.stdin.write(b"\n")
    process.stdin.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 1


def test_terminal_without_utf8_gets_escapes() -> None:
    code = "import sys; from coli.cli import main; sys.exit(main(['run', 'Grüße\\u2603', 'x']))"
    done = start("-c", code, variables={"PYTHONIOENCODING": "ascii"})
    assert "UnicodeEncodeError" not in done.stderr


def test_runs_as_a_module() -> None:
    assert start("-m", "coli", "--version").stdout == f"coli {coli.__version__}\n"


def test_no_more_threads_is_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    from coli.cli.failure import guarded

    def action() -> int:
        raise RuntimeError("can't start new thread")  # the words of threading.Thread.start

    assert guarded(action, []) == 1
    assert capsys.readouterr().err.startswith("coli: threads: the system has no more")
