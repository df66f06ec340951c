"""Verdicts, intervals and block lengths on made-up data."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hasten.statistics import (
    Comparison,
    Family,
    Interval,
    Verdict,
    block_length,
    block_noise,
    pairs_needed,
)
from hasten.statistics.comparison import share
from hasten.statistics.wealth import Wealth

ALPHA = 2e-4  # a twelfth member's share of 1 %


def compare(log_ratios: np.ndarray, noise: float | None = 0.02, alpha: float = ALPHA) -> Comparison:
    """A comparison after pairs of these log ratios, around blocks of 0.2 s."""
    comparison = Comparison(alpha, noise=noise)
    for log_ratio in log_ratios:
        comparison.add(0.2 * math.exp(log_ratio), 0.2)
    return comparison


def draws(effect: float, deviation: float, pairs: int, seed: int = 0) -> np.ndarray:
    return math.log(effect) + deviation * np.random.default_rng(seed).standard_normal(pairs)


def pairs_to(verdict: Verdict, log_ratios: np.ndarray, noise: float | None = 0.02) -> int:
    """Pairs until a verdict, which must be this one."""
    comparison = Comparison(ALPHA, noise=noise)
    for log_ratio in log_ratios:
        comparison.add(0.2 * math.exp(log_ratio), 0.2)
        if comparison.verdict() is not None:
            break
    assert comparison.verdict() is verdict
    return comparison.pairs


def test_nothing_is_known_without_pairs() -> None:
    comparison = Family().compare()
    assert comparison.pairs == 0
    assert comparison.verdict() is None
    assert comparison.final() is Verdict.CANNOT_TELL
    assert comparison.interval() == Interval(1.0, 0.0, math.inf)


@pytest.mark.parametrize("seed", range(5))
def test_large_effects_take_six_pairs(seed: int) -> None:
    assert pairs_to(Verdict.FASTER, draws(1.5, 0.01, 20, seed), noise=0.013) <= 6
    assert pairs_to(Verdict.SLOWER, draws(1 / 1.5, 0.01, 20, seed), noise=0.013) <= 6


def test_random_order_alone_takes_fourteen_pairs_for_any_effect() -> None:
    """A coin falls one way 12 times in a row with a chance of 1 in 4096: no verdict before."""
    assert 13 <= pairs_to(Verdict.FASTER, draws(3.0, 0.001, 30), noise=None) <= 16


def test_equal_settings_are_told_equal_on_a_quiet_machine() -> None:
    assert pairs_to(Verdict.NO_DIFFERENCE, draws(1.0, 0.004, 60), noise=0.005) <= 30


def test_a_certain_gain_of_half_a_per_cent_is_no_difference() -> None:
    comparison = compare(draws(1.005, 0.001, 100), noise=0.0013)
    assert comparison.interval().low > 0.99
    assert comparison.verdict() is Verdict.NO_DIFFERENCE


@pytest.mark.parametrize("place", [0, 3, 8])
@pytest.mark.parametrize("sign", [-1, 1])
def test_one_block_twenty_times_too_long_costs_few_pairs(place: int, sign: int) -> None:
    x = draws(1.5, 0.01, 30)
    without = pairs_to(Verdict.FASTER, x, noise=0.013)
    x = np.insert(x, place, x[0] + sign * math.log(20.0))
    assert pairs_to(Verdict.FASTER, x, noise=0.013) <= without + 5
    assert compare(x, noise=0.013).interval().ratio == pytest.approx(1.5, rel=0.01)


def test_a_machine_that_jumps_between_two_speeds_is_no_effect() -> None:
    """Coin falls one way eight times: an effect, unless blocks of one setting differ as much."""
    x = np.full(8, 0.1) + 0.005 * np.random.default_rng(0).standard_normal(8)
    assert compare(x, noise=0.01).verdict() is Verdict.FASTER
    assert compare(x, noise=0.1).verdict() is None


def test_contradictory_data_still_give_an_interval() -> None:
    comparison = compare(np.concatenate([draws(2.0, 0.01, 40), draws(0.5, 0.01, 200, 1)]))
    interval = comparison.interval()
    assert 0.0 < interval.low <= interval.ratio <= interval.high < math.inf


def test_patience_ends() -> None:
    comparison = Comparison(ALPHA, patience=3)
    for factor in (1.2, 0.8, 1.1):
        assert comparison.verdict() is None
        comparison.add(factor, 1.0)
    assert comparison.verdict() is Verdict.CANNOT_TELL


@pytest.mark.parametrize("time", [0.0, -1.0, math.nan, math.inf])
def test_times_must_be_times(time: float) -> None:
    comparison = Comparison(ALPHA)
    with pytest.raises(ValueError, match="finite and positive"):
        comparison.add(time, 1.0)
    with pytest.raises(ValueError, match="finite and positive"):
        comparison.add(1.0, time)
    assert comparison.pairs == 0


def test_shares_sum_to_one() -> None:
    total = sum(share(member) for member in range(1, 100_001))
    assert 0.999 < total < 1.0
    family = Family(alpha=0.05)
    assert sum(family.compare().alpha for _ in range(300)) < 0.05


@pytest.mark.parametrize(
    "wrong", [{"alpha": 0.0}, {"alpha": 1.0}, {"indifference": 0.0}, {"noise": -1.0}]
)
def test_a_family_refuses_nonsense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Family(**wrong)  # type: ignore[arg-type]


def test_a_family_learns_its_noise_from_reference_blocks() -> None:
    family, random = Family(noise=0.01), np.random.default_rng(0)
    comparison = family.compare()
    assert family.noise == 0.01
    for _ in range(150):
        comparison.add(math.exp(0.1 * random.standard_normal()), 1.0)
    assert family.noise == pytest.approx(0.1 * math.sqrt(2) * 1.28, rel=0.2)
    assert Family().noise is None


def test_many_at_once_is_the_same_as_one() -> None:
    x = np.stack([draws(1.1, 0.05, 12, seed) for seed in range(3)])
    noise = np.array([0.02, 0.05, 0.1])
    together = Wealth(np.array([0.0, 0.1]), noise, 3)
    for pair in range(12):
        together.bet(x[:, pair])
    for row in range(3):
        alone = Wealth(np.array([0.0, 0.1]), noise[row : row + 1])
        for value in x[row]:
            alone.bet(np.array([value]))
        assert np.allclose(alone.highest[0], together.highest[row])


LOG_RATIOS = st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=12)
NOISE = st.one_of(st.none(), st.floats(0.0, 0.5))


@settings(max_examples=25, deadline=None)
@given(LOG_RATIOS, NOISE, st.floats(1e-6, 1e6))
def test_the_unit_of_time_does_not_matter(
    log_ratios: list[float], noise: float | None, unit: float
) -> None:
    one, other = Comparison(0.05, noise=noise), Comparison(0.05, noise=noise)
    for log_ratio in log_ratios:
        one.add(math.exp(log_ratio), 1.0)
        other.add(math.exp(log_ratio) * unit, unit)
    assert one.interval().low == pytest.approx(other.interval().low, rel=1e-6)
    assert one.interval().high == pytest.approx(other.interval().high, rel=1e-6)


MIRROR = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}


@settings(max_examples=25, deadline=None)
@given(LOG_RATIOS, st.floats(0.0, 1.0), NOISE)
def test_swapping_sides_inverts_interval_and_verdict(
    log_ratios: list[float], shift: float, noise: float | None
) -> None:
    one, other = Comparison(0.05, noise=noise), Comparison(0.05, noise=noise)
    for log_ratio in log_ratios:
        one.add(math.exp(shift + 0.1 * log_ratio), 1.0)
        other.add(1.0, math.exp(shift + 0.1 * log_ratio))
    here, there = one.interval(), other.interval()
    assert here.ratio == pytest.approx(1.0 / there.ratio)
    assert here.low == pytest.approx(1.0 / there.high, rel=1e-6)
    assert here.high == pytest.approx(1.0 / there.low if there.low else math.inf, rel=1e-6)
    verdict = one.verdict()
    assert other.verdict() is (MIRROR.get(verdict, verdict) if verdict else None)


@settings(max_examples=15, deadline=None)
@example(1205, 0.125, 0.875)
@given(st.integers(0, 10_000), st.floats(0.01, 0.2), st.floats(0.8, 1.5))
def test_intervals_only_narrow_and_hold_the_estimate(
    seed: int, deviation: float, effect: float
) -> None:
    comparison, before = Comparison(0.05, noise=deviation), Interval(1.0, 0.0, math.inf)
    for log_ratio in draws(effect, deviation, 15, seed):
        comparison.add(math.exp(log_ratio), 1.0)
        after = comparison.interval()
        assert after.low <= after.ratio <= after.high
        assert before.low <= after.low and after.high <= before.high
        before = after


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 0.3))
def test_a_larger_effect_gives_a_higher_interval(seed: int, more: float) -> None:
    x = draws(1.1, 0.05, 15, seed)
    less_fast, faster = compare(x, None, 0.01), compare(x + more, None, 0.01)
    assert faster.interval().ratio >= less_fast.interval().ratio * (1 - 1e-9)
    assert faster.interval().low >= less_fast.interval().low * 0.97


@pytest.mark.parametrize("effect", [0.8, 1.0, 1.05, 1.5])
@pytest.mark.parametrize("noise_like", ["normal", "heavy", "drifting"])
def test_intervals_hold_the_true_ratio_at_every_look(effect: float, noise_like: str) -> None:
    """At alpha of 5 %: so that a method which misses 10 % would be seen with 600 comparisons."""
    random, cases, pairs = np.random.default_rng(1), 600, 30
    error = random.standard_normal((cases, pairs))
    if noise_like == "heavy":
        error = random.standard_t(1.5, (cases, pairs))
    if noise_like == "drifting":
        error *= np.exp(2.0 * np.sin(np.arange(pairs) / 4.0))
    wealth = Wealth(np.log([effect]), np.full(cases, 0.02), cases)
    for pair in range(pairs):
        wealth.bet(math.log(effect) + 0.03 * error[:, pair])
    missed = np.mean(wealth.highest[:, 0] >= math.log(1 / 0.05))
    assert missed <= 0.05 + 2.33 * math.sqrt(0.05 * 0.95 / cases)


def test_quick_loops_get_long_blocks_and_slow_ones_short() -> None:
    random = np.random.default_rng(0)
    for step, low, high in ((2.0, 50, 60), (20.0, 5, 6), (1000.0, 2, 2)):
        assert low <= block_length(step * random.normal(1.0, 0.02, 400)) <= high


def test_blocks_cover_the_batches_in_flight() -> None:
    assert block_length([1000.0] * 50, in_flight=4) == 16
    assert block_length([20.0] * 400, in_flight=6, together=3) % 3 == 0


def test_blocks_average_bursts() -> None:
    bursts = np.tile([3.0, 99.0], 100) * np.random.default_rng(0).normal(1.0, 0.01, 200)
    n = block_length(bursts, in_flight=4, together=2)
    assert n % 2 == 0 and n >= 16
    assert block_noise(bursts, n) < 0.02 < block_noise(bursts, 9)


def test_noise_needs_room_for_two_blocks() -> None:
    assert block_noise([10.0] * 10, 4, 1) == 0.0
    with pytest.raises(ValueError, match="need 10 iterations, not 9"):
        block_noise([10.0] * 9, 4, 1)
    with pytest.raises(ValueError, match="finite positive"):
        block_length([])


def test_small_effects_and_noise_need_more_pairs() -> None:
    few, more, many = (pairs_needed(*case) for case in ((1.5, 0.02), (1.05, 0.02), (1.05, 0.05)))
    assert few is not None and more is not None and many is not None
    assert few <= 9 < more < many
    assert pairs_needed(1.001, 0.2, most=20) is None
