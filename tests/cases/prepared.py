"""Lay a case out as a machine: its files below a root of their own, stand-ins for the commands it knows, its variables.

What a case's tree leaves out and its facts do not ask about is completed, since the trees are abridged: a case that
gives nothing but the output of nvcc speaks of a whole toolkit.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).parent / "tools"
COMMANDS = "/opt/stand-ins/bin"


@dataclass(frozen=True)
class Prepared:
    """A machine. Paths of the machine lie below ``root``; ``environment`` is complete, PATH included."""

    case: Path
    expected: dict[str, Any]
    root: Path
    environment: dict[str, str]
    log: Path

    @property
    def expect(self) -> dict[str, Any]:
        return self.expected["expect"]

    def calls(self) -> list[list[str]]:
        """Return the commands that were started, each with its arguments."""
        return [json.loads(line) for line in self.log.read_text("utf-8").splitlines()] if self.log.exists() else []

    def shown(self, path: object) -> str:
        """Return a path or an argument as the machine itself would write it."""
        return str(path).replace(str(self.root), "")


def prepare(case: Path, out: Path) -> Prepared:
    """Lay ``case`` out below the empty folder ``out``."""
    expected = json.loads((case / "expected.json").read_text("utf-8"))
    root, log = out / "root", out / "calls.jsonl"
    if (case / "root").is_dir():
        shutil.copytree(case / "root", root, symlinks=True)
        _permit(root)
    root.mkdir(parents=True, exist_ok=True)
    given = _json(case / "env.json") or {}
    environment = {name: value.replace("$ROOT", str(root)) for name, value in given.items() if isinstance(value, str)}
    path = environment.get("PATH", "/usr/bin:/bin")
    environment["PATH"] = f"{COMMANDS}:{path}"
    replay = _json(case / "replay.json") or {}
    for key in replay:
        place = key if key.startswith("/") else _place(key, root, environment)
        target = root / place.lstrip("/")
        _stand_in(target, [str(TOOLS / "replay.py"), str(case / "replay.json"), key, str(log)])
        if target.name == "nvcc":
            _complete_toolkit(target.parent.parent, " ".join(expected["expect"]))
    if (case / "smi.json").exists():
        smi = [str(TOOLS / "fake_nvidia_smi.py")]
        _stand_in(root / COMMANDS.lstrip("/") / "nvidia-smi", smi, FAKE_SMI=str(case / "smi.json"))
    return Prepared(case, expected, root, environment, log)


def _permit(root: Path) -> None:
    """Cases may come read-only: stand-ins are added below their folders, and their scripts are to be run."""
    for path in (root, *root.rglob("*")):
        if path.is_symlink():
            continue
        if path.is_dir() or (path.is_file() and path.read_bytes()[:2] == b"#!"):
            path.chmod(0o755)


def toolkit_tree(root: Path, version: str, log: Path, *, cublas: bool) -> None:
    """Make a whole toolkit whose nvcc says ``version``."""
    answer = f"Cuda compilation tools, release {version}, V{version}.88\n"
    replay = root / "replay.json"
    replay.parent.mkdir(parents=True, exist_ok=True)
    replay.write_text(json.dumps({"nvcc": [{"args": ["--version"], "stdout": answer}]}))
    _stand_in(root / "bin" / "nvcc", [str(TOOLS / "replay.py"), str(replay), "nvcc", str(log)])
    _complete_toolkit(root, "")
    if cublas:
        major, minor = version.split(".")
        (root / "include" / "cublasLt.h").write_text("")
        text = f"#define CUBLAS_VER_MAJOR {major}\n#define CUBLAS_VER_MINOR {minor}\n#define CUBLAS_VER_PATCH 1\n"
        (root / "include" / "cublas_api.h").write_text(text)


def gcc_stand_in(path: Path, version: str, log: Path) -> None:
    """Make a g++ or clang++ that says ``version``."""
    text = f"Debian clang version {version} (1)\nTarget: x86_64-pc-linux-gnu\n"
    if "clang" not in path.name:
        text = f"{path.name} (Debian {version}-1) {version}\nCopyright (C) 2024 Free Software Foundation, Inc.\n"
    replay = path.with_suffix(".json")
    replay.parent.mkdir(parents=True, exist_ok=True)
    replay.write_text(json.dumps({path.name: [{"stdout": text}]}))
    _stand_in(path, [str(TOOLS / "replay.py"), str(replay), path.name, str(log)])


def _place(command: str, root: Path, environment: dict[str, str]) -> str:
    """A bare nvcc is that of the toolkit which the variables name, if the case has it; the rest lies on PATH."""
    if command == "nvcc":
        for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
            folder = Path(environment.get(name, "/nowhere"))
            if any((folder / part).is_dir() for part in ("include", "lib", "lib64", "targets")):
                return f"/{(folder / 'bin' / 'nvcc').relative_to(root)}"
        environment["PATH"] += ":/opt/cuda-of-the-case/bin"
        return "/opt/cuda-of-the-case/bin/nvcc"
    return f"{COMMANDS}/{command}"


def _stand_in(path: Path, command: list[str], **variables: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = [f"{name}={shlex.quote(value)} " for name, value in variables.items()]
    path.write_text(f'#!/bin/sh\n{"".join(settings)}exec {shlex.join([sys.executable, "-IS", *command])} "$@"\n')
    path.chmod(0o755)


def _complete_toolkit(root: Path, asked: str) -> None:
    includes = [folder for folder in (root / "include", *root.glob("targets/*/include")) if folder.is_dir()]
    if not includes and "include" not in asked:
        includes = [root / "include"]
        includes[0].mkdir(parents=True)
        (includes[0] / "cuda_runtime.h").touch()
    for folder in includes:
        if (folder / "cuda.h").is_file():
            (folder / "cuda_runtime.h").touch()
    libraries = [folder for folder in (root / "lib64", root / "lib", *root.glob("targets/*/lib")) if folder.is_dir()]
    if not libraries and not any(word in asked for word in ("libdir", "cudart", "stubs")):
        (root / "lib64" / "stubs").mkdir(parents=True)
        for name in ("libcudart.so", "libcudart.so.12", "libcudart_static.a", "stubs/libcuda.so"):
            (root / "lib64" / name).touch()


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8")) if path.exists() else None
