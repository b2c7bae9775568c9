"""Make sdist and wheel, judge them, and write their checksums: `python ci/package.py FOLDER`, with the locked tools.

The wheel is made from the sdist, so a file that the sdist lacks is noticed. auditwheel says which systems the wheel
runs on and gives it that name; it may change the name only: manifests hold the hashes of the libraries.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EPOCH = "1704067200"  # 2024-01-01, where SOURCE_DATE_EPOCH says no other: the same sources give the same archives
LIBRARIES = "coli/backends/lib/"


def run(*command: str | Path) -> str:
    """Run a command with the tools beside this Python first; return what it printed. Raises SystemExit with its log."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {"SOURCE_DATE_EPOCH": EPOCH, **os.environ, "PATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def members(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel with their bytes."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def wrong_libraries(files: dict[str, bytes]) -> list[str]:
    """Return what is wrong with the backends in a wheel: each must be the one that its manifest names."""
    libraries = [name for name in files if name.startswith(LIBRARIES) and not name.endswith(".json")]
    wrong = [] if libraries else [f"no library in {LIBRARIES}"]
    for name in libraries:
        manifest = json.loads(files.get(name + ".json", b"{}"))
        if manifest.get("sha256") != hashlib.sha256(files[name]).hexdigest():
            wrong.append(f"{name} is not the library of its manifest")
    return wrong


def changed_files(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """Return the files that two wheels do not have in common, but for the name of the system they are for."""
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [name for name in names if not name.endswith((".dist-info/WHEEL", ".dist-info/RECORD"))]


def main(folder: Path) -> None:
    """Fill ``folder``; print what was made and which systems it is for."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="coli-package-") as temporary:
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", temporary, ".")
        (built,) = Path(temporary).glob("*.whl")
        (sdist,) = Path(temporary).glob("*.tar.gz")
        wheel = built
        if sys.platform == "linux":
            print(run(sys.executable, "-m", "auditwheel", "show", built).strip())
            run(sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "-w", Path(temporary) / "named", built)
            (wheel,) = (Path(temporary) / "named").glob("*.whl")
        problems = changed_files(members(built), members(wheel))
        problems = [f"auditwheel changed {name}" for name in problems] + wrong_libraries(members(wheel))
        if problems:
            raise SystemExit("\n".join(problems))
        for file in (wheel, sdist):
            shutil.copy2(file, folder)
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="ascii")
    print("".join(lines), end="")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
