"""How the loss goes on over a block, in few points."""

from __future__ import annotations

import math
from collections.abc import Sequence

_POINTS = 32  # of one block


def course(
    passed: Sequence[tuple[int, int]], losses: Sequence[float | None]
) -> tuple[tuple[int, float], ...]:
    """The mean loss of an iteration, or of some consecutive ones in a long block.

    Args:
        passed: after each iteration, its number and how many losses there have been until then.
        losses: all of the block; None: not a number that could be told.

    Returns:
        Number of an iteration and the mean of the finite losses since the point before.
    """
    group = max(1, math.ceil(len(passed) / _POINTS))
    points: list[tuple[int, float]] = []
    before = 0
    for index in range(group - 1, len(passed), group):
        number, until = passed[index]
        values = [v for v in losses[before:until] if v is not None and math.isfinite(v)]
        before = until
        if values:
            points.append((number, sum(values) / len(values)))
    return tuple(points)
