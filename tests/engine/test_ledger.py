from __future__ import annotations

import subprocess
import sys

import pytest

from coli.engine.ledger import Grant, Item, Ledger
from coli.errors import BudgetError


def test_the_sum_stays_at_or_below_the_limit() -> None:
    ledger = Ledger({"ram": 100})
    first = ledger.reserve(Item("dense", "ram", 60))
    ledger.reserve(Item("workspace", "ram", 40))
    assert ledger.reserved("ram") == ledger.peak("ram") == 100
    with pytest.raises(BudgetError):
        ledger.reserve(Item("one byte", "ram", 1))
    ledger.release(first)
    assert (ledger.reserved("ram"), ledger.peak("ram"), ledger.free("ram")) == (40, 100, 60)


def test_bytes_per_token_and_counts_add_up() -> None:
    item = Item("kv", "ram", nbytes=7, per_token=3, count=5)
    assert item.total_bytes(100) == (7 + 3 * 100) * 5
    assert Ledger({}).reserve(item, 100).nbytes == 1535


def test_an_elastic_item_takes_whole_units_of_what_is_left() -> None:
    ledger = Ledger({"ram": 100})
    ledger.reserve(Item("dense", "ram", 35))
    grant = ledger.reserve(Item("experts", "ram", 10, count=50, minimum=3))
    assert (grant.count, grant.nbytes) == (6, 60)
    assert Ledger({}).reserve(Item("experts", "ram", 10, count=50, minimum=3)).count == 50


def test_a_refusal_has_the_numbers_and_the_option() -> None:
    ledger = Ledger({"ram": 100})
    ledger.reserve(Item("dense", "ram", 75))
    ledger.reserve(Item("workspace", "ram", 5))
    with pytest.raises(BudgetError) as caught:
        ledger.reserve(Item("experts", "ram", 10, count=50, minimum=3))
    error = caught.value
    assert error.exit_code == 4
    assert error.code == "budget.ram"
    assert error.subject == "experts"
    assert error.rule == "it does not fit the ram budget of 100 bytes"
    assert error.observed == "30 bytes needed, 80B reserved already (dense 75B, workspace 5B)"
    assert error.expected == "at most 20 bytes"
    assert error.fix == "--ram 110B or more"
    assert ledger.reserved("ram") == 80


def test_what_the_refusal_asks_for_is_enough() -> None:
    items = [Item("dense", "ram", 75), Item("experts", "ram", 10, count=50, minimum=3)]
    for limit, fits in ((104, False), (105, True)):
        ledger = Ledger({"ram": limit})
        if fits:
            assert [ledger.reserve(item).nbytes for item in items] == [75, 30]
        else:
            ledger.reserve(items[0])
            with pytest.raises(BudgetError, match="--ram 105B"):
                ledger.reserve(items[1])


def test_all_that_is_needed_is_asked_for_at_once() -> None:
    gibibyte = 1 << 30
    items = [Item("dense", "ram", 2 * gibibyte + 1), Item("kv", "ram", 0, per_token=gibibyte // 8)]
    items.append(Item("experts", "ram", gibibyte, count=50, minimum=3))
    for limit, tokens, fits in ((7, 8, True), (6, 8, False), (7, 16, False)):
        ledger = Ledger({"ram": (limit << 30) + 1})
        ledger.reserve(Item("runtime", "ram", gibibyte))
        if fits:
            ledger.require(items, tokens)
            assert [ledger.reserve(item, tokens).count for item in items] == [1, 1, 3]
        else:
            with pytest.raises(BudgetError) as caught:
                ledger.require(items, tokens)
            needed = 2 + tokens // 8 + 3
            assert caught.value.observed == (
                f"{(needed << 30) + 1} bytes ({needed}GiB) needed at least "
                f"(experts 3GiB, dense 2GiB, kv {tokens // 8}GiB), 1GiB reserved already (runtime 1GiB)"
            )
            assert caught.value.fix == f"--ram {(needed + 1) * 1024 + 1}MiB or more"
        assert ledger.reserved("ram") == gibibyte if not fits else True
    Ledger({}).require(items)


def test_tiers_have_their_own_limits() -> None:
    ledger = Ledger({"ram": 10, "vram": 20})
    ledger.reserve(Item("mirror", "vram", 20))
    ledger.reserve(Item("dense", "ram", 10))
    with pytest.raises(BudgetError, match="--vram 21B or more"):
        ledger.reserve(Item("more", "vram", 1))


def test_only_a_held_grant_can_be_released_and_only_once() -> None:
    ledger = Ledger({"ram": 10})
    item = Item("dense", "ram", 5)
    grant = ledger.reserve(item)
    ledger.reserve(item)
    ledger.release(grant)
    for stranger in (grant, Grant(item, 1, 5), Grant(Item("x", "disk", 1), 1, 1)):
        with pytest.raises(ValueError, match="does not hold"):
            ledger.release(stranger)
    assert ledger.reserved("ram") == 5


def test_the_report_lists_what_is_held() -> None:
    ledger = Ledger({"ram": 100, "vram": None})
    ledger.reserve(Item("dense", "ram", 5, count=2))
    assert ledger.report() == {
        "ram": {
            "limit_bytes": 100,
            "reserved_bytes": 10,
            "peak_bytes": 10,
            "items": [{"name": "dense", "count": 2, "bytes": 10}],
        },
        "vram": {"limit_bytes": None, "reserved_bytes": 0, "peak_bytes": 0, "items": []},
    }


def test_planning_needs_no_numpy() -> None:
    code = "import sys, coli.engine.ledger, coli.engine.slab, coli.engine.store; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_held_already_is_counted_by_the_one_refusal() -> None:
    ledger = Ledger({"ram": 100})
    ledger.charge(Item("runtime", "ram", 90))
    ledger.charge(Item("workspace", "ram", 30))
    assert ledger.reserved("ram") == 120 and ledger.free("ram") == 0
    with pytest.raises(BudgetError) as caught:
        ledger.require([Item("weights", "ram", 50), Item("experts", "ram", 7, count=9, minimum=2)])
    assert "runtime" in str(caught.value) and "weights" in str(caught.value)
    # 90 + 30 + 50 + 2 * 7, and a 64th of what was measured to spare.
    assert caught.value.fix == "--ram 185B or more"
    with pytest.raises(BudgetError, match="the model"):
        ledger.require(())  # beyond the limit already
    with pytest.raises(BudgetError):
        ledger.reserve(Item("weights", "ram", 1))
