"""The first refusal of a memory limit names an amount that is enough."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import coli
from coli.errors import BudgetError

DEMO = Path(coli.__file__).parent / "data" / "demo" / "model"
MIB = 1 << 20


@pytest.mark.parametrize("model", ["demo", "oracle"])
@pytest.mark.parametrize("given_bytes", [MIB, 40 * MIB])
def test_the_amount_of_the_first_refusal_is_enough(model: str, given_bytes: int, oracle_path: Path) -> None:
    path = DEMO if model == "demo" else oracle_path
    with pytest.raises(BudgetError) as caught:
        coli.open(path, ram=given_bytes, threads=1)
    named = re.fullmatch(r"--ram (\d+)MiB or more", caught.value.fix or "")
    assert named is not None, caught.value.fix
    assert "expert cache" in str(caught.value) and "runtime" in str(caught.value)
    with coli.open(path, ram=int(named[1]) * MIB, threads=1) as opened:
        assert len(list(opened.generate([1, 2, 3], max_tokens=2))) == 2
