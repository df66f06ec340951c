"""Verdicts on one candidate, and the family that keeps false alarms rare over all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from hasten.statistics.wealth import Array, Wealth

Flags = npt.NDArray[np.bool_]

# Members before which the shares of alpha fall slowly: a search tries some ten to twenty settings.
TYPICAL_MEMBERS = 16
# Distances from the estimate at which an interval's ends are looked for (log ratio, to 2.8).
DISTANCES = 1e-4 * 1.3 ** np.arange(40)
# An interval may lack an eighth of the pairs where one is asked for after each of them.
RECENT = 8
# Pairs that must agree before they count for anything.
_FEW = 4
# Reference blocks to have seen in a family before their noise is relied on.
ENOUGH_REFERENCES = 16


class Verdict(str, Enum):
    """What can be said of a candidate against the reference."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Interval:
    """Reference time over candidate time: above 1 the candidate is faster.

    Attributes:
        ratio: estimate (Hodges and Lehmann's, in logarithms: shrugs off outliers).
        low: lower end; 0 while nothing is known.
        high: upper end; infinite while nothing is known.
    """

    ratio: float
    low: float
    high: float


class Family:
    """Shares out the chance of a false alarm over candidates of a number not known beforehand.

    The k-th member gets alpha * 16 / ((k + 15) * (k + 16)), which sums to alpha without end and
    falls slowly over the first dozens: 5.9 % of alpha for the first, 2.1 % for the twelfth. With a
    chance of at least 1 - alpha all intervals of all members hold at all looks; then no verdict
    is wrong.

    Args:
        alpha: allowed chance of any false alarm in the whole family.
        indifference: relative difference below which settings count as equal (0.02 is 2 %).
        noise: what blocks of the reference alone differ by, from `block_noise` on the watched
            iterations. Without it the first comparisons use the random order alone, which is
            always valid but takes 13 to 16 pairs even for a huge effect; later ones know the
            noise from the reference blocks of those before.
        patience: pairs after which an undecided comparison gives up.
    """

    def __init__(
        self,
        alpha: float = 0.01,
        indifference: float = 0.02,
        noise: float | None = None,
        patience: int = 200,
    ) -> None:
        if not (0.0 < alpha < 1.0 and indifference > 0.0 and patience >= 1):
            raise ValueError("alpha must be in (0, 1), indifference and patience positive")
        if noise is not None and not (math.isfinite(noise) and noise >= 0.0):
            raise ValueError(f"noise must be a finite number of at least 0, not {noise}")
        self.alpha, self.indifference, self.patience = alpha, indifference, patience
        self._noise = noise
        self._members: list[Comparison] = []

    @property
    def noise(self) -> float | None:
        """Noise between reference blocks: as given, raised to what the members so far have seen."""
        steps = np.concatenate([[], *(member.reference_steps() for member in self._members)])
        if len(steps) < ENOUGH_REFERENCES:
            return self._noise
        return max(self._noise or 0.0, float(np.quantile(steps, 0.8)))

    def compare(self) -> Comparison:
        """The next member, at its own share of alpha."""
        member = share(len(self._members) + 1) * self.alpha
        comparison = Comparison(member, self.indifference, self.noise, self.patience)
        self._members.append(comparison)
        return comparison


def share(member: int) -> float:
    """Share of alpha for the member (from 1); all shares sum to 1."""
    return TYPICAL_MEMBERS / ((member + TYPICAL_MEMBERS - 1) * (member + TYPICAL_MEMBERS))


