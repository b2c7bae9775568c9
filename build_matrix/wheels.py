"""Make a CUDA toolkit, or a folder of headers, from pinned wheels: in the user's cache, verified, shared, then offline.

Nothing is trusted before its hash is: pip checks it at the download, and so do we before anything is unpacked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import stat
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from coli.backends.manifest import file_sha256
from coli.build_matrix.lock import locked
from coli.build_matrix.tool import ask
from coli.errors import ColiError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Bundle", "Download", "Wheel", "load_bundles", "made_bundle", "make_bundle", "read_bundles"]

_FILE = Path(__file__).with_name("wheels.toml")
_STAMP = "coli-bundle.json"
_MAX_FILES = 50_000
_MAX_STAMP_BYTES = 1 << 20
_MAX_BYTES = 4 << 30
_DOWNLOAD_DEADLINE_S = 1800.0
_SPACE = "free space there and in the folder for temporary files (TMPDIR), or set XDG_CACHE_HOME to a folder with room"


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel. ``sha256`` by machine; ``option`` must be asked for; ``only`` narrows what is unpacked.

    ``megabytes``: what an option adds to the download.
    """

    name: str
    version: str
    sha256: Mapping[str, str]
    option: str | None
    only: str
    megabytes: int = 0


@dataclass(frozen=True)
class Bundle:
    """What is made of some wheels. ``must_have``: paths below its root that prove it complete.

    ``megabytes``: of the download, without options.
    """

    id: str
    kind: str
    folder: str
    prefix: str
    must_have: tuple[str, ...]
    licence: str
    wheels: tuple[Wheel, ...]
    megabytes: int = 0

    def chosen(self, options: Sequence[str] = ()) -> tuple[Wheel, ...]:
        """Return the wheels for these options."""
        return tuple(wheel for wheel in self.wheels if wheel.option is None or wheel.option in options)

    def download(self, options: Sequence[str] = ()) -> Download:
        """Return what fetching it with these options takes."""
        return Download(
            self.id, self.megabytes + sum(wheel.megabytes for wheel in self.chosen(options) if wheel.option)
        )


@dataclass(frozen=True)
class Download:
    """A bundle that is not there, and about how much fetching it is."""

    id: str
    megabytes: int

    @property
    def text(self) -> str:
        """Return one line for people."""
        return f"would download {self.megabytes} MB: {self.id}"


@lru_cache(maxsize=1)
def load_bundles() -> Mapping[str, Bundle]:
    """Read the bundles that the package pins, by id."""
    return read_bundles(_FILE.read_text("utf-8"))


def read_bundles(text: str) -> Mapping[str, Bundle]:
    """Read bundles from TOML. It is our own file: a mistake in it raises ValueError or KeyError."""
    data = tomllib.loads(text)
    if data["schema"] != 1:
        raise ValueError(f"wheels.toml: schema {data['schema']!r}, expected 1")
    return {row["id"]: _bundle(row) for row in data["bundle"]}


def made_bundle(bundle: Bundle, cache: Path, machine: str, options: Sequence[str] = ()) -> Path | None:
    """Return the root of a bundle that is already there and whole, with ``options`` or more, else None."""
    every = sorted({wheel.option for wheel in bundle.wheels if wheel.option})
    for tried in (every, [option for option in every if option in options]):
        if set(options) <= set(tried):
            root = _root(bundle, cache, machine, tried)
            if root is not None and _is_whole(root, bundle.chosen(tried), machine):
                return root
    return None


