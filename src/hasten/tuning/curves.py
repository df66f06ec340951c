"""The last thing that `tune` asks of a plan: does it learn as well, from several seeds?

A few pairs of short runs, the script as it is and under the plan, from the same seeds and over the
same first iterations, as `hasten verify` makes them longer. They come on top of the budget, and
are bounded by it: where the script starts too slowly for that, it is said what to type instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from hasten.tuning.listener import Listener
from hasten.tuning.noninferiority import WORSE
from hasten.tuning.verifying import Verifying, VerifyRequest
from hasten.verification import Verification

#: Of the budget: what all iterations may take, and what all starts of the script may take.
_SHARE, _MOST_SHARE, _STARTS = 0.2, 0.5, 0.3
_SIDE_BY_SIDE = 1.2  # times as long as one alone take two starts at once
_FEWEST, _MOST = 20, 200  # iterations of each run


@dataclass(frozen=True)
class Room:
    """What short runs of a script may take and cost, in seconds."""

    budget: float
    start: float  # of one process, to its first iteration
    iteration: float
    seeds: int
    together: bool = False  # both runs of a pair at the same time

    @property
    def _starts(self) -> float:
        """Seconds of all starts."""
        return self.seeds * self.start * (_SIDE_BY_SIDE if self.together else 2)

    @property
    def iterations(self) -> int:
        """Of each run; 0: so few fit that they would say nothing."""
        runs = 2 * self.seeds
        if self._starts > _STARTS * self.budget:
            return 0
        fit = int(_SHARE * self.budget / (runs * max(self.iteration, 1e-6)))
        if fit < _FEWEST:
            most = _MOST_SHARE * self.budget
            return _FEWEST if runs * _FEWEST * self.iteration <= most else 0
        return min(_MOST, fit)

    @property
    def refusal(self) -> str:
        """Why there are none."""
        took = self._starts + 2 * self.seeds * _FEWEST * self.iteration
        return (
            f"the loss curves of several seeds were not compared: {2 * self.seeds} runs of "
            f"{_FEWEST} iterations would take {_time(took)} beside a budget of "
            f"{_time(self.budget)}; hasten verify does it"
        )


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def compare(request: VerifyRequest, listener: Listener) -> Verification:
    """The pairs of runs.

    Raises:
        HastenError: the script can't be followed from its start.
    """
    listener.pairing(0, request.seeds)
    done = iter(range(1, request.seeds + 1))
    return Verifying(request, lambda _: listener.pairing(next(done), request.seeds)).run()


def objections(found: Verification) -> list[str]:
    """Why the plan must not be kept, a line each."""
    lines = [f"the plan trains something else, and is dropped: {line}" for line in found.broken]
    lines += [
        f"the plan learns less, and is dropped: {j.what} {j.baseline:.4g}, under it {j.plan:.4g} "
        f"(mean of {j.pairs} pairs of runs; margin {j.margin:.2g})"
        for j in found.judged
        if j.verdict == WORSE
    ]
    return lines
