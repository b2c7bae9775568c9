"""Folders and files of coli outside the checkout: configuration, user data, cache, packaged data."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder", "config_file", "data_folder", "demo_model", "user_path"]


def user_path(text: str) -> Path:
    """Return a path as a person writes it: `~` is the home folder, and stays `~` where there is no such home."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  Path.expanduser raises RuntimeError for an unknown home


def config_file() -> Path:
    """Return the default settings file, `~/.config/coli/config.toml` on Linux. It need not exist."""
    import platformdirs

    return Path(platformdirs.user_config_dir("coli", appauthor=False)) / "config.toml"


def data_folder() -> Path:
    """Return the user data folder, where built backends are installed. It need not exist."""
    import platformdirs

    return Path(platformdirs.user_data_dir("coli", appauthor=False))


def cache_folder() -> Path:
    """Return the user cache folder. It need not exist; everything in it can be made again."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("coli", appauthor=False))


def demo_model() -> Path:
    """Return the folder of the demo checkpoint that the package carries."""
    return Path(__file__).parent / "data" / "demo" / "model"
