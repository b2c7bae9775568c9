"""The table: every option, COLI_* variable and TOML key of coli, declared once.

Options of the command line, their help texts, `coli config show` and the table in docs/guide.md all come from here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from coli.settings.kinds import FLAG, IDS, PATH, PATHS, SIZE, STOPS, TEXT, TEXTS, Kind, choice, integer, number

__all__ = ["EVERY", "SETTINGS", "Setting", "find"]

_MODELS = ("run", "chat", "verify", "doctor", "plan")
_TALK = ("run", "chat")
_ENGINE = ("run", "chat", "demo", "verify", "plan")
_BUILD = ("build",)
_DOCTOR = ("doctor",)
EVERY = ("run", "chat", "demo", "verify", "families", "backends", "build", "doctor", "plan", "explain", "config")


@dataclass(frozen=True)
class Setting:
    """Declare one setting.

    ``default`` None means unset; ``unset`` then says what happens. ``option``, ``variable``, ``toml_key``: None where
    there is none. ``aliases``: variables of other programs that are honoured. ``readers``: the commands that use it.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    option: str | None
    variable: str | None
    toml_key: str | None
    readers: tuple[str, ...]
    unset: str = "-"
    aliases: tuple[str, ...] = ()


SETTINGS: tuple[Setting, ...] = (
    # What to run and on what.
    Setting(
        "model",
        PATH,
        None,
        "Checkpoint: a folder, or a repository folder of the Hugging Face cache.",
        None,
        "COLI_MODEL",
        "model",
        _MODELS,
        unset="the argument MODEL is needed",
    ),
    Setting(
        "backend",
        replace(PATH, metavar="NAME|FILE"),
        None,
        "Force a compute backend: its name, for example cpu-portable, or a library file.",
        "--backend",
        "COLI_BACKEND",
        "backend",
        (*_ENGINE, "backends", "doctor"),
        unset="the best one that passes every gate",
        aliases=("COLI_DSV4_DLL",),
    ),
    Setting(
        "backend_path",
        PATHS,
        (),
        "Folders that are searched for backend libraries before the user data folder and the package.",
        None,
        "COLI_BACKEND_PATH",
        "backend_path",
        (*_ENGINE, "backends", "doctor"),
    ),
    Setting(
        "plugins",
        TEXTS,
        None,
        "Allow list of family plugins, by distribution name; empty: none.",
        None,
        "COLI_PLUGINS",
        "plugins",
        (*_ENGINE, "families", "doctor"),
        unset="all installed ones",
    ),
    Setting(
        "threads",
        integer(1, 1024),
        None,
        "Threads of the CPU backend. The number changes speed only, never the result.",
        "--threads",
        "COLI_THREADS",
        "threads",
        (*_ENGINE, "doctor"),
        unset="the cores this process may use",
    ),
    Setting(
        "context",
        integer(1),
        4096,
        "Positions the caches hold: prompt and answer together. Where none is set, plan proposes a number.",
        "--ctx",
        "COLI_CTX",
        "context",
        (*_ENGINE, "doctor"),
    ),
    Setting(
        "prefill_chunk",
        integer(1, 65536),
        128,
        "Prompt tokens computed at once. Changes speed and memory only.",
        "--prefill-chunk",
        "COLI_PREFILL_CHUNK",
        "prefill_chunk",
        (*_ENGINE, "doctor"),
    ),
    Setting(
        "ram",
        SIZE,
        None,
        "Hard limit on memory: 12GiB, 12GB, 512MiB; a bare number is GiB.",
        "--ram",
        "COLI_RAM",
        "ram",
        (*_ENGINE, "doctor"),
        unset="what is available",
    ),
    Setting(
        "io",
        choice("auto", "direct", "buffered"),
        "auto",
        "Read weights past the page cache (direct) or through it (buffered); auto goes by their size and the memory.",
        "--io",
        "COLI_IO",
        "io",
        (*_ENGINE, "doctor"),
    ),
    Setting(
        "vram",
        SIZE,
        None,
        "Limit on the copies of weights in a GPU's memory: 8GiB, 512MiB; a bare number is GiB.",
        "--vram",
        "COLI_VRAM",
        "vram",
        (*_ENGINE, "doctor"),
        unset="what is free, less a reserve",
    ),
    Setting(
        "gpu",
        replace(TEXT, metavar="INDEX|UUID|none"),
        None,
        "Compute on this GPU, as nvidia-smi numbers them, and on no other; none: on the CPU.",
        "--gpu",
        "COLI_GPU",
        "gpu",
        (*_ENGINE, "backends", "doctor"),
        unset="the first that CUDA_VISIBLE_DEVICES leaves",
    ),
    Setting(
        "audit",
        FLAG,
        False,
        "Compare the plan with what the last run of the model really took.",
        "--audit",
        None,
        None,
        ("plan",),
    ),
    # The prompt.
    Setting("raw", FLAG, False, "Send the prompt as it is, without the chat format.", "--raw", None, None, ("run",)),
    Setting(
        "ids", IDS, None, "Send these token ids instead of a text: 0,5,7.", "--ids", None, None, ("run",), unset="-"
    ),
    Setting("system", TEXT, None, "System message.", "--system", "COLI_SYSTEM", "system", _TALK, unset="none"),
    Setting(
        "thinking",
        FLAG,
        False,
        "Let the model think before it answers.",
        "--thinking",
        "COLI_THINKING",
        "thinking",
        _TALK,
    ),
    # Sampling.
    Setting(
        "max_tokens",
        integer(0),
        256,
        "Most tokens to generate per answer.",
        "--max-tokens",
        "COLI_MAX_TOKENS",
        "max_tokens",
        _TALK,
    ),
    Setting(
        "temperature",
        number(0, 100),
        None,
        "0 always takes the most probable token.",
        "--temperature",
        "COLI_TEMPERATURE",
        "temperature",
        _TALK,
        unset="generation_config.json, else 0",
    ),
    Setting(
        "top_p",
        number(0, 1, above=True),
        None,
        "Sample from the most probable tokens that together have this probability.",
        "--top-p",
        "COLI_TOP_P",
        "top_p",
        _TALK,
        unset="generation_config.json, else 1",
    ),
    Setting(
        "top_k",
        integer(0),
        None,
        "Sample from this many most probable tokens; 0: all.",
        "--top-k",
        "COLI_TOP_K",
        "top_k",
        _TALK,
        unset="generation_config.json, else 0",
    ),
    Setting(
        "min_p",
        number(0, 1),
        None,
        "Drop tokens less probable than this share of the most probable one.",
        "--min-p",
        "COLI_MIN_P",
        "min_p",
        _TALK,
        unset="generation_config.json, else 0",
    ),
    Setting(
        "seed",
        integer(0, 2**64 - 1),
        0,
        "Seed of the sampler: same seed, same text, on every machine.",
        "--seed",
        "COLI_SEED",
        "seed",
        _TALK,
    ),
    Setting(
        "stop",
        STOPS,
        (),
        "Stop before this text; may be given several times.",
        "--stop",
        None,
        "stop",
        _TALK,
    ),
    # Verification.
    Setting(
        "reference",
        PATH,
        None,
        "Folder with reference.json and reference.npz.",
        "--reference",
        None,
        None,
        ("verify",),
        unset="needed",
    ),
    # Building backends.
    Setting(
        "cells",
        TEXTS,
        (),
        "Build this cell of the matrix, by its id; may be given more than once.",
        "--cell",
        None,
        None,
        _BUILD,
        unset="the default cells of this machine",
    ),
    Setting(
        "all_cells", FLAG, False, "Build every cell of the matrix that can be built here.", "--all", None, None, _BUILD
    ),
    Setting(
        "list_cells", FLAG, False, "List the cells, with what is known of each, and stop.", "--list", None, None, _BUILD
    ),
    Setting(
        "explain_cell",
        TEXT,
        None,
        "Say how this cell would be built, or why not, and stop.",
        "--explain",
        None,
        None,
        _BUILD,
    ),
    Setting("tag", TEXT, None, "Only the cells of the matrix with this tag.", "--tag", None, None, _BUILD),
    Setting("jobs", integer(1, 1024), None, "Compilers at once.", "-j, --jobs", None, None, _BUILD, unset="the cores"),
    Setting(
        "toolkit",
        TEXT,
        None,
        "CUDA toolkit: a folder, an installed version, or pypi:13.0 for one made from pinned wheels.",
        "--toolkit",
        None,
        None,
        _BUILD,
        unset="the best one that is installed, else pypi:13.0",
    ),
    Setting(
        "anyway",
        FLAG,
        False,
        "Build what the present driver will refuse, for another machine.",
        "--anyway",
        None,
        None,
        _BUILD,
    ),
    Setting(
        "builds",
        PATH,
        None,
        "Folder for objects and logs, one folder a cell and key.",
        "--builds",
        None,
        None,
        _BUILD,
        unset="build in the cache folder",
    ),
    # Examining a machine.
    Setting(
        "only",
        TEXTS,
        (),
        "Run this check or section, with what it needs; may be given more than once.",
        "--only",
        None,
        None,
        _DOCTOR,
        unset="all",
    ),
    Setting("skip", TEXTS, (), "Leave out this check or section.", "--skip", None, None, _DOCTOR),
    Setting("list_checks", FLAG, False, "List the checks and stop.", "--list", None, None, _DOCTOR),
    Setting("strict", FLAG, False, "A warning counts as a failure: exit code 1.", "--strict", None, None, _DOCTOR),
    Setting(
        "deep",
        FLAG,
        False,
        "Read all weights of MODEL through; takes as long as the disk needs.",
        "--deep",
        None,
        None,
        _DOCTOR,
    ),
    Setting(
        "measure",
        FLAG,
        False,
        "Measure how fast disk and memory are, about 6 s, and keep that for the plan; needs MODEL.",
        "--measure",
        None,
        None,
        _DOCTOR,
    ),
    Setting(
        "root",
        PATH,
        None,
        "Examine the machine whose files lie below this folder; its tools are run.",
        "--root",
        None,
        None,
        _DOCTOR,
        unset="this machine",
    ),
    Setting(
        "record",
        PATH,
        None,
        "Write the facts and what the tools said to this file, without what tells whose machine it is.",
        "--record",
        None,
        None,
        _DOCTOR,
    ),
    Setting(
        "machine",
        PATH,
        None,
        "Examine, or plan for, the machine in this file, which `coli doctor --record` wrote.",
        "--machine",
        None,
        None,
        ("doctor", "plan"),
    ),
    Setting(
        "changes",
        TEXTS,
        (),
        "Change a fact: KEY=VALUE, for example ram.total=64GiB; may be given more than once.",
        "--set",
        None,
        None,
        ("doctor", "plan"),
    ),
    Setting("html", PATH, None, "Also write the report as one page to this file.", "--html", None, None, _DOCTOR),
    Setting("verbose", FLAG, False, "Show the evidence of every finding.", "-v, --verbose", None, None, _DOCTOR),
    # Output.
    Setting(
        "json",
        FLAG,
        False,
        "Print one JSON document on stdout and nothing else.",
        "--json",
        None,
        None,
        ("run", "demo", "verify", "families", "backends", "build", "doctor", "plan", "explain", "config"),
    ),
    Setting(
        "explain",
        FLAG,
        False,
        "Print which backend served each stage, and every fallback with its reason.",
        "--explain",
        None,
        None,
        _TALK,
    ),
    Setting(
        "ascii",
        FLAG,
        False,
        "Draw with ASCII characters only.",
        "--ascii",
        "COLI_ASCII",
        "ascii",
        EVERY,
    ),
    Setting(
        "no_color",
        FLAG,
        False,
        "No colour. Output that is not a terminal never has any.",
        "--no-color",
        "NO_COLOR",
        "no_color",
        EVERY,
    ),
    Setting(
        "debug",
        FLAG,
        False,
        "Show the Python traceback of an error.",
        None,
        "COLI_DEBUG",
        None,
        EVERY,
    ),
    Setting(
        "config",
        PATH,
        None,
        "Settings file.",
        None,
        "COLI_CONFIG",
        None,
        EVERY,
        unset="config.toml in the user configuration folder",
    ),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}


def find(name: str) -> Setting:
    """Return the setting called ``name``. Raises KeyError for a name that is not in the table."""
    return _BY_NAME[name]
