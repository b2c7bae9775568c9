"""Options that an engine does not read."""

from __future__ import annotations

import pytest

from coli.errors import UsageError
from coli.families.options import require_read, unread_options
from coli.families.registry import Registry


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
