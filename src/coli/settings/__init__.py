"""Settings: one table of options, COLI_* variables and TOML keys, and their resolution.

resolved = coli.settings.resolve({"threads": 4})
resolved["threads"], resolved.origin("threads")
"""

from __future__ import annotations

from coli.settings.environment import Environment
from coli.settings.resolution import Origin, Resolved, resolve
from coli.settings.table import SETTINGS, Setting, find

__all__ = ["SETTINGS", "Environment", "Origin", "Resolved", "Setting", "find", "resolve"]
