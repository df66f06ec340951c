"""One candidate on its way to a verdict, and its row in the table."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hasten.environment import Environment
from hasten.optimisations import Applies, Numerics, Optimisation, Seams
from hasten.records import BlockDone, Profile, Setting, Tried, Value
from hasten.statistics import Verdict
from hasten.tuning.comparing import Compared, Race

WORTH_IT = 1.02  # a part of a plan that gains less is left out: the cheaper plan is as good
_HOPELESS = 0.7  # after one pair
_LONG_COMPILE = 3.0  # seconds
_PROMISING = 1.01
_CORES = 0.93  # what a candidate that takes cores has to be ahead
_DOUBT = 2.0  # pairs that count for no gain at all
_MANY_PAIRS = 10  # after which an estimate that says nothing is more than bad luck


@dataclass
class Trial:
    """One value of one optimisation on its way to a verdict."""

    unit: Optimisation
    value: Value
    race: Race
    against: str
    told: bool = False
    won: bool = False
    refused: str = ""
    expected: float = 1.0

    def __post_init__(self) -> None:
        self.tried = self.value  # `value` may be refined by what measuring showed

    @property
    def open(self) -> bool:
        """Whether more turns can change anything."""
        return self.race.open and not self.told

    @property
    def compiles_long(self) -> bool:
        """Whether compiling it once more has to be worth it."""
        return self.race.result.compile_seconds > _LONG_COMPILE

    def ratio(self) -> float:
        """The estimate so far; what was expected while there is none."""
        ratio = self.race.result.ratio
        return ratio.ratio if ratio is not None else self.expected

    def may_beat(self, best: Trial | None, limit: float) -> bool:
        """Whether more turns could make it the winner of its round."""
        ratio = self.race.result.ratio
        if limit < WORTH_IT or (ratio is not None and ratio.high < WORTH_IT):
            return False
        return best is None or min(self.ratio(), limit) * self.price > best.worth()

    @property
    def price(self) -> float:
        """Below 1 for what takes cores: others can do more with them, on top."""
        return _CORES if changes(self.unit, self.value).keys() & {"loader-workers"} else 1.0

    def worth(self) -> float:
        """What the best of a round is chosen by."""
        return self.ratio() * self.price

    def hopeless(self) -> bool:
        """So slow that looking at it again costs more than it can tell."""
        return self.race.result.crawls or self.ratio() < _HOPELESS

    def loses(self) -> bool:
        """Surely not faster."""
        ratio = self.race.result.ratio
        return ratio is not None and ratio.high < 1.0

    def needless(self) -> bool:
        """Whether a plan can do without it: seen to gain less than what is worth a setting.

        A part of a plan that as a whole is surely faster is not dropped for a few unlucky pairs.
        """
        compared = self.race.result
        if compared.problem or (compared.ratio is not None and compared.ratio.high < WORTH_IT):
            return True
        if compared.verdict in (Verdict.SLOWER, Verdict.NO_DIFFERENCE):
            return True
        decided = compared.verdict is not None or compared.pairs >= _MANY_PAIRS
        return decided and self.ratio() < _PROMISING

    @property
    def gain(self) -> float:
        """Logarithm of the ratio, less what a few lucky pairs may have added."""
        pairs = self.race.result.pairs
        if not pairs:
            return math.log(self.expected)
        return math.log(self.ratio()) * pairs / (pairs + _DOUBT)

    def seconds_left(self, doubt: bool = True) -> float:
        """About how much longer a verdict takes, if the gain is what it looks like."""
        gain = self.gain if doubt else math.log(self.ratio())
        return self.race.pairs_left(gain) * self.race.pair_seconds

    def promise(self) -> tuple[bool, float]:
        """What comes first when time is short: most gain for the time that a verdict takes."""
        return self.promising, self.gain / self.seconds_left()

    def leads(self) -> bool:
        """Whether it may join a plan that is surely faster, without a verdict of its own."""
        return bool(self.race.reference) and self.race.likely and self.ratio() >= WORTH_IT

    @property
    def promising(self) -> bool:
        """Not measured yet, or seen to gain something."""
        ratio = self.race.result.ratio
        return ratio is None or ratio.ratio > _PROMISING


class Bundle(Optimisation):
    """Several optimisations that are tried as one candidate."""

    numerics = Numerics.ROUNDING

    def __init__(self, parts: tuple[tuple[Optimisation, Value], ...]) -> None:
        self.parts = parts
        self.name = " + ".join(self.setting)  # type: ignore[misc]

    @property
    def setting(self) -> Setting:
        """The values of its parts."""
        return {unit.name: value for unit, value in self.parts}

    def refine(self, value: Value, block: BlockDone, profile: Profile) -> Value:
        """What each part makes of the block."""
        self.parts = tuple((unit, unit.refine(its, block, profile)) for unit, its in self.parts)
        return self.setting

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Its parts do."""
        return Applies((self.setting,))

    def enable(self, seams: Seams, value: Value) -> None:
        """Never called: children know the parts only."""

    def disable(self, seams: Seams) -> None:
        """Never called."""

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Never called."""
        return None

    def check(self, value: Value) -> None:
        """Never called."""


def changes(unit: Optimisation, value: Value) -> Setting:
    """What a candidate adds to a setting."""
    return dict(value) if isinstance(unit, Bundle) else {unit.name: value}


def row(
    trial: Trial,
    refused: str = "",
    numerics: str | None = None,
) -> Tried:
    """What the table says of it."""
    unit, value, compared = trial.unit, trial.value, trial.race.result
    verdict = compared.verdict.value if compared.verdict is not None else Verdict.CANNOT_TELL.value
    if compared.problem:
        verdict = "failed"
    elif refused:
        verdict = "refused"
    ratio = compared.ratio
    return Tried(
        name=unit.name,
        value=value,
        ratio=ratio.ratio if ratio is not None else None,
        low=ratio.low if ratio is not None else None,
        high=ratio.high if ratio is not None else None,
        verdict=verdict,
        numerics=numerics or unit.numerics.value,
        reason=compared.problem or refused or _given_up(trial),
        payback_iterations=_payback(compared),
        pairs=compared.pairs,
        seconds=compared.seconds,
        compile_seconds=compared.compile_seconds,
        against=trial.against,
    )


def _given_up(trial: Trial) -> str:
    """What became of an undecided candidate, where that says something."""
    if trial.race.result.verdict is not None:
        return ""
    if trial.won:
        return "likely to be faster; the plan as a whole is confirmed"
    if trial.race.result.crawls:
        return "given up after its first block, many times slower"
    if not trial.race.result.pairs:
        return "no time was left to measure it"
    return "given up, as it looked much slower" if trial.hopeless() else ""


def _payback(compared: Compared) -> int | None:
    """Iterations until what it takes first is won back; None: never, or it takes nothing."""
    gain = compared.reference_iteration - compared.candidate_iteration
    block = compared.block
    if block is not None and block.fill_iterations and gain > 0:  # an epoch that gains nothing
        first = compared.compile_seconds + block.fill_seconds
        return round(block.fill_iterations + first / gain)
    if not compared.compile_seconds or gain <= 0:
        return None
    return round(compared.compile_seconds / gain)
