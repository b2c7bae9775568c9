from __future__ import annotations

import ast
from pathlib import Path

import coli

_READERS = {"environ", "environb", "getenv", "getenvb", "putenv"}


def _uses(source: str) -> list[int]:
    """Lines that touch the process environment: os.environ, `from os import environ`, os.getenv."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Attribute) and node.attr in _READERS)
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and {name.name for name in node.names} & _READERS)
    ]


def test_the_check_sees_every_way() -> None:
    for line in ("os.environ['A']", "from os import environ as e", "import os as o; o.getenv('A')"):
        assert _uses(line) == [1]


def test_only_one_module_reads_the_environment() -> None:
    root = Path(coli.__file__).parent
    readers = {str(path.relative_to(root)) for path in root.rglob("*.py") if _uses(path.read_text(encoding="utf-8"))}
    assert readers == {"settings/environment.py"}