def make_bundle(
    bundle: Bundle,
    cache: Path,
    machine: str,
    environment: Mapping[str, str],
    options: Sequence[str] = (),
    *,
    python: Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> Path:
    """Return the root of a bundle, made first when it is not there. Raises ColiError.

    ``cache``: coli's cache folder. ``environment``: passed to pip, which finds its index and proxy there.
    """
    if (made := made_bundle(bundle, cache, machine, options)) is not None:
        return made
    root = _root(bundle, cache, machine, options)
    if root is None:
        machines = sorted({name for wheel in bundle.wheels for name in wheel.sha256})
        raise UsageError(
            bundle.id,
            "its wheels are pinned for some machines only",
            observed=machine,
            expected=" or ".join(machines),
            fix="install a toolkit and set CUDA_HOME",
            code="build.wheels-machine",
        )
    try:
        return _make(bundle, root, cache, machine, environment, options, python or Path(sys.executable), tell)
    except OSError as error:
        raise _error(
            bundle,
            "it must be possible to write it into the cache folder",
            "wheels-io",
            observed=f"{error.filename2 or error.filename or root.parent}: {error.strerror or error}",
            fix=_SPACE,
        ) from None


def _make(
    bundle: Bundle,
    root: Path,
    cache: Path,
    machine: str,
    environment: Mapping[str, str],
    options: Sequence[str],
    python: Path,
    tell: Callable[[str], None] | None,
) -> Path:
    root.parent.mkdir(parents=True, exist_ok=True)
    with locked(root.with_name(root.name + ".lock"), tell):
        if (made := made_bundle(bundle, cache, machine, options)) is not None:  # another process was faster
            return made
        wheels = bundle.chosen(options)
        prefix = f".making-{root.name}-"
        for left in root.parent.glob(f"{prefix}*"):  # of a process that was killed: we hold the lock
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=root.parent, prefix=prefix) as temporary:
            downloads, tree = Path(temporary) / "wheels", Path(temporary) / "tree"
            downloads.mkdir()
            tree.mkdir()
            start = time.monotonic()
            if tell is not None:
                tell(f"{bundle.id}: downloading {len(wheels)} pinned wheels ({bundle.licence})")
            files = _download(bundle, wheels, machine, downloads, environment, python)
            downloaded = time.monotonic()
            for wheel, file in zip(wheels, files, strict=True):
                _unpack(file, tree, bundle, wheel)
            if bundle.kind == "toolkit":
                _add_links(tree)
            _check_complete(bundle, tree)
            stamp = {
                "id": bundle.id,
                "wheels": _pins(wheels, machine),
                "tree": _measure(tree),
                "contents_sha256": _contents_sha256(tree),
            }
            (tree / _STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
            if root.exists():  # not whole, or made_bundle had taken it
                shutil.rmtree(root)
            tree.rename(root)
        if tell is not None:
            seconds = f"download {downloaded - start:.1f} s, unpack and verify {time.monotonic() - downloaded:.1f} s"
            tell(f"{bundle.id}: {seconds}: {root}")
    return root


def _bundle(row: Mapping[str, Any]) -> Bundle:
    wheels = tuple(
        Wheel(
            name=one["name"],
            version=one["version"],
            sha256=one["sha256"],
            option=one.get("option"),
            only=one.get("only", row["prefix"]),
            megabytes=one.get("megabytes", 0),
        )
        for one in row["wheel"]
    )
    for wheel in wheels:
        for machine, digest in wheel.sha256.items():
            if len(digest) != 64 or not wheel.only.startswith(row["prefix"]):
                raise ValueError(f"wheels.toml: {wheel.name} for {machine}")
    return Bundle(
        id=row["id"],
        kind=row["kind"],
        folder=row["folder"],
        prefix=row["prefix"],
        must_have=tuple(row["must_have"]),
        licence=row["licence"],
        megabytes=row.get("megabytes", 0),
        wheels=wheels,
    )


def _pins(wheels: Sequence[Wheel], machine: str) -> dict[str, str]:
    return {f"{wheel.name}=={wheel.version}": wheel.sha256[machine] for wheel in wheels}


def _root(bundle: Bundle, cache: Path, machine: str, options: Sequence[str]) -> Path | None:
    """Name the folder after what is in it: other pins are another folder, never a mixture."""
    wheels = bundle.chosen(options)
    if any(machine not in wheel.sha256 for wheel in wheels):
        return None
    digest = hashlib.sha256(json.dumps(_pins(wheels, machine), sort_keys=True).encode()).hexdigest()[:12]
    return cache / "bundles" / f"{bundle.folder}-{machine}-{digest}"


def _is_whole(root: Path, wheels: Sequence[Wheel], machine: str) -> bool:
    """Compare a bundle with its stamp: what was verified when it was made has neither been cut nor changed since.

    Names and sizes always; contents where a file is younger than the stamp, which is written last: 270 MiB are too much
    to read for every build.
    """
    file = root / _STAMP
    try:
        stamp = json.loads(file.read_bytes()[:_MAX_STAMP_BYTES])
        if not isinstance(stamp, dict) or stamp.get("wheels") != _pins(wheels, machine):
            return False
        if stamp.get("tree") != _measure(root):
            return False
        made_ns = file.stat().st_ctime_ns
        if "contents_sha256" not in stamp or all(path.lstat().st_ctime_ns <= made_ns for path in _files(root)):
            return True
        return bool(stamp["contents_sha256"] == _contents_sha256(root))
    except (OSError, ValueError, RecursionError):
        return False


def _files(tree: Path) -> list[Path]:
    """Return every file and link of a bundle but its stamp, sorted."""
    return [
        path for path in sorted(tree.rglob("*")) if path.name != _STAMP and (path.is_symlink() or not path.is_dir())
    ]


def _measure(tree: Path) -> dict[str, object]:
    digest, files = hashlib.sha256(), _files(tree)
    for path in files:
        status = path.lstat()
        size = str(path.readlink()) if stat.S_ISLNK(status.st_mode) else str(status.st_size)
        digest.update(f"{path.relative_to(tree).as_posix()}\0{size}\0".encode())
    return {"files": len(files), "names_and_sizes_sha256": digest.hexdigest()}


def _contents_sha256(tree: Path) -> str:
    digest = hashlib.sha256()
    for path in _files(tree):
        digest.update(
            f"{path.relative_to(tree).as_posix()}\0{'' if path.is_symlink() else file_sha256(path)}\0".encode()
        )
    return digest.hexdigest()


def _download(
    bundle: Bundle,
    wheels: Sequence[Wheel],
    machine: str,
    folder: Path,
    environment: Mapping[str, str],
    python: Path,
) -> list[Path]:
    requirements = folder.parent / "requirements.txt"
    lines = [f"{pin} --hash=sha256:{digest}\n" for pin, digest in _pins(wheels, machine).items()]
    requirements.write_text("".join(lines), encoding="utf-8")
    options = ("--disable-pip-version-check", "--no-input", "--no-deps", "--only-binary=:all:", "--require-hashes")
    command: list[str | Path] = [
        python,
        "-m",
        "pip",
        "download",
        *options,
        "--dest",
        folder,
        "--requirement",
        requirements,
    ]
    answer = ask(command, environment, _DOWNLOAD_DEADLINE_S)
    if not answer.ok:
        raise _download_error(bundle, wheels, answer.problem, answer.errors)
    by_digest = {file_sha256(file): file for file in folder.glob("*.whl")}
    found = [by_digest.get(wheel.sha256[machine]) for wheel in wheels]
    if None in found:
        raise _error(bundle, "the hash of each wheel must be the pinned one", "wheels-hash", observed=str(by_digest))
    return [file for file in found if file is not None]


def _download_error(bundle: Bundle, wheels: Sequence[Wheel], problem: str | None, errors: str) -> ColiError:
    said = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith("WARNING")]
    observed = (problem or " | ".join(said[-3:]))[:600]
    if "No module named pip" in errors:
        return _error(
            bundle, "pip must be there to download wheels", "pip-missing", observed=observed, fix="python -m ensurepip"
        )
    if "DO NOT MATCH THE HASHES" in errors:
        return _error(
            bundle,
            "the hash of each wheel must be the pinned one",
            "wheels-hash",
            observed=observed,
            fix="do not use that index: it serves other files than those that were checked",
        )
    if "[Errno 28]" in errors or "[Errno 122]" in errors:
        return _error(bundle, "its wheels must fit the disk", "wheels-io", observed=observed, fix=_SPACE)
    pins = " ".join(f"{wheel.name}=={wheel.version}" for wheel in wheels)
    return _error(
        bundle,
        "pip must be able to download the pinned wheels",
        "wheels-download",
        observed=observed,
        fix="check the network, or pip's index and proxy settings; once made, it needs no network. Without one: "
        f"`pip download --no-deps --only-binary=:all: -d FOLDER {pins}` on a machine of this kind that has one, bring "
        "FOLDER here, and build with PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER",
    )


