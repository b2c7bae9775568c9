"""Compute backends: the ABI, the loader that chooses a library and says why, and the dispatch of stages."""

from __future__ import annotations
