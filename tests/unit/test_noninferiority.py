"""Student's interval and what is concluded from it."""

from __future__ import annotations

import math
import random

import pytest

from hasten.tuning.noninferiority import CANNOT_TELL, NOT_WORSE, WORSE, interval, judge, student

#: From printed tables.
TABLE = {(0.95, 1): 6.3138, (0.95, 4): 2.1318, (0.975, 4): 2.7764, (0.95, 9): 1.8331,
         (0.99, 2): 6.9646, (0.95, 30): 1.6973, (0.95, 1000): 1.6464}  # fmt: skip


@pytest.mark.parametrize(("case", "quantile"), TABLE.items())
def test_quantiles(case: tuple[float, int], quantile: float) -> None:
    assert student(*case) == pytest.approx(quantile, abs=6e-5)


@pytest.mark.parametrize("case", [(0.5, 3), (1.0, 3), (0.9, 0)])
def test_no_quantile(case: tuple[float, int]) -> None:
    with pytest.raises(ValueError):
        student(*case)


def test_the_bounds_hold_as_often_as_they_say() -> None:
    rng = random.Random(1)
    above = below = 0
    for _ in range(2000):
        low, high = interval([rng.gauss(1.0, 2.0) for _ in range(5)], 0.95)
        above, below = above + (high < 1.0), below + (low > 1.0)
    assert 60 < above < 145 and 60 < below < 145  # five in a hundred each


def test_the_error_of_a_verdict_is_bounded() -> None:
    """A plan that is worse by exactly the margin is called not worse in one case of twenty."""
    rng = random.Random(2)
    wrong = 0
    for _ in range(1000):
        baseline = [rng.gauss(1.0, 0.1) for _ in range(5)]
        plan = [b + rng.gauss(0.05, 0.02) for b in baseline]
        wrong += judge("loss", baseline, plan, 0.05).verdict == NOT_WORSE
    assert wrong < 80


BASELINE = [1.0, 1.1, 0.9, 1.05, 0.95]


def test_verdicts() -> None:
    near = [b + d for b, d in zip(BASELINE, (0.001, -0.001, 0.002, 0.0, -0.002), strict=True)]
    assert judge("loss", BASELINE, near, 0.01).verdict == NOT_WORSE
    far = [b + 0.2 for b in near]
    assert judge("loss", BASELINE, far, 0.01).verdict == WORSE
    assert judge("loss", BASELINE, near, 1e-6).verdict == CANNOT_TELL
    between = judge("loss", BASELINE, [b + 0.0095 for b in near], 0.01)
    assert between.verdict == CANNOT_TELL and "whether by more than the margin" in between.reason


def test_the_margin_comes_from_the_spread_between_seeds() -> None:
    judged = judge("loss", BASELINE, BASELINE, None)
    assert judged.margin == pytest.approx(0.0790569) and "between seeds" in judged.margin_from
    flat = judge("loss", [2.0] * 5, [2.0001] * 5, None)
    assert flat.margin == pytest.approx(0.002) and flat.verdict == NOT_WORSE


def test_higher_is_better() -> None:
    lower = [b - 0.2 + 0.001 * k for k, b in enumerate(BASELINE)]
    assert judge("accuracy", BASELINE, lower, 0.01, higher_is_better=True).verdict == WORSE
    assert judge("accuracy", lower, BASELINE, 0.01, higher_is_better=True).verdict == NOT_WORSE


def test_too_little_data_never_makes_equality() -> None:
    assert judge("loss", [1.0], [1.0], 0.1).verdict == CANNOT_TELL
    assert judge("loss", [], [], 0.1).verdict == CANNOT_TELL
    assert judge("loss", [math.nan] * 5, [1.0] * 5, 0.1).verdict == CANNOT_TELL
    noisy = judge("loss", [1.0, 2.0], [1.5, 1.5], 0.4)
    assert noisy.verdict == CANNOT_TELL and noisy.high > 3


def test_the_same_bits_need_no_statistics() -> None:
    judged = judge("loss", [1.0, 1.0], [1.0, 1.0], None, identical=True)
    assert judged.verdict == NOT_WORSE and judged.high == 0.0


def test_a_loss_that_is_no_number_under_the_plan_is_worse() -> None:
    judged = judge("loss", BASELINE, [*BASELINE[:4], math.nan], 10.0)
    assert judged.verdict == WORSE and "1 runs" in judged.reason


def test_losses_that_nobody_saw_are_not_called_the_same() -> None:
    judged = judge("loss", [math.nan] * 2, [math.nan] * 2, None, identical=True)
    assert (judged.verdict, judged.identical, judged.pairs) == (CANNOT_TELL, False, 0)
    assert "fewer than two pairs" in judged.reason
