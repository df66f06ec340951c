"""Is the plan not worse than the baseline beyond a margin, by a few paired runs?

Student's one-sided interval of the mean paired difference (Student, "The Probable Error of a
Mean", 1908; non-inferiority: CONSORT extension by Piaggio et al., JAMA 2012). With the mean d and
the standard deviation s of n differences, and t the quantile of n - 1 degrees of freedom,

    high = d + t s / sqrt(n)        low = d - t s / sqrt(n)

*not worse* is only said where `high` is below the margin, *worse* where `low` is above it; all
else cannot be told from these runs. Runs that are equal to the bit need no statistics.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence

from hasten.verification import Judged

NOT_WORSE, WORSE, CANNOT_TELL = "not worse", "worse", "cannot tell"
_FEWEST = 2
_SIMPSON = 2000  # intervals of the integral
_LEAST_MARGIN = 1e-3  # of the mean, where seeds hardly differ


def judge(
    what: str,
    baseline: Sequence[float],
    plan: Sequence[float],
    margin: float | None,
    confidence: float = 0.95,
    higher_is_better: bool = False,
    identical: bool = False,
) -> Judged:
    """Judge one quantity by its values in paired runs.

    Args:
        what: its name.
        baseline, plan: one value for each pair, in its own units.
        margin: how much worse is still good enough, in the same units; None: one standard
            deviation of the baseline between seeds, and at least a thousandth of its mean.
        confidence: of each one-sided bound.
        higher_is_better: as an accuracy is.
        identical: all that led to these values was the same to the bit.
    """
    sign = -1.0 if higher_is_better else 1.0
    kept = [(b, p) for b, p in zip(baseline, plan, strict=True) if math.isfinite(b)]
    margin, source = _margin([b for b, _ in kept], margin)
    differences = [sign * (p - b) for b, p in kept]

    def judged(verdict: str, low: float, high: float, reason: str = "") -> Judged:
        def mean(values: Sequence[float]) -> float:
            return statistics.fmean(values) if values else math.nan

        return Judged(
            what=what,
            verdict=verdict,
            margin=margin,
            margin_from=source,
            baseline=mean([b for b, _ in kept]),
            plan=mean([p for _, p in kept]),
            difference=mean(differences),
            low=low,
            high=high,
            pairs=len(kept),
            confidence=confidence,
            identical=identical and bool(kept),
            reason=reason,
        )

    if lost := sum(not math.isfinite(d) for d in differences):
        return judged(WORSE, math.inf, math.inf, f"NaN or infinite under the plan in {lost} runs")
    if identical and kept:
        return judged(NOT_WORSE, 0.0, 0.0)
    if len(kept) < _FEWEST:
        reason = "fewer than two pairs have a finite value without the plan"
        return judged(CANNOT_TELL, -math.inf, math.inf, reason)
    low, high = interval(differences, confidence)
    return judged(*_verdict(low, high, margin))


def _verdict(low: float, high: float, margin: float) -> tuple[str, float, float, str]:
    if high < margin:
        return NOT_WORSE, low, high, ""
    if low > margin:
        return WORSE, low, high, ""
    reason = "too few runs for so small a margin"
    if low > 0.0:
        reason = "it is worse, but whether by more than the margin these runs don't tell"
    return CANNOT_TELL, low, high, reason


def _margin(baseline: Sequence[float], given: float | None) -> tuple[float, str]:
    if given is not None:
        return given, "given"
    if len(baseline) < _FEWEST:
        return math.nan, "unknown"
    spread = statistics.stdev(baseline)
    least = _LEAST_MARGIN * abs(statistics.fmean(baseline))
    if spread >= least:
        return spread, "the baseline's own standard deviation between seeds"
    return least, "a thousandth of the baseline, whose seeds hardly differ"


def interval(differences: Sequence[float], confidence: float) -> tuple[float, float]:
    """One-sided lower and upper bound of the mean, each at this confidence."""
    count = len(differences)
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    reach = student(confidence, count - 1) * spread / math.sqrt(count)
    return mean - reach, mean + reach


@functools.cache
def student(probability: float, degrees: int) -> float:
    """The quantile of Student's distribution, to about nine digits.

    Args:
        probability: above one half and below 1.
        degrees: of freedom, at least 1.
    """
    if not 0.5 < probability < 1.0 or degrees < 1:
        raise ValueError(f"no quantile of {probability} with {degrees} degrees of freedom")
    # With t = sqrt(n) tan(u) the density becomes cos(u)^(n-1), which is smooth up to its end.
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    scale /= math.sqrt(math.pi)

    def below(angle: float) -> float:
        return 0.5 + scale * _simpson(lambda u: math.cos(u) ** (degrees - 1), angle)

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _simpson(function: Callable[[float], float], end: float) -> float:
    """The integral from 0 to `end`."""
    step = end / _SIMPSON
    inner = sum((4 if k % 2 else 2) * function(k * step) for k in range(1, _SIMPSON))
    return step / 3 * (function(0.0) + inner + function(end))
