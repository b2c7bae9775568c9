"""Other words for what the code calls by one name. Cases are written by people who do not know our names."""

from __future__ import annotations

__all__ = ["same_word"]

# Our name: what else the same thing is called. Only words that leave no doubt.
_OTHERS = {
    # the driver and its devices
    "not-loaded": ("module-not-loaded", "driver-not-loaded", "not-running"),
    "library-missing": ("nvml-missing", "nvml-library-missing", "nvml-not-found"),
    "no-permission": ("permission-denied", "insufficient-permissions", "access-denied"),
    "timeout": ("hang", "hangs", "hung", "no-answer", "not-responding"),
    "absent": ("missing", "not-installed", "no-driver", "none"),
    "driver-too-old-for-ptx": ("ptx-too-new", "ptx-unsupported"),
    "no-code": ("no-kernel-image", "no-binary", "no-matching-code"),
    # building
    "no-space-left": ("disk-full", "no-space", "out-of-disk", "out-of-disk-space"),
    "out-of-memory-while-compiling": ("out-of-memory",),
    "headers-missing": ("cuda-headers-missing", "toolkit-headers-missing", "cuda-runtime-headers-missing"),
    "host-compiler-too-old": ("host-compiler-std-missing", "gcc-too-old"),
    "compiler-crashed": ("internal-compiler-error", "compiler-crash"),
    "build-tool-missing": ("ninja-missing", "cmake-missing"),
    "stale-build-folder": ("stale-build-dir", "stale-cache", "stale-cmake-cache", "cmake-cache-stale"),
    "permission-denied": ("no-permission", "not-writable", "read-only"),
    "toolkits-mixed": ("toolkit-mixed", "mixed-toolkits", "version-mismatch", "toolkit-mismatch"),
    "host-compiler-missing": ("no-host-compiler",),
    "host-compiler-unsupported": ("host-compiler-too-new",),
    "toolkit-missing": ("no-toolkit", "nvcc-missing"),
    # configs
    "config": ("not-json", "invalid-json", "bad-json", "json", "syntax"),
    "no-model-type": ("missing-model-type",),
    "unknown-type": ("unknown-model-type", "unknown-family"),
    "non-finite": ("not-finite", "nan"),
    # weights
    "hole": ("gap", "uncovered-bytes"),
    "trailing-bytes": ("extra-bytes", "trailing-data"),
    "offsets": ("bad-offsets", "out-of-bounds", "out-of-range"),
    "tensor-size": ("size-mismatch", "shape-mismatch", "wrong-size"),
    "duplicate-tensor": ("duplicate-name", "duplicate-key", "duplicate"),
    "header": ("bad-header", "header-not-json", "header-json", "invalid-header"),
    "html-page": ("html", "html-instead-of-weights", "not-safetensors"),
    "error-page": ("html-page", "not-safetensors"),
    "other-format": ("not-safetensors", "wrong-format"),
    "index": ("bad-index", "unsafe-path", "path-traversal"),
    "missing-index": ("index-missing", "no-index"),
    "absent-tensor": ("missing-tensor", "absent-tensors", "missing-tensors"),
    "incomplete-download": ("incomplete", "partial-download"),
    "dangling-link": ("broken-link", "incomplete-download"),
    "tied-head": ("unused-head",),
}


def same_word(found: str, wanted: str) -> bool:
    """Say whether ``wanted`` is another word for ``found``, alone or behind the status that a case writes before it."""
    status, _, name = found.rpartition(":")
    same_status, _, other = wanted.rpartition(":")
    return status == same_status and other in _OTHERS.get(name, ())
