"""The interval of a ratio of two means, where each is of iterations that ran one after another.

Neighbouring iterations are alike (noise of a shared machine lasts for seconds, data waits come in
bursts), so whole stretches of them are drawn, not single ones: the circular block bootstrap of
Politis and Romano (1992).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_DRAWS = 4000
_LEAST = 8  # values; of fewer nothing can be said


@dataclass(frozen=True)
class Change:
    """A mean relative to another, minus 1: 0.05 is 5 % more.

    Attributes:
        estimate: of the means as they are.
        low, high: ends of the interval; None where there were too few values.
    """

    estimate: float
    low: float | None = None
    high: float | None = None


def change_of_mean(
    before: Sequence[float], after: Sequence[float], confidence: float = 0.99, seed: int = 0
) -> Change | None:
    """How much larger the mean of `after` is, with its interval.

    The interval holds what varies within each of the two; what changed between them it can't know.

    Args:
        before: in the order in which they came.
        after: likewise.
        confidence: chance that the interval holds the true change.
        seed: of the draws.

    Returns:
        None where `before` has no mean above zero.
    """
    first, second = np.asarray(before, float), np.asarray(after, float)
    if not len(first) or not len(second) or first.mean() <= 0:
        return None
    estimate = float(second.mean() / first.mean() - 1)
    if min(len(first), len(second)) < _LEAST:
        return Change(estimate)
    random = np.random.default_rng(seed)
    below, above = _means(first, random), _means(second, random)
    kept = below > 0
    share = (1 - confidence) / 2
    low, high = np.quantile(above[kept] / below[kept] - 1, [share, 1 - share])
    return Change(estimate, float(min(low, estimate)), float(max(high, estimate)))


def _means(values: npt.NDArray[np.float64], random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Means of draws of whole stretches, as many values in each as there are."""
    count = len(values)
    length = max(1, round(1.5 * count ** (1 / 3)))
    number = -(-count // length)
    starts = random.integers(0, count, (_DRAWS, number, 1))
    places = ((starts + np.arange(length)) % count).reshape(_DRAWS, -1)[:, :count]
    means: npt.NDArray[np.float64] = values[places].mean(axis=1)
    return means
