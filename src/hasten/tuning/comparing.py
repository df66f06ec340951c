"""One comparison: a candidate setting against a reference, in turns, until a verdict.

Written as generators that yield commands and are sent answers, so that the same code serves
child processes and, in notebooks, the loop of this process.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from hasten.optimisations import discover
from hasten.protocol import Message
from hasten.records import BlockDone, Failed, Profile, Proof, Prove, Ratio, RunBlock, Setting
from hasten.statistics import Comparison, Family, Verdict, block_length, block_noise
from hasten.verification import Follow

_FIRST = 2  # iterations that show that a candidate works
_COLD = 2  # iterations after another process had its turn
_MANY = 10_000  # pairs: until the verdict or the end of time
_MUCH_SLOWER = 4.0  # a block that takes so much longer than usual is cut short
_CRAWLS = 8.0  # times the slowest watched iteration, after the warm-up: no pair is needed

_ERRORS = 2.5  # standard errors above 1 of what is likely to be faster
_KNOWN = 6  # pairs after which an interval tells how it will go on
_INTERVAL = 4.5  # half the width of an interval, in standard errors
_LEAST = 8  # pairs that a verdict takes, however clear
_USUAL_NOISE = 0.05

#: What a search may ask for, and what it is answered. `Fresh`: the child had to be replaced for
#: no fault of the setting, and what was in progress is void.
Command = RunBlock | Prove | Follow


@dataclass(frozen=True)
class Fresh:
    """The script came to its end and was started again."""


Answer = Message | Fresh
Progress = Callable[[Ratio | None, int], None]
Steps = Generator[Command, Answer, None]


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

    verdict: Verdict | None = None  # None: not decided
    ratio: Ratio | None = None
    pairs: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    reference_iteration: float = 0.0
    candidate_iteration: float = 0.0
    problem: str = ""  # why it failed or did nothing
    crawls: bool = False  # so slow in its first block that no pair was spent on it
    barred: str = ""  # why not even a first block was run
    block: BlockDone | None = None  # the last one of the candidate

    @property
    def failed(self) -> bool:
        """Whether no further pair can tell anything."""
        return bool(self.problem or self.barred) or self.crawls


@dataclass
class Bench:
    """What comparisons share."""

    profile: Profile
    family: Family
    clock: Clock
    rng: random.Random
    throw_away: bool = True  # batches may be repeated: nobody needs what is trained
    process_of: Callable[[Setting], Setting] = field(default_factory=lambda: start_part)
    _last: Setting | None = field(default=None)

    def length(self, *settings: Setting) -> int:
        """Iterations in a block: whole accumulation windows, long against what is in flight."""
        flight = max(self.in_flight(setting) for setting in settings)
        together = max(self.workers(setting) for setting in settings)
        # Four times the batches in flight would be needed if a queue could be filled under one
        # setting and emptied under the other; leftovers are not counted here, so half is enough.
        count = block_length(milliseconds(self.profile), -(-flight // 2), together)
        window = max(1, round(self.profile.iterations_per_step))
        return -(-count // window) * window

    def workers(self, setting: Setting) -> int:
        """Worker processes of the training loader."""
        value, loader = setting.get("loader-workers"), self.profile.loader
        if value is not None:
            return int(value["workers"])
        return loader.workers if loader is not None else 0

    def in_flight(self, setting: Setting) -> int:
        """Batches that workers have ready or in work."""
        value, loader = setting.get("loader-workers"), self.profile.loader
        ahead = value.get("prefetch") if value is not None else loader.prefetch if loader else None
        return self.workers(setting) * int(ahead or 2)

    def block(self, setting: Setting, iterations: int, hold: bool = False) -> RunBlock:
        """The command for one block; a change of setting has uncounted iterations first."""
        warmup = 0
        if setting != self._last or hold:
            named = [discover()[name].warmup for name in setting]
            warmup = max([1, *named, self.in_flight(setting)])
            last = setting if self._last is None else self._last
            if self.process_of(setting) != self.process_of(last):
                warmup = max(warmup, _COLD)  # another process has had the caches meanwhile
        self._last = None if hold else setting
        usual = iterations * self.profile.iteration
        return RunBlock(setting, iterations, warmup, hold, seconds=_MUCH_SLOWER * usual)

    def forget(self) -> None:
        """A new child runs: what was in force is in force no more."""
        self._last = None


def start_part(setting: Setting) -> Setting:
    """What of a setting is compared between processes."""
    units = discover()
    return {n: v for n, v in setting.items() if not units[n].live or units[n].lingers}


def nothing(setting: Setting) -> Setting:
    """What of a setting is compared between processes where there is only this one."""
    return {}


def milliseconds(profile: Profile) -> list[float]:
    """The watched iterations, in the unit of the statistics."""
    return [seconds * 1000 for seconds in profile.iteration_seconds]


def new_family(profile: Profile) -> Family:
    """A family of comparisons that knows what blocks of the script as it is differ by."""
    times = milliseconds(profile)
    length = block_length(times)
    try:
        return Family(noise=block_noise(times, length))
    except ValueError:  # too few iterations were watched: the random order alone has to do
        return Family()


def ratio_of(comparison: Comparison) -> Ratio:
    """Estimate and interval so far, as a record."""
    interval = comparison.recent()
    return Ratio(interval.ratio, interval.low, interval.high)


def epoch_share(bench: Bench, setting: Setting, block: BlockDone) -> float:
    """Seconds an iteration that the pool starts of each epoch add to what blocks show."""
    epoch = bench.profile.iterations_per_epoch
    value = setting.get("loader-workers")
    persistent = (
        value.get("persistent", False)
        if value is not None
        else (bench.profile.loader is not None and bench.profile.loader.persistent)
    )
    if not epoch or persistent or not block.pool_seconds or not bench.in_flight(setting):
        return 0.0
    return block.pool_seconds / epoch


class Race:
    """A comparison that can be taken up again and again: valid whenever it stops."""

    def __init__(
        self,
        bench: Bench,
        reference: Setting,
        candidate: Setting,
        progress: Progress,
        hold: bool = False,
    ) -> None:
        self.result = Compared()
        self._bench, self.reference, self.candidate = bench, reference, candidate
        self._progress, self._hold = progress, hold
        self._comparison: Comparison | None = None
        self._length = bench.length(reference, candidate)

    @property
    def open(self) -> bool:
        """Whether more turns can change anything."""
        return not self.result.failed and self.result.verdict is None

    @property
    def begins(self) -> bool:
        """Whether the next turn would be the first."""
        return self._comparison is None and not self.result.failed and self._affordable()

    @property
    def nearness(self) -> float:
        """How near a verdict is: the distance from 1 over the interval's half width."""
        ratio = self.result.ratio
        if ratio is None or ratio.low <= 0.0 or math.isinf(ratio.high):
            return 0.0  # nothing is ruled out yet
        if ratio.high == ratio.low:
            return math.inf
        return abs(math.log(ratio.ratio)) / (0.5 * math.log(ratio.high / ratio.low))

    @property
    def likely(self) -> bool:
        """Faster by several standard errors, which is no verdict yet."""
        return self._comparison is not None and self._comparison.errors_above() >= _ERRORS

    def pairs_left(self, gain: float) -> float:
        """About how many more pairs a verdict takes.

        Args:
            gain: what the logarithm of the ratio is thought to be.
        """
        pairs, nearness = self.result.pairs, self.nearness
        if nearness and pairs >= _KNOWN:  # intervals narrow with the root of the pairs
            needed = pairs / nearness**2
        else:
            noise = self._bench.family.noise or _USUAL_NOISE
            needed = (_INTERVAL * noise / max(abs(gain), 1e-3)) ** 2
        return max(1.0, max(needed, _LEAST) - pairs)

    def turns(self, pairs: int, seconds: float, decided: bool = True) -> Steps:
        """Run up to `pairs` more pairs of blocks, for at most about `seconds` of measuring.

        Args:
            pairs: how many at most.
            seconds: a pair that has begun is ended.
            decided: stop at a verdict; otherwise the interval goes on to narrow.
        """
        begun = self._bench.clock.spent
        if not self._affordable() or self.result.barred:
            return
        if self._comparison is None:
            yield from self._first()
        wanted = self.result.pairs + pairs
        while self.result.pairs < wanted and self._affordable():
            if self.result.failed or (decided and not self.open):
                break
            yield from self._turn()
            if self._bench.clock.spent - begun > seconds:
                break
        self.result.seconds += self._bench.clock.spent - begun

    def _affordable(self) -> bool:
        """Whether a whole pair fits into what is left of the budget."""
        return self.pair_seconds < self._bench.clock.left

    @property
    def pair_seconds(self) -> float:
        """What one pair of blocks takes, warm-up included, if both are as fast as was watched."""
        flight = self._bench.in_flight(self.reference) + self._bench.in_flight(self.candidate)
        return (2 * self._length + 2 + flight) * self._bench.profile.iteration

    def until(self, seconds: float) -> Steps:
        """Go on until there is a verdict or `seconds` of measuring are spent."""
        yield from self.turns(_MANY, seconds)

    def _first(self) -> Steps:
        """A block that isn't counted: it compiles, starts pools, and shows that it works."""
        command = self._bench.block(self.candidate, _FIRST, self._hold)
        answer = yield command
        while isinstance(answer, Fresh):
            self._bench.forget()
            answer = yield command
        if not isinstance(answer, BlockDone):
            self.result.problem = _failure(answer)
            return
        self.result.block = answer
        self.result.compile_seconds = answer.compile_seconds
        self._bench.clock.exclude(answer.compile_seconds, compiling=True)
        self.result.problem = _problem(answer)
        self.result.crawls = self._crawls(answer)
        self._comparison = self._bench.family.compare()

    def _crawls(self, block: BlockDone) -> bool:
        """Whether the first block says enough, also against the slowest watched iteration."""
        slowest = max(self._bench.profile.iteration_seconds)  # a new process is slow at first, too
        return block.seconds / block.iterations > _CRAWLS * slowest

    def _turn(self) -> Steps:
        pair = yield from _pair(
            self._bench, self.reference, self.candidate, self._length, self._hold
        )
        if isinstance(pair, Failed):
            self.result.problem = _failure(pair)
        elif pair is not None:
            self._add(*pair)

    def _add(self, ours: BlockDone, theirs: BlockDone) -> None:
        comparison, result = self._comparison, self.result
        assert comparison is not None
        result.block = theirs
        if (problem := _problem(theirs)) and _problem(ours) != problem:
            result.problem = problem
            return
        times = [
            block.seconds / block.iterations + epoch_share(self._bench, block.setting, block)
            for block in (ours, theirs)
        ]
        comparison.add(times[0] * self._length, times[1] * self._length)
        result.reference_iteration, result.candidate_iteration = times
        result.pairs, result.verdict = comparison.pairs, comparison.verdict()
        result.ratio = ratio_of(comparison)
        self._progress(result.ratio, result.pairs)


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
    name: str, candidate: Setting, reference: Setting, seconds: float
) -> Generator[Command, Answer, Proof | str]:
    """The proof of one optimisation, or why there is none."""
    for _ in range(3):
        answer = yield Prove(name, candidate, reference, seconds)
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
