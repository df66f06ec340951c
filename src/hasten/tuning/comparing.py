"""One comparison: a candidate setting against a reference, in turns, until a verdict.

Written as generators that yield commands and are sent answers, so that the same code serves
child processes and, in notebooks, the loop of this process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from hasten.optimisations import discover
from hasten.records import (
    BlockDone,
    Failed,
    Message,
    Profile,
    Proof,
    Prove,
    Ratio,
    RunBlock,
    Setting,
)
from hasten.statistics import Comparison, Family, Verdict, block_length

_MUCH_SLOWER = 4.0  # a block that takes so much longer than usual is cut short

#: What a search may ask for, and what it is answered. `Fresh`: the child had to be replaced for
#: no fault of the setting, and what was in progress is void.
Command = RunBlock | Prove


@dataclass(frozen=True)
class Fresh:
    """The script came to its end and was started again."""


Answer = Message | Fresh
Progress = Callable[[Ratio | None, int], None]


class Clock:
    """Seconds of measuring: compilation and new starts don't count."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.compile_seconds = 0.0
        self._apart = 0.0
        self._begun = time.monotonic()

    def exclude(self, seconds: float, compiling: bool = False) -> None:
        """Take seconds out of the measuring time."""
        self._apart += seconds
        if compiling:
            self.compile_seconds += seconds

    @property
    def spent(self) -> float:
        """Seconds of measuring so far."""
        return max(0.0, time.monotonic() - self._begun - self._apart)

    @property
    def left(self) -> float:
        """Seconds of measuring that are left."""
        return max(0.0, self.budget - self.spent)


@dataclass
class Compared:
    """What came of one comparison."""

    verdict: Verdict | None
    ratio: Ratio | None
    pairs: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    reference_iteration: float = 0.0
    candidate_iteration: float = 0.0
    problem: str = ""  # why it failed or did nothing
    block: BlockDone | None = None  # the last one of the candidate


