"""Confirmation: baseline and plan in two processes of their own, turn by turn.

Both start as the real run would. While one runs its block the other stands still at an
iteration border; a queue depth of iterations is discarded after each turn, since workers have
filled it meanwhile. Where memory does not hold both, they are started in alternation.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from hasten.records import BlockDone, Ratio, RunBlock, Setting, Watch
from hasten.statistics import Comparison, Verdict
from hasten.tuning.comparing import Bench, epoch_share, new_family, ratio_of
from hasten.tuning.process import Child, Gone

_COMPILE_SECONDS = 1800.0
_PAIRS = 400
_ALPHA = 0.01  # chance that the quoted interval misses; there is only this one


@dataclass
class Confirmed:
    """What the two siblings showed.

    `ratio` counts the start of each epoch as well; `problem` says why there is none.
    """

    ratio: Ratio | None
    verdict: Verdict
    turns: int
    iterations: int
    problem: str = ""


class Siblings:
    """Baseline and plan, each with a child."""

    def __init__(
        self,
        make: Callable[[], Child],
        bench: Bench,
        plan: Setting,
        timeout: float,
        progress: Callable[[Ratio | None, int], None],
    ) -> None:
        self._make, self._bench, self._plan = make, bench, plan
        self._timeout, self._progress = timeout, progress
        self._children: dict[bool, Child] = {}  # by whether it runs the plan
        self.iterations = 0

    def run(self, seconds: float, together: bool = True) -> Confirmed:
        """Take turns until there is a verdict and a narrow interval, or time is up.

        Args:
            seconds: of measuring.
            together: whether memory holds both children at a time.
        """
        comparison = Comparison(_ALPHA, noise=new_family(self._bench.profile).noise)
        problem = ""
        end = self._bench.clock.spent + seconds
        try:
            while comparison.pairs < _PAIRS and not (
                comparison.pairs >= 2 and self._bench.clock.spent >= end
            ):
                self._turns(comparison, together)
                if _narrow(comparison):
                    break
        except Gone as gone:
            problem = f"the script failed under the plan: {gone.message}"
        finally:
            self.close()
        if not comparison.pairs or problem:
            return Confirmed(
                None,
                Verdict.CANNOT_TELL,
                comparison.pairs,
                self.iterations,
                problem,
            )
        return Confirmed(
            ratio_of(comparison),
            comparison.final(),
            comparison.pairs,
            self.iterations,
        )

    def _turns(self, comparison: Comparison, together: bool) -> None:
        """One block of each, in random order."""
        seconds: dict[bool, float] = {}
        for planned in random.sample([True, False], 2):
            block = self._block(planned)
            if block is None:
                return  # the script came to its end: this pair is void
            share = epoch_share(self._bench, block.setting, block)
            seconds[planned] = block.seconds + share * block.iterations
            if not together:
                self._end(planned)
        comparison.add(seconds[False], seconds[True])
        self._progress(ratio_of(comparison), comparison.pairs)

    def _block(self, planned: bool) -> BlockDone | None:
        setting = self._plan if planned else {}
        child = self._children.get(planned) or self._start(planned)
        length = self._bench.length({}, self._plan)
        warmup = max(2, self._bench.in_flight(setting) + 1)
        limit = self._timeout + (_COMPILE_SECONDS if "compile" in setting else 0.0)
        try:
            answer = child.ask(RunBlock(setting, length, warmup), limit)
        except Gone as gone:
            self._end(planned)
            if gone.kind != "ended":
                raise
            return None
        if not isinstance(answer, BlockDone):
            raise Gone("exception", None, "", message=str(answer))
        self._count(answer)
        return answer

    def _count(self, block: BlockDone) -> None:
        self.iterations += block.iterations
        self._bench.clock.exclude(block.compile_seconds, compiling=True)

    def _start(self, planned: bool) -> Child:
        child = self._make()
        self._children[planned] = child
        begun = self._bench.clock.spent
        child.start()
        child.ask(Watch(iterations=1, seconds=0.0), self._timeout)
        self._bench.clock.exclude(self._bench.clock.spent - begun)
        return child

    def _end(self, planned: bool) -> None:
        child = self._children.pop(planned, None)
        if child is not None:
            child.close()

    def close(self) -> None:
        """End both."""
        for planned in list(self._children):
            self._end(planned)


def _narrow(comparison: Comparison) -> bool:
    """Decided, and known well enough to be quoted."""
    if comparison.verdict() is None or comparison.pairs < 6:
        return False
    interval = comparison.interval()
    return interval.high / interval.low < 1.06