class Comparison:
    """One candidate against the reference, by pairs of blocks in random order inside each pair.

    Valid however often one looks and whenever one stops. The interval holds every ratio that the
    bets of `hasten.statistics.wealth` have never ruled out, and what lies between them.

    Args:
        alpha: chance that the interval ever misses the true ratio.
        indifference, noise, patience: as for `Family`.
    """

    def __init__(
        self,
        alpha: float,
        indifference: float = 0.02,
        noise: float | None = None,
        patience: int = 200,
    ) -> None:
        self.alpha, self.patience = alpha, patience
        self._enough = math.log(1.0 / alpha)
        self._zone = math.log1p(indifference)
        self._noise = None if noise is None else np.array([noise])
        self._borders = np.array([-self._zone, 0.0, self._zone])
        self._wealth = Wealth(self._borders, self._noise)
        self._log_ratios: list[float] = []
        self._references: list[float] = []
        self._interval: Interval | None = None
        self._known = 0  # pairs that are in the interval
        self._contradictory = False  # every ratio was ruled out at some time

    def add(self, reference: float, candidate: float) -> None:
        """Takes in one pair of blocks of equally many valid iterations.

        Args:
            reference: total time of the reference's block, in seconds.
            candidate: total time of the candidate's block, in seconds.

        Raises:
            ValueError: a time that is not a finite positive number.
        """
        if not all(math.isfinite(time) and time > 0.0 for time in (reference, candidate)):
            raise ValueError(f"block times must be finite and positive: {reference}, {candidate}")
        self._log_ratios.append(math.log(reference) - math.log(candidate))
        self._references.append(math.log(reference))
        self._wealth.bet(np.array(self._log_ratios[-1:]))

    @property
    def pairs(self) -> int:
        """Pairs taken in so far."""
        return len(self._log_ratios)

    def reference_steps(self) -> Array:
        """Size of the log ratio between each reference block and the next."""
        return np.abs(np.diff(self._references))

    def interval(self) -> Interval:
        """The ratio and where it can be; the ends themselves are ruled out.

        Only ever narrows, unless the data contradict themselves (an effect that changes with time):
        then it is what the evidence of now allows.
        """
        if self._interval is None or self._known < self.pairs:
            self._interval, self._known = self._narrowed(self._find_interval()), self.pairs
        return self._interval

    def _narrowed(self, found: Interval) -> Interval:
        """Without what an earlier interval had ruled out: the grid of ends moves with the data."""
        before = self._interval
        if before is None or self._contradictory:
            return found
        low, high = max(found.low, before.low), min(found.high, before.high)
        if low >= high:
            return found
        return Interval(min(max(found.ratio, low), high), low, high)

    def recent(self) -> Interval:
        """The estimate of now in an interval that may lack the last eighth of the pairs.

        As valid, since an interval holds whenever it was taken, and cheap to ask for after each
        pair: finding the ends takes time that grows with the pairs.
        """
        if self._interval is None or (self.pairs - self._known) * RECENT >= self.pairs:
            return self.interval()
        low, high = self._interval.low, self._interval.high
        estimate = math.exp(_hodges_lehmann(np.array(self._log_ratios)))
        return Interval(min(max(estimate, low), high), low, high)

    def errors_above(self) -> float:
        """How many standard errors the mean log ratio is above 0; 0 before the fourth pair.

        For deciding what to look at next: looked at again and again it proves nothing. The spread
        is at least what reference blocks differ by, since few pairs may agree by chance.
        """
        if self.pairs < _FEW:
            return 0.0
        ratios = np.array(self._log_ratios)
        spread = max(float(ratios.std(ddof=1)), 0.0 if self._noise is None else self._noise[0])
        return float(ratios.mean()) / max(spread, 1e-12) * math.sqrt(self.pairs)

    def verdict(self) -> Verdict | None:
        """The verdict as it stands; `None` while undecided and worth going on.

        *No difference* comes before *faster* and *slower* where the whole interval lies in the
        zone of indifference: a certain gain of half a per cent is not worth a setting.
        """
        if self._some_border_is_ruled_out():
            interval = self.interval()
            zone = math.exp(self._zone)
            if interval.low >= 1.0 / zone and interval.high <= zone:
                return Verdict.NO_DIFFERENCE
            if interval.low > 1.0:
                return Verdict.FASTER
            if interval.high < 1.0:
                return Verdict.SLOWER
        return Verdict.CANNOT_TELL if self.pairs >= self.patience else None

    def final(self) -> Verdict:
        """The verdict if no more pairs come."""
        return self.verdict() or Verdict.CANNOT_TELL

    def _some_border_is_ruled_out(self) -> bool:
        """Whether any verdict is possible; spares the search for the interval at most looks."""
        low, equal, high = (self._wealth.highest[0] >= self._enough).tolist()
        return bool(equal or (low and high))

    def _find_interval(self) -> Interval:
        if not self._log_ratios:
            return Interval(1.0, 0.0, math.inf)
        centre = _hodges_lehmann(np.array(self._log_ratios))
        nodes = np.concatenate([centre - DISTANCES[::-1], [centre], centre + DISTANCES])
        nodes = np.unique(np.concatenate([nodes, self._borders]))
        possible = np.flatnonzero(self._possible(nodes))
        first, last = int(possible[0]), int(possible[-1])
        low, high = -math.inf, math.inf
        if first > 0:
            low = self._end(nodes[first], nodes[first - 1])
        if last < len(nodes) - 1:
            high = self._end(nodes[last], nodes[last + 1])
        lower, upper = _above(math.exp(low)), _below(math.exp(high))
        return Interval(min(max(math.exp(centre), lower), upper), lower, upper)

    def _end(self, possible: float, ruled_out: float) -> float:
        """The end between two neighbouring nodes, on the safe side by a tenth of their distance."""
        nodes = np.linspace(possible, ruled_out, 11)
        furthest = int(np.flatnonzero(self._possible(nodes) | (nodes == possible))[-1])
        return float(nodes[min(furthest + 1, 10)])

    def _possible(self, supposed: Array) -> Flags:
        """Which log ratios are not ruled out; never none."""
        wealth = Wealth(supposed, self._noise)
        for log_ratio in self._log_ratios:
            wealth.bet(np.array([log_ratio]))
        for evidence in (wealth.highest[0], wealth.current[0]):
            possible: Flags = evidence < self._enough
            if possible.any():
                return possible
            self._contradictory = True
        least: Flags = wealth.current[0] <= wealth.current[0].min()
        return least


def _hodges_lehmann(values: Array) -> float:
    """Median of all means of two (Hodges and Lehmann 1963); bears 29 % of outliers."""
    upper = np.triu_indices(len(values))
    return float(np.median(np.add.outer(values, values)[upper] / 2.0))


def _above(low: float) -> float:
    """The next number up: an end that is itself ruled out does not belong to the interval."""
    return low if low == 0.0 else math.nextafter(low, math.inf)


def _below(high: float) -> float:
    return high if math.isinf(high) else math.nextafter(high, 0.0)
