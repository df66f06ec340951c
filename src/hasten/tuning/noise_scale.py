"""The gradient noise scale: the batch size at which noise and signal of a step are as large.

McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), define B = tr(S) / |G|^2,
with S the covariance of the gradient of one sample and G the gradient of the loss. With K
gradients of batches of n samples at the same weights, s = n (sum |g|^2 - |sum g|^2 / K) / (K - 1)
and |mean g|^2 - s / (n K) estimate both without bias. Their errors come from leaving out one group
of steps after the other (the jackknife), and the interval of their ratio from Fieller's theorem:
where the signal can't be told from zero, it has no upper end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hasten.batching import GradientsSampled

_NORMAL = 1.959963985  # for an interval that holds the value in 95 of 100 cases


@dataclass(frozen=True)
class NoiseScale:
    """In samples; an end that is None isn't known."""

    samples: float | None
    low: float
    high: float | None
    steps: int
    batch_size: int


def noise_scale(sampled: GradientsSampled) -> NoiseScale | None:
    """The estimate, or None where there are too few gradients for one."""
    if sampled.batch_size is None or len(sampled.counts) < 3 or min(sampled.counts) < 1:
        return None
    counts = np.asarray(sampled.counts, dtype=float)
    squares = np.asarray(sampled.squares, dtype=float)
    sums = np.asarray(sampled.sums, dtype=float)
    unit = float(np.abs(squares).mean()) or 1.0  # so that small gradients don't underflow
    squares, sums = squares / unit, sums / unit
    everything = np.ones(len(counts), dtype=bool)
    whole = _parts(counts, squares, sums, everything, sampled.batch_size)
    left_out = np.array(
        [
            _parts(counts, squares, sums, np.arange(len(counts)) != i, sampled.batch_size)
            for i in range(len(counts))
        ]
    )
    groups = len(counts)
    deviation = left_out - left_out.mean(axis=0)
    covariance = (groups - 1) / groups * deviation.T @ deviation
    low, high = fieller(whole[0], whole[1], covariance, student(groups - 1))
    estimate = whole[0] / whole[1] if whole[1] > 0 else None
    return NoiseScale(estimate, float(low), high, int(counts.sum()), sampled.batch_size)


def _parts(
    counts: NDArray[np.float64],
    squares: NDArray[np.float64],
    sums: NDArray[np.float64],
    use: NDArray[np.bool_],
    size: int,
) -> tuple[float, float]:
    """Estimates of tr(S) and |G|^2 from some of the groups."""
    steps = float(counts[use].sum())
    whole = float(sums[np.ix_(use, use)].sum())
    noise = size * (float(squares[use].sum()) - whole / steps) / (steps - 1)
    return noise, whole / steps**2 - noise / (size * steps)


def fieller(
    above: float, below: float, covariance: NDArray[np.float64], t: float
) -> tuple[float, float | None]:
    """Interval of a ratio of two estimates above zero; an upper end of None: there is none.

    Those ratios r belong to it for which above - r * below is within t standard errors of zero.
    Source: Fieller, "Some Problems in Interval Estimation" (1954).
    """
    a = below**2 - t**2 * covariance[1, 1]
    b = above * below - t**2 * covariance[0, 1]
    c = above**2 - t**2 * covariance[0, 0]
    root = math.sqrt(max(0.0, b**2 - a * c))
    if a <= 0.0 or below <= 0.0:
        # |G|^2 may be zero: only what the ratio is at least can be told.
        denominator = b + root
        return (max(0.0, c / denominator) if denominator > 0 else 0.0), None
    return max(0.0, (b - root) / a), float((b + root) / a)


def student(freedom: int) -> float:
    """Student's t that 95 of 100 values stay below in size, by the expansion in 1 / freedom.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5.
    """
    z, v = _NORMAL, float(max(2, freedom))
    first = (z**3 + z) / (4 * v)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return z + first + second + third


def relative_time(samples_per_second: float, size: int, noise: float | None) -> float:
    """Time to a loss, up to a factor that all batch sizes share.

    The samples that are needed grow as 1 + size / noise (McCandlish et al., equation 2.11), which
    is the inverse of Pollux's statistical efficiency (Qiao et al., OSDI 2021); with an unknown
    noise scale, taken for endless, all samples count alike.
    """
    factor = 1.0 if noise is None else 1.0 + size / max(noise, 1e-9)
    return factor / samples_per_second