def _unpack(file: Path, tree: Path, bundle: Bundle, wheel: Wheel) -> None:
    """Unpack what lies below the wheel's prefix, and its licences. Nothing lands outside ``tree``."""
    with _opened(file, bundle) as archive:
        entries = archive.infolist()
        if len(entries) > _MAX_FILES or sum(entry.file_size for entry in entries) > _MAX_BYTES:
            raise _error(bundle, "a wheel must stay within 50000 files and 4 GiB", "wheels-size", observed=file.name)
        for entry in entries:
            name = entry.filename
            path = PurePosixPath(name)
            mode = entry.external_attr >> 16
            if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or stat.S_ISLNK(mode):
                raise _error(
                    bundle,
                    "a wheel must hold plain files with relative names",
                    "wheels-name",
                    observed=f"{name[:200]!r} in {file.name}",
                )
            if entry.is_dir():
                continue
            if name.startswith(wheel.only):
                target = tree / name[len(bundle.prefix) :]
            elif "/licenses/" in name and ".dist-info/" in name:
                target = tree / "licenses" / wheel.name / path.name
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
            if mode & 0o111:
                target.chmod(0o755)


@contextlib.contextmanager
def _opened(file: Path, bundle: Bundle) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise _error(
            bundle, "a wheel must be a ZIP archive", "wheels-archive", observed=f"{file.name}: {error}"
        ) from None


def _add_links(tree: Path) -> None:
    """Add what wheels lack: nvcc's own profile looks in lib64, and linkers want names without a version."""
    library = tree / "lib"
    if library.is_dir() and not (tree / "lib64").exists():
        (tree / "lib64").symlink_to("lib")
    for file in sorted(library.glob("lib*.so.*"), key=lambda path: (len(path.name), path.name)):
        link = library / (file.name.partition(".so.")[0] + ".so")
        if not link.exists():
            link.symlink_to(file.name)


def _check_complete(bundle: Bundle, tree: Path) -> None:
    missing = [name for name in bundle.must_have if not (tree / name).is_file()]
    if missing:
        raise _error(
            bundle, "the wheels must make a whole", "wheels-incomplete", observed="missing: " + ", ".join(missing)
        )


def _error(bundle: Bundle, rule: str, code: str, *, observed: str | None = None, fix: str | None = None) -> ColiError:
    return ColiError(bundle.id, rule, observed=observed, fix=fix, code=f"build.{code}")
