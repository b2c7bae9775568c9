"""Developer sessions. `nox -l` lists them; arguments after `--` go to the tool: `nox -s tests -- tests/cli -x`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["tests", "lint"]

ROOT = Path(__file__).parent
TYPING_TREE = ROOT / "build" / "typing" / "coli"
NATIVE_SUFFIXES = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
NATIVE_FOLDERS = ("backends", "bench", "tests")
CASES = ROOT / "tests" / "cases"  # data: inputs as they were met


def _install_package(session: nox.Session) -> None:
    """Install the locked requirements and the package itself, not editable: what is tested is what users get."""
    session.install("--require-hashes", "-r", "ci/requirements-test.txt")
    # Without isolation the locked build tools are used, and CMake's build folder keeps its objects between runs. It is
    # not the folder of `pip install .`, whose cache names build tools in a temporary folder.
    options = (
        "--no-build-isolation",
        "--no-deps",
        "--force-reinstall",
        f"--config-settings=build-dir=build/{session.name}",
    )
    session.install(*options, ".")


def _run_build(session: nox.Session, *arguments: str) -> None:
    """Run `coli build` from the checkout: what is compiled is what lies here, without installing it first."""
    stamp = Path(session.create_tmp()) / "requirements.txt"
    locked = (ROOT / "ci" / "requirements-test.txt").read_bytes()
    if not stamp.is_file() or stamp.read_bytes() != locked:  # pip takes longer to say "satisfied" than a no-op build
        session.install("--require-hashes", "-r", "ci/requirements-test.txt")
        stamp.write_bytes(locked)
    _link_typing_tree()
    environment = {"PYTHONPATH": str(TYPING_TREE.parent)}
    session.run("python", "-m", "coli", "build", "--builds", "build", *arguments, env=environment)


def _cells() -> list[tuple[str, list[str]]]:
    """Return the ids and tags of the matrix, for sessions: nox reads this file with any Python it has."""
    text = (ROOT / "build_matrix" / "matrix.toml").read_text(encoding="utf-8")
    found = re.findall(r'^\[\[cell\]\]\nid = "([^"]+)"\ntags = \[([^\]]*)\]', text, re.MULTILINE)
    return [(id, re.findall(r'"([^"]+)"', tags)) for id, tags in found]


@nox.session
def tests(session: nox.Session) -> None:
    """Build and install the package, then run the tests. `-- -m full` runs the long stages instead."""
    _install_package(session)
    chosen = [] if "-m" in session.posargs else ["-m", "not full"]
    report = ROOT / "build" / "ci" / ("tests.xml" if chosen else "selected.xml")
    report.parent.mkdir(parents=True, exist_ok=True)
    session.run("pytest", f"--junitxml={report}", *chosen, *session.posargs)
    session.run("python", "ci/not_run.py", str(report))
    if chosen:
        session.log("not run: tests marked full; nox -s tests -- -m full runs them")


@nox.session
def cases(session: nox.Session) -> None:
    """Run real-world cases against the real code: `-- DIR [DIR...]`, each a case or a folder of cases."""
    _install_package(session)
    session.run("python", "tests/cases/adapter.py", *(session.posargs or ["tests/cases"]))


@nox.session
def build(session: nox.Session) -> None:
    """Build backend libraries for this machine: `-- --cell ID | --list | --json | --explain ID | --all | --tag T`."""
    _run_build(session, *session.posargs)


@nox.session
@nox.parametrize("id", [nox.param(cell, id=cell, tags=tags) for cell, tags in _cells()])
def cell(session: nox.Session, id: str) -> None:
    """Build one cell of the matrix."""
    _run_build(session, "--cell", id, *session.posargs)


@nox.session
def mutate(session: nox.Session) -> None:
    """Break the forward pass in many places, on copies; each must turn a named test red."""
    _install_package(session)
    session.run("python", "tests/mutate.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types: ruff, mypy --strict, clang-format."""
    session.install("--require-hashes", "-r", "ci/requirements-test.txt", "-r", "ci/requirements-lint.txt")
    _link_typing_tree()
    checks = [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("clang-format", "--dry-run", "--Werror", *_native_sources()),
        ("mypy", "--strict", "-p", "coli"),
        ("mypy", "--strict", "noxfile.py", "ci/not_run.py", "ci/write_docs.py", "ci/package.py", "bench/synthetic.py"),
    ]
    failed = []
    for check in checks:  # all of them: one mistake must not hide the others
        try:
            session.run(*check, env={"MYPYPATH": "build/typing"})
        except CommandFailed:
            failed.append(" ".join(check[:3]))
    if failed:
        session.error(f"failed: {'; '.join(failed)}")


@nox.session(name="format")
def format_(session: nox.Session) -> None:
    """Rewrite the sources in the project's style."""
    session.install("--require-hashes", "-r", "ci/requirements-test.txt", "-r", "ci/requirements-lint.txt")
    session.run("ruff", "check", "--fix", "--exit-zero", ".")
    session.run("ruff", "format", ".")
    session.run("clang-format", "-i", *_native_sources())


@nox.session
def docs(session: nox.Session) -> None:
    """Write the tables of docs/ again: settings (guide.md), slots (abi.md), matrix (build.md), forecasts (plan.md)."""
    _install_package(session)
    session.run("python", "ci/write_docs.py")


@nox.session
def package(session: nox.Session) -> None:
    """Make sdist and wheel in dist/, with checksums; then install the wheel in an environment of its own and try it."""
    session.install("--require-hashes", "-r", "ci/requirements-test.txt", "-r", "ci/requirements-package.txt")
    session.run("python", "ci/package.py", "dist")
    session.install("--no-deps", "--force-reinstall", *sorted(map(str, (ROOT / "dist").glob("*.whl"))))
    session.run("pytest", "-q", "-m", "full", "tests/test_package.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure what the order of every sum costs here, and the machine code of the same loops where nvcc is."""
    _install_package(session)
    session.run("python", "bench/orders/run.py", *session.posargs)


@nox.session
def lock(session: nox.Session) -> None:
    """Pin the requirements again, with hashes, for Python 3.10 and later on every platform."""
    session.install("uv")
    for name in ("test", "lint", "package"):
        source, target = f"ci/requirements-{name}.in", f"ci/requirements-{name}.txt"
        options = ("--universal", "--python-version", "3.10", "--generate-hashes", "--no-header", "--no-annotate")
        session.run("uv", "pip", "compile", "--quiet", *options, *session.posargs, source, "-o", target)


def _native_sources() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT))
        for folder in NATIVE_FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in NATIVE_SUFFIXES and CASES not in path.parents
    )


def _link_typing_tree() -> None:
    """Link the folders as they lie after the install: type checkers do not see through the build's mapping."""
    shutil.rmtree(TYPING_TREE, ignore_errors=True)
    TYPING_TREE.mkdir(parents=True)
    rooms = [ROOT / name for name in ("families", "backends", "build_matrix", "doctor")]
    parts = [*(ROOT / "src" / "coli").iterdir(), *rooms]
    for part in parts:
        (TYPING_TREE / part.name).symlink_to(part)
