"""Developer sessions. `nox -l` lists them; arguments after `--` go to the tool: `nox -s tests -- tests/cli -x`."""

from __future__ import annotations

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
        ("mypy", "--strict", "noxfile.py", "ci/not_run.py"),
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
    """Write the settings table of docs/guide.md again from the settings themselves."""
    _install_package(session)
    session.run("python", "ci/settings_table.py", "docs/guide.md")


@nox.session
def lock(session: nox.Session) -> None:
    """Pin the requirements again, with hashes, for Python 3.10 and later on every platform."""
    session.install("uv")
    for name in ("test", "lint"):
        source, target = f"ci/requirements-{name}.in", f"ci/requirements-{name}.txt"
        options = ("--universal", "--python-version", "3.10", "--generate-hashes", "--no-header", "--no-annotate")
        session.run("uv", "pip", "compile", "--quiet", *options, *session.posargs, source, "-o", target)


def _native_sources() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT))
        for folder in NATIVE_FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in NATIVE_SUFFIXES
    )


def _link_typing_tree() -> None:
    """Link the folders as they lie after the install: type checkers do not see through the build's mapping."""
    shutil.rmtree(TYPING_TREE, ignore_errors=True)
    TYPING_TREE.mkdir(parents=True)
    parts = [*(ROOT / "src" / "coli").iterdir(), ROOT / "families", ROOT / "backends"]
    for part in parts:
        (TYPING_TREE / part.name).symlink_to(part)