@dataclass
class Bench:
    """What comparisons share."""

    profile: Profile
    family: Family
    clock: Clock
    rng: random.Random
    _last: Setting | None = field(default=None)

    def length(self, *settings: Setting) -> int:
        """Iterations in a block: whole accumulation windows, long against what is in flight."""
        flight = max(self.in_flight(setting) for setting in settings)
        count = block_length([s * 1000 for s in self.profile.iteration_seconds], flight)
        window = max(1, round(self.profile.iterations_per_step))
        return -(-count // window) * window

    def in_flight(self, setting: Setting) -> int:
        """Batches that workers have ready or in work."""
        value = setting.get("loader-workers")
        if value is not None:
            return int(value["workers"]) * int(value.get("prefetch") or 2)
        loader = self.profile.loader
        return loader.workers * (loader.prefetch or 2) if loader is not None else 0

    def block(self, setting: Setting, iterations: int, hold: bool = False) -> RunBlock:
        """The command for one block; a change of setting has uncounted iterations first."""
        warmup = 0
        if setting != self._last or hold:
            named = [discover()[name].warmup for name in setting]
            warmup = max([1, *named, self.in_flight(setting)])
        self._last = None if hold else setting
        usual = iterations * self.profile.iteration
        return RunBlock(setting, iterations, warmup, hold, seconds=_MUCH_SLOWER * usual)

    def forget(self) -> None:
        """A new child runs: what was in force is in force no more."""
        self._last = None


def epoch_share(bench: Bench, setting: Setting, block: BlockDone) -> float:
    """Seconds an iteration that the pool starts of each epoch add to what blocks show."""
    epoch = bench.profile.iterations_per_epoch
    value = setting.get("loader-workers")
    persistent = value.get("persistent", False) if value is not None else (
        bench.profile.loader is not None and bench.profile.loader.persistent
    )
    if not epoch or persistent or not block.pool_seconds or not bench.in_flight(setting):
        return 0.0
    return block.pool_seconds / epoch


def compare(
    bench: Bench,
    reference: Setting,
    candidate: Setting,
    seconds: float,
    progress: Progress,
    hold: bool = False,
) -> Generator[Command, Answer, Compared]:
    """Measure until there is a verdict or `seconds` of measuring are spent."""
    begun = bench.clock.spent
    length = bench.length(reference, candidate)
    first = yield bench.block(candidate, length, hold)
    while isinstance(first, Fresh):
        bench.forget()
        first = yield bench.block(candidate, length, hold)
    result = Compared(None, None)
    if isinstance(first, BlockDone):
        result.compile_seconds = first.compile_seconds
        bench.clock.exclude(first.compile_seconds, compiling=True)
        result.problem = _problem(first)
        if not result.problem:
            yield from _turns(bench, result, reference, candidate, seconds, progress, hold)
    else:
        result.problem = _failure(first)
    result.seconds = bench.clock.spent - begun
    return result


def _turns(
    bench: Bench,
    result: Compared,
    reference: Setting,
    candidate: Setting,
    seconds: float,
    progress: Progress,
    hold: bool,
) -> Generator[Command, Answer, None]:
    comparison = bench.family.compare()
    length = bench.length(reference, candidate)
    end = bench.clock.spent + seconds
    while comparison.verdict() is None and (bench.clock.spent < end or comparison.pairs < 2):
        pair = yield from _pair(bench, reference, candidate, length, hold)
        if isinstance(pair, Failed):
            result.problem = _failure(pair)
            return
        if pair is None:
            continue
        ours, theirs = pair
        result.block = theirs
        if (problem := _problem(theirs)) and _problem(ours) != problem:
            result.problem = problem
            return
        _add(bench, comparison, result, ours, theirs)
        progress(result.ratio, comparison.pairs)
    result.verdict = comparison.final()


def _add(
    bench: Bench, comparison: Comparison, result: Compared, ours: BlockDone, theirs: BlockDone
) -> None:
    times = [
        block.seconds / block.iterations + epoch_share(bench, block.setting, block)
        for block in (ours, theirs)
    ]
    comparison.add(times[0] * ours.iterations, times[1] * ours.iterations)
    result.reference_iteration, result.candidate_iteration = times
    interval = comparison.interval()
    result.ratio = Ratio(interval.ratio, interval.low, interval.high)
    result.pairs = comparison.pairs


def _pair(
    bench: Bench, reference: Setting, candidate: Setting, length: int, hold: bool
) -> Generator[Command, Answer, tuple[BlockDone, BlockDone] | Failed | None]:
    """One block of each, in random order; None when the child was replaced in between."""
    done: dict[bool, BlockDone] = {}
    for theirs in bench.rng.sample([True, False], 2):
        setting = candidate if theirs else reference
        answer = yield bench.block(setting, length, hold and theirs)
        if isinstance(answer, Fresh):
            bench.forget()
            return None
        if not isinstance(answer, BlockDone):
            return answer if isinstance(answer, Failed) else None
        bench.clock.exclude(answer.compile_seconds, compiling=True)
        done[theirs] = answer
    return done[False], done[True]


def prove(
    name: str, candidate: Setting, reference: Setting
) -> Generator[Command, Answer, Proof | str]:
    """The proof of one optimisation, or why there is none."""
    for _ in range(3):
        answer = yield Prove(name, candidate, reference)
        if isinstance(answer, Proof):
            return answer
        if not isinstance(answer, Fresh):
            return _failure(answer)
    return "the script ends before an iteration can be replayed"


def _problem(block: BlockDone) -> str:
    if not block.losses_finite:
        return "the loss became NaN or infinite"
    return "; ".join(block.no_effect.values())


def _failure(answer: Message | Fresh) -> str:
    if isinstance(answer, Failed):
        return answer.message
    return f"unexpected answer {type(answer).__name__}"
