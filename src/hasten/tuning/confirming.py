"""Confirmation: baseline and plan in two processes of their own, turn by turn.

Both start as the real run would, so that nothing that the search has switched on and off before
is in what is compared. While one runs its block the other stands still at an iteration border.

Both start from the same seeds and count what no plan may change (`invariants`): samples, steps,
learning rates, parameters without gradient. At the end the counts are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from hasten.diagnosis import Course
from hasten.records import BlockDone, Ratio, Setting
from hasten.statistics import Comparison, Family, Verdict
from hasten.tuning import invariants
from hasten.tuning.comparing import Answer, Bench, Command, Race, Steps, new_family
from hasten.tuning.trial import WORTH_IT
from hasten.verification import Follow, Followed

_PAIRS = 400
_FEWEST = 6  # pairs behind a ratio that is quoted
_NARROW = 1.06  # upper over lower end of an interval that is good enough to be quoted
_ALPHA = 0.01  # chance that the quoted interval misses; there is only this one
_CATCH_UP = 32  # iterations that one may run on to have passed as many as the other


@dataclass
class Confirmed:
    """What the two siblings showed.

    `ratio` counts the start of each epoch as well; `problem` says why there is none. `broken` says
    what the plan changes of the training, a line for each, over `counted` iterations. `sure`: the
    search had a verdict.
    """

    ratio: Ratio | None
    verdict: Verdict
    problem: str = ""
    broken: tuple[str, ...] = ()
    counted: int = 0
    sure: bool = True

    @property
    def worth_it(self) -> bool:
        """Whether the plan is kept: nothing speaks against it, and it is faster as measured here.

        What had too little time for a verdict still counts if it looks faster, as the search has
        shown already that it is.
        """
        if self.broken or self.ratio is None:
            return False
        if self.verdict in (Verdict.SLOWER, Verdict.NO_DIFFERENCE):
            return False
        seems = self.sure and self.ratio.ratio >= WORTH_IT
        return self.verdict is Verdict.FASTER or seems


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
        self,
        bench: Bench,
        plan: Setting,
        progress: Callable[[Ratio | None, int], None],
        sure: bool = True,
    ) -> None:
        family = _Single(noise=new_family(bench.profile).noise)
        bench = replace(bench, family=family, process_of=whole)
        self._race = Race(bench, {}, plan, progress)
        self._clock = bench.clock
        self._plan, self._sure = plan, sure
        self._losses: dict[bool, list[tuple[int, float]]] = {False: [], True: []}
        self._memory = {False: 0, True: 0}
        self._broken: tuple[str, ...] = ()
        self._counted = 0

    def run(self) -> Steps:
        """Take turns until there is a verdict and a narrow interval, or time is up."""
        pairs, race = -1, self._race
        while race.result.pairs > pairs and not race.result.problem and not self._narrow():
            pairs = race.result.pairs
            yield from self._overheard(race.turns(1, self._clock.left, decided=False))
        if race.result.pairs and not race.result.problem:
            yield from self._compare_counts()

    def _compare_counts(self) -> Steps:
        """Whether both have counted the same over the iterations that both have passed."""
        passed = []
        for setting in (self._plan, {}):
            found = yield from self._followed(setting, 1)
            if found is None:
                return
            passed.append(found.passed)
        count, apart = max(passed), max(passed) - min(passed) > _CATCH_UP
        if apart:  # one of them has been started again
            count = min(passed)
        baseline = yield from self._followed({}, count)
        plan = yield from self._followed(self._plan, count)
        if baseline is None or plan is None:
            return
        if apart:  # what moves later than that is no difference
            baseline, plan = replace(baseline, still=()), replace(plan, still=())
        self._broken = tuple(invariants.broken(baseline, plan))
        self._counted = min(len(found.iterations) for found in (baseline, plan))

    def _followed(
        self, setting: Setting, count: int
    ) -> Generator[Command, Answer, Followed | None]:
        """What one of the two has counted; None: it came to its end meanwhile."""
        answer = yield Follow(setting, count)
        return answer if isinstance(answer, Followed) else None

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
        if compared.crawls:
            problem = "the script is many times slower under the plan from its start on"
            return Confirmed(None, Verdict.SLOWER, problem)
        if compared.ratio is None:
            return None
        verdict = compared.verdict or Verdict.CANNOT_TELL
        return Confirmed(compared.ratio, verdict, "", self._broken, self._counted, self._sure)
