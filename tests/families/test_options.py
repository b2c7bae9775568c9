"""Options that an engine does not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import coli
from coli.backends.candidates import Search
from coli.errors import UsageError
from coli.families.options import require_read, unread_options
from coli.families.registry import Family, Registry


def test_what_a_family_does_not_read_is_named() -> None:
    given = ["--ram", "--gpu", "--ctx", "--ram"]
    assert [one.option for one in unread_options((), given)] == ["--ram", "--gpu"]
    assert [one.option for one in unread_options(("ram_budget",), given)] == ["--gpu"]
    assert unread_options(("ram_budget", "cuda"), given) == ()


def test_names_only_families_refuse_and_deepseek_v4_reads_all() -> None:
    registry = Registry.load(())
    require_read(registry.get("deepseek_v4").descriptor, ["--ram", "--gpu", "--vram"])
    with pytest.raises(UsageError, match=r"--ram, --gpu: .*does not read it") as refusal:
        require_read(registry.get("olmoe").descriptor, ["--ram", "--gpu"])
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("option", "given"),
    [("--ram", {"ram": "1GiB"}), ("--vram", {"vram": 0}), ("--gpu", {"search": Search(gpu="0")})],
)
def test_opening_a_model_refuses_what_its_engine_ignores(
    option: str, given: dict[str, Any], oracle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def family(one: Family) -> Family:
        return one._replace(descriptor=msgspec.structs.replace(one.descriptor, capabilities=()))

    registry = Registry([family(one) for one in Registry.load(()).families()])
    monkeypatch.setattr(Registry, "load", lambda plugins=None: registry)
    with pytest.raises(UsageError, match=f"^{option}: the family deepseek_v4 does not read it"):
        coli.open(oracle_path, **given)
