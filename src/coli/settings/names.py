"""Names that are not ours: misspelt ones, those of the incumbent `colibri`, and the rest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["incumbent_note", "nearest"]

_NOT_HERE = "this version has no counterpart"

# Variables of colibri (github.com/JustVugg/colibri) with what replaces each here. None: nothing does yet, we say it.
_INCUMBENT: dict[str, str | None] = {
    "COLI_TEMP": "COLI_TEMPERATURE or --temperature",
    "COLI_PROMPT": "the argument PROMPT of coli run",
    "COLI_RAM_OVERCOMMIT": "COLI_RAM or --ram, which is a hard limit",
    "COLI_NO_OMP_TUNE": "COLI_THREADS or --threads",
    "COLI_OMP_TUNED": "COLI_THREADS or --threads",
    "COLI_CUDA": "COLI_BACKEND or --backend",
    "COLI_METAL": "COLI_BACKEND or --backend",
    "COLI_VULKAN": "COLI_BACKEND or --backend",
    "DSV4_CUDA": "COLI_BACKEND or --backend",
    "DSV4_CUDA_DEEPGEMM": "COLI_BACKEND or --backend",
    "COLI_TIMERS": "--explain",
    "DSV4_DECODE_PROF": "--explain",
    "DSV4_CUDA_MOE_PROF": "--explain",
    "COLI_MODEL_MIRROR": None,
    "COLI_MODEL_DIRS": None,
    "COLI_DISK_WEIGHTS": None,
    "COLI_GPU": None,
    "COLI_GPUS": None,
    "COLI_NUMA": None,
    "COLI_POLICY": None,
    "COLI_MMAP": None,
    "COLI_USAGE": None,
    "COLI_USAGE_DECAY": None,
    "COLI_EXPERT_STORE": None,
    "COLI_GEMM_CHUNK": None,
    "COLI_ENV_DUMP": "coli config show --origin",
    "COLI_ENV_STRICT": "nothing: misspelt COLI_* names are always errors",
    "DSV4_HYBRID": None,
    "DSV4_CUDA_VRAM_RESERVE_MB": None,
    "DSV4_CUDA_EXPERT_MIRRORS": None,
    "DSV4_CUDA_DEVICE": None,
}
_INCUMBENT_PREFIXES = (
    "COLI_ANS_",
    "COLI_CORPUS_",
    "COLI_CUDA_",
    "COLI_K3_",
    "COLI_LOGIT_",
    "COLI_METAL_",
    "COLI_MTP_",
    "COLI_V4_",
    "COLI_VK_",
    "DSV4_",
)


def incumbent_note(name: str) -> str | None:
    """Return what to use instead of the colibri variable ``name``, None when it is not known as one."""
    if name not in _INCUMBENT and not name.startswith(_INCUMBENT_PREFIXES):
        return None
    instead = _INCUMBENT.get(name)
    return f"{name} belongs to colibri and is not read: {f'use {instead}' if instead else _NOT_HERE}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` is most likely a misspelling of, None when none is close."""
    # Compared without the prefix, which would make every COLI_* name look alike. 0.66 catches one wrong letter in three
    # (RAN, RAM) and keeps TOKEN and TOP_K (0.6) apart.
    bare = {other.removeprefix("COLI_").lower(): other for other in known}
    found = difflib.get_close_matches(name.removeprefix("COLI_").lower(), list(bare), n=1, cutoff=0.66)
    return bare[found[0]] if found else None
