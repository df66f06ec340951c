"""How long blocks should be, how much they differ by themselves, how many pairs an effect takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hasten.statistics.comparison import share
from hasten.statistics.wealth import Array, Wealth

# Shortest block: several time slices of the scheduler should come in each.
SHORTEST_MS = 100.0
# Longest block that is considered for averaging bursts.
LONGEST_MS = 2000.0
# Fewest iterations: one odd iteration should not be the whole block.
FEWEST = 2
# 0.8 quantile of the absolute value of Student's t with 2 degrees of freedom.
STUDENT_QUANTILE = 1.8856


def block_length(
    iteration_ms: Sequence[float] | Array,
    in_flight: int = 0,
    together: int = 1,
    warm_up: int | None = None,
) -> int:
    """Recommends n, the iterations of a block, from watched iterations of the reference.

    Short blocks are better than they look: noise of a busy machine is correlated over seconds, so
    that a pair of neighbouring blocks shares most of it whatever their length, while evidence
    grows with the number of pairs. On recorded traces four times longer blocks save a tenth to a
    half of the pairs and so take 1.5 to 3 times as long (`benchmarks/verdicts.py --lengths`).
    Three things bound n from below:

    - four times the batches in flight, else a queue filled under the other setting hides the cost;
    - 100 ms, so that time slices of the scheduler average out (blocks of 80 ms on a busy machine
      jump between two values, as one of them has the core to itself), and 2 iterations;
    - bursts: with two workers iterations can take 3, 99, 3, 99 ms, and an odd n differs from
      itself by 2 / n. Hence a multiple of `together`, and among lengths up to 2 s the shortest that
      comes within half of the least (n + warm_up) * noise(n)^2, which is what a verdict takes.

    So 20 ms iterations get 5, 2 ms get 50, iterations of a second get 2; with two workers and
    a prefetch factor of 2 at least 16.

    Args:
        iteration_ms: times of consecutive iterations in milliseconds; a hundred or more are good.
        in_flight: batches under way between loader and loop (workers times prefetch factor).
        together: batches that tend to arrive together (the number of workers).
        warm_up: iterations discarded after each switch; by default `in_flight`, at least 1.

    Raises:
        ValueError: no iterations, or times that are not finite and positive.
    """
    times = _checked(iteration_ms)
    together, step = max(1, together), float(times.mean())
    discarded = max(1, in_flight) if warm_up is None else warm_up
    least = max(FEWEST, 4 * in_flight, math.ceil(SHORTEST_MS / step))
    shortest = math.ceil(least / together) * together
    most = min(int(LONGEST_MS / step), len(times) // 6, (len(times) - discarded - 1) // 2)
    spread = _lengths(shortest, most, together)
    costs = [(n + discarded) * block_noise(times, n, discarded) ** 2 for n in spread]
    if not costs:
        return shortest
    return next(n for n, cost in zip(spread, costs, strict=True) if cost <= 1.5 * min(costs))


def _lengths(shortest: int, most: int, together: int) -> list[int]:
    """Multiples of `together` from shortest to most, each about a fifth longer than the last."""
    lengths, n = [], shortest
    while n <= most:
        lengths.append(n)
        n += math.ceil(n / 5 / together) * together
    return lengths


def block_noise(iteration_ms: Sequence[float] | Array, n: int, warm_up: int = 1) -> float:
    """What neighbouring blocks of one setting differ by: 0.8 quantile of the |log ratio|.

    Taken over all places where two blocks of n iterations, `warm_up` apart, fit into the watched
    iterations; and the same one iteration further apart, because with bursts that come every other
    iteration one distance alone may show none of the difference. About 1.3 standard deviations of
    quiet noise; not moved by a rare outlier.

    Args:
        iteration_ms: times of consecutive iterations in milliseconds.
        n: iterations of a block.
        warm_up: iterations discarded between blocks.

    Raises:
        ValueError: fewer than 2 n + warm_up + 1 iterations, or times not finite and positive.
    """
    times = _checked(iteration_ms)
    needed = 2 * n + warm_up + 1
    if n < 1 or warm_up < 0 or len(times) < needed:
        raise ValueError(f"two blocks of {n} need {needed} iterations, not {len(times)}")
    totals = np.concatenate([[0.0], np.cumsum(times)])
    blocks = np.log(totals[n:] - totals[:-n])
    steps = [blocks[gap:] - blocks[:-gap] for gap in (n + warm_up, n + warm_up + 1)]
    return float(np.quantile(np.abs(np.concatenate(steps)), 0.8))


def pairs_needed(
    ratio: float,
    noise: float,
    alpha: float = 0.01,
    member: int = 12,
    power: float = 0.9,
    most: int = 400,
) -> int | None:
    """Estimates after how many pairs an effect is told, by playing the bets on made-up noise.

    Args:
        ratio: true reference time over candidate time.
        noise: what pairs of equal settings differ by, as from `block_noise`; heavy tails are
            supposed (Student's t, 2 degrees of freedom).
        alpha: of the family.
        member: place of the candidate in the family; later ones need slightly more.
        power: share of cases that are to be decided.
        most: pairs at which to give up.

    Returns:
        Pairs, or `None` when `most` do not suffice.
    """
    cases = 64
    random = np.random.default_rng(0)
    wealth = Wealth(np.zeros(1), np.full(cases, noise), cases)
    enough = math.log(1.0 / (alpha * share(member)))
    for pair in range(1, most + 1):
        error = random.standard_t(2, cases) * noise / STUDENT_QUANTILE
        wealth.bet(math.log(ratio) + error)
        if np.mean(wealth.highest[:, 0] >= enough) >= power:
            return pair
    return None


def _checked(iteration_ms: Sequence[float] | Array) -> Array:
    times = np.asarray(iteration_ms, dtype=np.float64)
    if times.ndim != 1 or not len(times) or not np.all(np.isfinite(times) & (times > 0.0)):
        raise ValueError("iteration times must be a sequence of finite positive numbers")
    return times
