"""`coli plan` in processes of its own: what it prints runs, and runs take what it prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
MIB = 1 << 20


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("home")
    names = ("XDG_DATA_HOME", "XDG_CONFIG_HOME")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("COLI_", "DSV4_", "CUDA_"))}
    return clean | {name: str(folder / name) for name in names}


def coli(home: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coli", *arguments]
    return subprocess.run(command, env=home, capture_output=True, text=True, timeout=300)


def plan(home: dict[str, str], *arguments: str) -> dict[str, Any]:
    done = coli(home, "plan", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def peak_bytes(home: dict[str, str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run to the end in a child that says what it held at most; return that and the document that it printed."""
    code = (
        "import sys, io, contextlib\n"
        "from coli.cli import main\n"
        "from coli.engine.run_record import peak_resident_bytes\n"
        "code = main(sys.argv[1:])\n"
        "print(peak_resident_bytes(), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=home, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr.splitlines()[-1]), json.loads(done.stdout)


def agree(planned: int, measured: int) -> bool:
    return abs(planned - measured) <= max(8 * MIB, planned // 50)


def test_the_document(home: dict[str, str], oracle_path: Path) -> None:
    found = plan(home | {"COLI_PLUGINS": "none such"}, str(oracle_path), "--ctx", "512", "--ram", "1GiB")
    assert found["schema"] == "coli.plan/1"
    ram = found["tiers"][0]
    assert (ram["tier"], ram["limit_bytes"]) == ("ram", 1 << 30)
    assert ram["planned_bytes"] == sum(item["bytes"] for item in ram["items"])
    assert [item["count"] for item in ram["items"] if item["name"] == "expert cache"] == [7 * 16]
    # What is not free is held by others and by the planning process itself.
    assert ram["total_bytes"] == ram["others_bytes"] + ram["left_free_bytes"] + ram["limit_bytes"]
    assert ram["others_bytes"] <= ram["total_bytes"] - ram["free_bytes"]
    assert {(kept["option"], kept["value"]) for kept in found["kept"]} == {("--ctx", "512"), ("--ram", "1GiB")}
    assert found["context"] == 512
    assert 0 < found["forecast"]["low"] < found["forecast"]["high"]
    assert found["binds"]
    assert found["environment"] == {"COLI_PLUGINS": "none such"}


def test_the_command_runs_unchanged_and_takes_what_was_planned(home: dict[str, str], demo_path: Path) -> None:
    found = plan(home, str(demo_path))
    assert found["argv"][:3] == ["coli", "run", str(demo_path.resolve())]
    assert found["environment"] == {}
    measured, document = peak_bytes(home, *found["argv"][1:], "Hello", "--max-tokens", "4", "--json")
    ram = found["tiers"][0]
    assert document["memory"]["ram_limit_bytes"] == ram["limit_bytes"]
    assert agree(ram["planned_bytes"], measured)


SOME = pytest.param("oracle", "some")
OTHERS = [(name, kind) for name in ("demo", "oracle") for kind in ("plenty", "some", "least")]


@pytest.mark.parametrize(
    ("name", "kind"), [SOME, *(pytest.param(*one, marks=pytest.mark.full) for one in OTHERS if one != SOME.values)]
)
def test_peaks_are_what_was_planned(
    home: dict[str, str], demo_path: Path, oracle_path: Path, name: str, kind: str
) -> None:
    path = str(demo_path if name == "demo" else oracle_path)
    whole = plan(home, path, "--ctx", "1024")["tiers"][0]
    cache = whole["items"][-1]
    ram = {
        "plenty": 2048 * MIB,
        "some": whole["planned_bytes"] - cache["bytes"] // 2 + 2 * MIB,
        "least": whole["planned_bytes"] - cache["bytes"] + 2 * MIB + 4 * cache["bytes"] // cache["of"],
    }[kind]
    options = [path, "--ctx", "1024", "--ram", f"{ram}B"]
    planned = plan(home, *options)["tiers"][0]["planned_bytes"]
    measured, document = peak_bytes(home, "run", *options, "--ids", "1,2,3,4,5,6,7", "--max-tokens", "40", "--json")
    assert agree(planned, measured)
    assert agree(planned, document["memory"]["ram_reserved_bytes"])
    audit = json.loads(coli(home, "plan", path, "--audit", "--json").stdout)
    assert [row["verdict"] for row in audit["audit"]] == ["agrees"]


def test_an_audit_needs_a_run(home: dict[str, str], oracle_path: Path, tmp_path: Path) -> None:
    shutil.copytree(oracle_path, tmp_path / "model")
    done = coli(home, "plan", str(tmp_path / "model"), "--audit")
    assert (done.returncode, "no run of this model is on record" in done.stderr) == (2, True)


def test_what_does_not_fit_says_what_would(home: dict[str, str], oracle_path: Path) -> None:
    done = coli(home, "plan", str(oracle_path), "--ram", "40MiB", "--json")
    assert done.returncode == 4
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "budget.ram"
    enough = error["fix"].split()[1]
    assert enough.endswith("MiB")
    # A process is a little larger or smaller each time.
    least = f"{int(enough.removesuffix('MiB')) + 4}MiB"
    options = [str(oracle_path), "--ctx", "512", "--prefill-chunk", "1", "--ram", least]
    done = coli(home, "run", *options, "--ids", "1,2,3", "--max-tokens", "2", "--json")
    assert done.returncode == 0, done.stderr


def test_a_run_says_that_less_is_free_than_was_planned(home: dict[str, str], oracle_path: Path) -> None:
    done = coli(home, "run", str(oracle_path), "--ids", "1,2", "--max-tokens", "1", "--ram", "1000TiB")
    assert done.returncode == 0, done.stderr
    assert "[coli] --ram 1000TiB is not free now" in done.stderr


def test_a_published_machine(home: dict[str, str], oracle_path: Path) -> None:
    file = TESTS / "machines" / "published" / "3900x-cpu-62gb.json"
    found = plan(home, str(oracle_path), "--machine", str(file))
    assert found["threads"] == 12
    assert found["tiers"][0]["total_bytes"] == 62 << 30
    assert found["machine"].startswith("Ryzen 9 3900X")
    changes = ("ram.total=16GiB", "gpu.0.vram=6GiB", "gpu.0.capability=8.9")
    found = plan(home, str(oracle_path), "--machine", str(file), *(word for one in changes for word in ("--set", one)))
    assert [(tier["tier"], tier["total_bytes"]) for tier in found["tiers"]] == [("ram", 16 << 30), ("vram", 6 << 30)]
    # 6 GiB that are free, less 512 MiB for the context and 1 GiB in reserve.
    assert found["tiers"][1]["limit_bytes"] == 6 * 1024 * MIB - 512 * MIB - 1024 * MIB


def test_the_terminal_shows_tiers_and_command(home: dict[str, str], oracle_path: Path) -> None:
    done = coli(home, "plan", str(oracle_path), "--ascii", "--ctx", "512")
    assert done.returncode == 0, done.stderr
    assert "RAM  [R" in done.stdout
    for word in ("expert cache", "forecast", "binds", "would bring", "not changed", "--ctx 512", "coli run "):
        assert word in done.stdout
    assert done.stdout.isascii()


def test_a_context_beyond_the_model_is_refused(home: dict[str, str], oracle_path: Path) -> None:
    done = coli(home, "plan", str(oracle_path), "--ctx", str(10**9))
    assert done.returncode == 2
    assert "it must fit the model" in done.stderr


@pytest.mark.full
def test_a_slice_of_flash(home: dict[str, str], tmp_path: Path) -> None:
    """5.6 GB of weights at three budgets: what a run of real shapes holds is what was planned."""
    if shutil.disk_usage(tmp_path).free < 8 << 30:
        pytest.skip("not run: it needs 8 GiB of disk")
    subprocess.run([sys.executable, str(TESTS.parent / "bench" / "synthetic.py"), str(tmp_path)], check=True)
    rows = []
    for ram in ("3200MiB", "4GiB", "7GiB"):
        options = [str(tmp_path), "--ctx", "4096", "--ram", ram]
        planned = plan(home, *options)["tiers"][0]
        ids = ",".join(map(str, range(100, 124)))
        measured, document = peak_bytes(home, "run", *options, "--ids", ids, "--max-tokens", "12", "--json")
        rows.append((ram, planned["planned_bytes"], measured))
        assert document["memory"]["ram_limit_bytes"] == planned["limit_bytes"]
        audit = json.loads(coli(home, "plan", str(tmp_path), "--audit", "--json").stdout)
        assert audit["audit"][0]["verdict"] == "agrees", rows
        # How fast it is lies in the interval on a machine that does nothing else: shown, since a test has no clock.
        print(ram, rows[-1], audit["forecast"])
    assert all(agree(planned, measured) for _, planned, measured in rows), rows


def test_what_a_plan_names_is_enough_and_io_is_kept(home: dict[str, str], oracle_path: Path) -> None:
    refused = coli(home, "plan", str(oracle_path), "--ram", "1B", "--json")
    assert refused.returncode == 4
    words = json.loads(refused.stdout)["error"]["fix"].split("`")[1].split()
    assert [words[0], words[2]] == ["--ram", "--ctx"]
    document = plan(home, str(oracle_path), *words, "--io", "buffered")
    assert document["argv"][-2:] == ["--io", "buffered"]
    ran = coli(home, "run", str(oracle_path), "--raw", "--ids", "1,2", "--max-tokens", "1", *words)
    assert ran.returncode == 0, ran.stderr
    # One refusal of a run names all that it needs, not one item after the other.
    once = coli(home, "run", str(oracle_path), "--raw", "--ids", "1,2", "--max-tokens", "1", "--ram", "1B")
    assert once.returncode == 4
    enough = once.stderr.split("--ram ")[1].split()[0]
    assert int(enough.removesuffix("MiB")) > 50
