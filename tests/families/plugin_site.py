"""Writes small plugin packages as an installer would leave them: a package folder and its dist-info."""

from __future__ import annotations

from pathlib import Path

TOML = """
id = "{package}"
api = ">=1,<2"
name = "Plugin {package}"
model_types = ["{package}_type"]
engine = "{package}.engine:Engine"

[[roles]]
kind = "embedding"
names = ["embed.weight"]
"""

ENGINE = """
class Engine:
    def forward(self, ids, position, want): ...
    def reset(self): ...
    def close(self): ...
"""


def install(
    site: Path,
    package: str,
    *,
    toml: str | None = None,
    engine: str = ENGINE,
    init: str = "",
    entry: str | None = None,
    metadata: str | None = None,
    entry_points: str | None = None,
) -> None:
    """Install a plugin of the distribution `package-plugin` 1.0; every part can be replaced by a broken one."""
    folder = site / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(init)
    (folder / "engine.py").write_text(engine)
    (folder / "family.toml").write_text(TOML.format(package=package) if toml is None else toml)
    info = site / f"{package}_plugin-1.0.dist-info"
    info.mkdir()
    default = f"Metadata-Version: 2.1\nName: {package}-plugin\nVersion: 1.0\n"
    (info / "METADATA").write_text(default if metadata is None else metadata)
    default = f"[coli.families]\n{package} = {package if entry is None else entry}\n"
    (info / "entry_points.txt").write_text(default if entry_points is None else entry_points)
