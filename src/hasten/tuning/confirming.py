"""Confirmation: baseline and plan in two processes of their own, turn by turn.

Both start as the real run would, so that nothing that the search has switched on and off before
is in what is compared. While one runs its block the other stands still at an iteration border.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hasten.diagnosis import Course
from hasten.records import BlockDone, Ratio, Setting
from hasten.statistics import Comparison, Family, Verdict
from hasten.tuning.comparing import Bench, Race, Steps, new_family
from hasten.tuning.trial import WORTH_IT

_PAIRS = 400
_FEWEST = 6  # pairs behind a ratio that is quoted
_NARROW = 1.06  # upper over lower end of an interval that is good enough to be quoted
_ALPHA = 0.01  # chance that the quoted interval misses; there is only this one


@dataclass
class Confirmed:
    """What the two siblings showed.

    `ratio` counts the start of each epoch as well; `problem` says why there is none.
    """

    ratio: Ratio | None
    verdict: Verdict
    problem: str = ""

    @property
    def worth_it(self) -> bool:
        """Whether the plan is kept: nothing speaks against it, and it is faster as measured here.

        What had too little time for a verdict still counts if it looks faster, as the search has
        shown already that it is.
        """
        if self.ratio is None or self.verdict in (Verdict.SLOWER, Verdict.NO_DIFFERENCE):
            return False
        return self.verdict is Verdict.FASTER or self.ratio.ratio >= WORTH_IT


class _Single(Family):
    """A family of one: the whole alpha is its own."""

    def compare(self) -> Comparison:
        return Comparison(_ALPHA, self.indifference, self.noise, _PAIRS)


def whole(setting: Setting) -> Setting:
    """What takes a process of its own in a confirmation: everything."""
    return setting


class Confirmation:
    """Baseline against plan; what is known stays known when it is cut off."""

    def __init__(
        self, bench: Bench, plan: Setting, progress: Callable[[Ratio | None, int], None]
    ) -> None:
        family = _Single(noise=new_family(bench.profile).noise)
        bench = replace(bench, family=family, process_of=whole)
        self._race = Race(bench, {}, plan, progress)
        self._clock = bench.clock
        self._plan = plan
        self._losses: dict[bool, list[tuple[int, float]]] = {False: [], True: []}
        self._memory = {False: 0, True: 0}

    def run(self) -> Steps:
        """Take turns until there is a verdict and a narrow interval, or time is up."""
        pairs, race = -1, self._race
        while race.result.pairs > pairs and not race.result.problem and not self._narrow():
            pairs = race.result.pairs
            yield from self._overheard(race.turns(1, self._clock.left, decided=False))

    def _overheard(self, steps: Steps) -> Steps:
        """The same steps, whose answers also tell how the training goes on."""
        try:
            command = next(steps)
            while True:
                answer = yield command
                if isinstance(answer, BlockDone):
                    self._note(answer)
                command = steps.send(answer)
        except StopIteration:
            return

    def _note(self, block: BlockDone) -> None:
        planned = bool(block.setting)
        losses = self._losses[planned]
        last = losses[-1][0] if losses else 0
        # A script that was started again tells nothing new.
        losses += [point for point in block.losses if point[0] > last]
        self._memory[planned] = max(self._memory[planned], block.peak_memory)

    @property
    def courses(self) -> tuple[Course, ...]:
        """How the two processes went: the script as it is, then the plan."""
        return tuple(
            Course(self._plan if planned else {}, tuple(losses), self._memory[planned])
            for planned, losses in self._losses.items()
            if losses or self._memory[planned]
        )

    def _narrow(self) -> bool:
        """Decided, and known well enough to be quoted."""
        compared = self._race.result
        if compared.verdict is None or compared.ratio is None or compared.pairs < _FEWEST:
            return False
        return compared.ratio.high / max(compared.ratio.low, 1e-9) < _NARROW

    @property
    def result(self) -> Confirmed | None:
        """What there is by now; None before the first pair."""
        compared = self._race.result
        if compared.problem:
            problem = f"the script failed under the plan: {compared.problem}"
            return Confirmed(None, Verdict.CANNOT_TELL, problem)
        if compared.ratio is None:
            return None
        return Confirmed(compared.ratio, compared.verdict or Verdict.CANNOT_TELL)
