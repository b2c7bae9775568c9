"""Runs on Windows: coli's loader on the libraries of a folder. Prints one JSON document; the tests judge it.

python on_windows.py FOLDER: every folder below FOLDER is a house with one or more libraries; `canary.bin` beside them
replaces coli's own.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, "C:\\site")

from coli.backends import loader
from coli.backends._probe import open_library
from coli.backends.candidates import Search, default_search
from coli.backends.cpu_level import cpu_level


def open_error(path: Path) -> int | str | None:
    """Return the code with which Windows refuses to open a library, None when it opens.

    Python makes FileNotFoundError of code 126 (ERROR_MOD_NOT_FOUND: the library or what it needs) and keeps no code.
    """
    try:
        open_library(path)
    except OSError as error:
        return error.winerror or type(error).__name__
    return None


def explain(library: Path) -> dict[str, Any]:
    """Return what every gate says of one library."""
    own = library.with_name("canary.bin")
    empty = Search(package_folder=library.parent / "nowhere", environment=dict(os.environ))
    deadline_s = 20.0 if library.parent.name == "hang" else 120.0
    canary = own if own.is_file() else loader.CANARY
    trace = loader.explain_selection(str(library), empty, canary=canary, deadline_s=deadline_s)
    return trace.candidates[0].as_dict()


def main(folder: Path) -> dict[str, Any]:
    """Examine every house, then choose a backend as a program does."""
    found: dict[str, Any] = {"levels": cpu_level().levels}
    kernel = ctypes.WinDLL("kernel32")
    kernel.GetEnabledXStateFeatures.restype = ctypes.c_uint64
    found["saved"] = kernel.GetEnabledXStateFeatures()
    search = default_search(environment=dict(os.environ))
    found["places"] = {"data": str(search.data_folder), "cache": str(search.cache_folder)}
    libraries = [file for file in folder.glob("*/coli_*.*") if file.suffix in (".dll", ".so")]
    libraries.sort(key=lambda file: file.parent.name != "hang")  # the others fill its time
    houses: dict[str, Any] = {}
    with ThreadPoolExecutor(3) as pool:  # children that start cost more waiting than work
        for library, trace in zip(libraries, pool.map(explain, libraries), strict=True):
            houses.setdefault(library.parent.name, {})[library.name] = trace
    found["houses"] = houses
    # What Windows itself says, with the current folder and PATH full of what is missing.
    os.chdir(folder / "elsewhere")
    os.environ["PATH"] = f"{folder / 'elsewhere'};{os.environ['PATH']}"
    names = ("needs", "needs beside", "32 bit", "elf", "real Größe 雪")
    found["open"] = {name: open_error(next((folder / name).glob("coli_*.[ds]*[lo]"))) for name in names}
    found["open"]["gone"] = open_error(folder / "real Größe 雪" / "gone.dll")
    real = Search(package_folder=folder / "real Größe 雪", cache_folder=folder / "kept", environment=dict(os.environ))
    loaded = loader.load(search=real)
    again = loader.survey(real)
    found["loaded"] = {
        "name": loaded.name,
        "banner": loader.render_banner(loaded),
        "address": loaded.address,
        "cached": [candidate.cached for candidate in again.candidates],
    }
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))))
