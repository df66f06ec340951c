"""The interval of what a change saves, from times that were taken in turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Saved:
    """The median of what was saved, with its interval."""

    median: float
    low: float
    high: float


def saved(before: Sequence[float], after: Sequence[float], confidence: float = 0.95) -> Saved:
    """What `after` takes less than `before`, which were timed in pairs.

    The interval is that of the sign test: it lies between two of the differences in their order,
    and supposes nothing of their distribution.

    Args:
        before, after: times, as many of each.
        confidence: chance that the interval holds the true median.

    Returns:
        An interval without ends where there are too few pairs for this confidence.
    """
    apart = sorted(b - a for b, a in zip(before, after, strict=True))
    count = len(apart)
    below, chance = 0, (1 - confidence) / 2
    while sum(math.comb(count, k) for k in range(below + 1)) * 0.5**count <= chance:
        below += 1
    if not below:
        return Saved(statistics.median(apart) if apart else 0.0, -math.inf, math.inf)
    return Saved(statistics.median(apart), apart[below - 1], apart[count - below])
