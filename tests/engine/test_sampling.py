from __future__ import annotations

import math
from decimal import Decimal, getcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coli.engine.sampling import Sampler, SamplingOptions, philox, resolve_sampling, uniform
from coli.errors import CheckpointError, StageError, UsageError

# Philox4x32 of 10 rounds, counter and key to output: the known answers of the Random123 library (D. E. Shaw Research).
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000 00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("inputs", "outputs"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(inputs: str, outputs: str) -> None:
    given = words(inputs)
    assert philox((given[0], given[1], given[2], given[3]), (given[4], given[5])) == words(outputs)


def test_a_draw_is_the_top_53_bits_of_two_words() -> None:
    assert uniform(0, 0) == float(Fraction(0x6627E8D5E169C58D >> 11, 2**53))
    # The second block of the third vector's key, as randomgen 2.5's Philox(key, number=4, width=32) gives it.
    key = 0x299F31D0A4093822
    assert uniform(key, 1) == float(Fraction(0xF9A58D27A8E41926 >> 11, 2**53))
    assert uniform(2**64 - 1, 2**64 - 1) != uniform(2**64 - 1, 2**32 - 1)
    assert all(0 <= uniform(key, number) < 1 for number in range(1000))


def exact_exp(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Exponential with 40 digits, rounded once: the same on every machine."""
    getcontext().prec = 40
    return np.array([float(Decimal(float(value)).exp()) for value in values], np.float64)


def draw(count: int, logits: list[float], **options: Any) -> list[int]:
    sampler = Sampler(SamplingOptions(**options), exp=exact_exp)
    return [sampler(np.array(logits, np.float32)) for _ in range(count)]


def test_temperature_zero_takes_the_best_and_the_lower_id_of_equals() -> None:
    assert draw(3, [1.0, 3.0, 3.0, -2.0]) == [1, 1, 1]
    assert draw(1, [-0.0, 0.0]) == [0]


def test_equal_logits_split_the_unit_interval_by_id() -> None:
    """Of four equal tokens the draw u takes number floor(4 u)."""
    expected = [math.floor(4 * uniform(7, number)) for number in range(200)]
    assert draw(200, [2.0] * 4, temperature=1.0, seed=7) == expected
    assert set(expected) == {0, 1, 2, 3}


def test_the_first_draw_of_seed_zero_by_hand() -> None:
    # u = 0x6627e8d5.../2^32 = 0.39905; probabilities of ln 5, ln 3, ln 2 are .5, .3, .2, sorted from the best down.
    logits = [math.log(2), math.log(5), math.log(3)]
    assert draw(1, logits, temperature=1.0, seed=0) == [1]
    assert draw(1, [math.log(3), math.log(4), math.log(3)], temperature=1.0, seed=0) == [1]  # .4, .3, .3
    assert draw(1, [math.log(35), math.log(30), math.log(35)], temperature=1.0, seed=0) == [
        2
    ]  # .35, .35, .3: ids 0, 2, 1
    # half the temperature squares the weights: 9, 9, 4 of 22
    assert draw(1, [math.log(2), math.log(3), math.log(3)], temperature=0.5, seed=0) == [1]  # .409 for id 1


def frequencies(count: int, logits: list[float], **options: Any) -> dict[int, float]:
    picked = draw(count, logits, **options)
    return {token: picked.count(token) / count for token in sorted(set(picked))}


LOGITS = [math.log(p) for p in (0.05, 0.4, 0.15, 0.3, 0.1)]  # best down: 1, 3, 2, 4, 0


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {0: 0.05, 1: 0.4, 2: 0.15, 3: 0.3, 4: 0.1}),
        ({"top_k": 2}, {1: 4 / 7, 3: 3 / 7}),
        ({"top_k": 1}, {1: 1.0}),
        ({"top_k": 9}, {0: 0.05, 1: 0.4, 2: 0.15, 3: 0.3, 4: 0.1}),
        ({"top_p": 0.39}, {1: 1.0}),
        ({"top_p": 0.41}, {1: 4 / 7, 3: 3 / 7}),
        ({"top_p": 0.69}, {1: 4 / 7, 3: 3 / 7}),
        ({"top_p": 0.71}, {1: 40 / 85, 2: 15 / 85, 3: 30 / 85}),
        ({"min_p": 0.7}, {1: 4 / 7, 3: 3 / 7}),
        ({"min_p": 0.3}, {1: 40 / 85, 2: 15 / 85, 3: 30 / 85}),
        ({"min_p": 1.0}, {1: 1.0}),
        ({"top_k": 3, "top_p": 0.6}, {1: 4 / 7, 3: 3 / 7}),  # of the three, .4/.85 + .3/.85 = .82
        ({"top_k": 2, "top_p": 0.58}, {1: 4 / 7, 3: 3 / 7}),  # 4/7 = .571 alone does not reach it
        ({"top_k": 2, "top_p": 0.57}, {1: 1.0}),
    ],
)
def test_filters_keep_the_right_tokens_with_the_right_odds(options: dict[str, Any], kept: dict[int, float]) -> None:
    found = frequencies(1500, LOGITS, temperature=1.0, seed=3, **options)
    assert found.keys() == kept.keys()
    for token, odds in kept.items():
        assert found[token] == pytest.approx(odds, abs=4 * math.sqrt(odds * (1 - odds) / 1500) + 1e-12)


def test_temperature_flattens_and_sharpens() -> None:
    weights = [math.exp(logit / 2) for logit in LOGITS]
    found = frequencies(1500, LOGITS, temperature=2.0, seed=4)
    for token, weight in enumerate(weights):
        assert found[token] == pytest.approx(weight / sum(weights), abs=0.05)
    assert frequencies(20, LOGITS, temperature=1e-300, seed=4) == {1: 1.0}


def test_a_seed_gives_the_same_tokens_again_and_another_one_does_not() -> None:
    logits = [float(i % 7) for i in range(50)]
    first = draw(40, logits, temperature=1.0, seed=11)
    assert draw(40, logits, temperature=1.0, seed=11) == first
    assert draw(40, logits, temperature=1.0, seed=12) != first
    assert draw(40, logits, temperature=1.0, seed=11 + 2**40) != first


def test_nothing_depends_on_the_order_of_a_sum() -> None:
    """One seed's tokens, worked out with exact fractions from the draws and 40-digit exponentials."""
    logits = [((i * 37) % 23) / 8 for i in range(300)]  # many equal ones, in no order
    order = sorted(range(300), key=lambda token: (-logits[token], token))
    getcontext().prec = 40
    weights = [Fraction(Decimal(logits[token]).exp()) for token in order]
    expected = []
    for number in range(60):
        target, position = Fraction(uniform(21, number)) * sum(weights), 0
        while target >= weights[position]:
            target -= weights[position]
            position += 1
        expected.append(order[position])
    assert draw(60, logits, temperature=1.0, seed=21) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(value: float, temperature: float) -> None:
    with pytest.raises(StageError, match="finite"):
        draw(1, [0.0, value], temperature=temperature)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.0),
    ],
)
def test_values_out_of_range_are_usage_errors(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingOptions(**{name: value})
    assert caught.value.exit_code == 2
    assert caught.value.subject == "--" + name.replace("_", "-")
    assert caught.value.observed == repr(value)


def test_every_value_says_where_it_came_from() -> None:
    file = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "eos_token_id": 1}
    choice = resolve_sampling({"top_p": 0.5, "seed": 3, "top_k": None}, file)
    assert choice.options == SamplingOptions(temperature=0.7, top_p=0.5, seed=3)
    assert choice.origins == {
        "temperature": "generation_config.json",
        "top_p": "given",
        "top_k": "default",
        "min_p": "default",
        "seed": "given",
    }


def test_what_the_file_means_for_sampling() -> None:
    def options(file: dict[str, Any] | None) -> SamplingOptions:
        return resolve_sampling({}, file).options

    assert options(None) == SamplingOptions()
    assert options({"do_sample": False, "temperature": 0.7, "top_p": 0.5}) == SamplingOptions()
    assert options({"do_sample": True}) == SamplingOptions(temperature=1.0)
    assert options({"do_sample": True, "temperature": None, "top_k": 50}) == SamplingOptions(temperature=1.0, top_k=50)
    assert resolve_sampling({"temperature": 0.0}, {"do_sample": True}).options.temperature == 0


def test_a_broken_value_of_the_file_is_the_checkpoints_fault() -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json: top_p") as caught:
        resolve_sampling({}, {"top_p": "high"})
    assert caught.value.exit_code == 1
    with pytest.raises(UsageError):
        resolve_sampling({"top_p": 2}, {"top_p": 0.9})
