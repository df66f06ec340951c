"""The search: candidates alone, then greedily combined, each measured and each proven.

Guided by what watching has shown and by the data-free ceiling: nothing on the data path is tried
where data is free. Knows nothing of processes: a generator of commands that is sent answers.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from hasten.environment import Environment
from hasten.optimisations import Numerics, Optimisation, discover
from hasten.records import Proof, Ratio, Setting, Tried, Value
from hasten.statistics import Verdict
from hasten.tuning.comparing import (
    Answer,
    Bench,
    Command,
    Compared,
    Progress,
    Race,
    Steps,
    prove,
)
from hasten.tuning.listener import Listener

_DATA_MATTERS = 1.03  # a loop that data makes slower is at least this much faster without
_WORTH_IT = 1.02  # a part of a plan that gains less is left out: the cheaper plan is as good
_ALONE_SHARE = 0.65  # of the budget is for candidates by themselves
_GLANCE = 2  # pairs that show a candidate to be hopeless
_HOPELESS = 0.7
_LOOK = 4  # pairs of blocks that every candidate gets
_MORE = 2  # pairs between two decisions about who is next
_PROMISING = 1.01
_CEILING_SECONDS = 0.08  # of the budget
_INTERACT = ("threads", "loader-workers")  # share the cores: tried again on top of a plan


@dataclass(frozen=True)
class Scope:
    """What the user allows."""

    allow: frozenset[str] = frozenset()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def covers(self, name: str) -> bool:
        """Whether the unit may be tried at all."""
        return name not in self.skip and (not self.only or name in self.only)


@dataclass
class Found:
    """What is known so far; right at any moment, since a search may be interrupted."""

    setting: Setting = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)
    data_free: Ratio | None = None
    proofs: dict[str, Proof | str] = field(default_factory=dict)
    winners: dict[str, tuple[Value, float]] = field(default_factory=dict)  # value, ratio
    plan_ratio: float = 1.0  # of `setting` against the baseline, as measured so far


@dataclass
class Trial:
    """One value of one optimisation on its way to a verdict."""

    unit: Optimisation
    value: Value
    race: Race
    against: str
    told: bool = False

    def hopeless(self) -> bool:
        """So slow that looking at it again costs more than it can tell."""
        ratio = self.race.result.ratio
        return ratio is not None and ratio.ratio < _HOPELESS

    def promise(self) -> tuple[bool, float]:
        """What comes first when time is short: gains, and among them what is soonest decided."""
        ratio = self.race.result.ratio
        return ratio is None or ratio.ratio > _PROMISING, self.race.nearness


class Search:
    """One search over every optimisation that applies."""

    def __init__(
        self, bench: Bench, environment: Environment, scope: Scope, listener: Listener
    ) -> None:
        self.bench, self.environment, self.scope = bench, environment, scope
        self.listener = listener
        self.found = Found()
        self._trials: list[Trial] = []

    def run(self) -> Steps:
        """The whole search."""
        candidates = self._candidates()
        if any(unit.data_path for unit, _ in candidates):
            yield from self._ceiling()
            candidates = self._without_free_data(candidates)
        trials = [self._trial(unit, value, {}) for unit, value in candidates]
        yield from self._race(trials, self.bench.clock.left * _ALONE_SHARE)
        yield from self._combine(candidates)

    # --- what to try -----------------------------------------------------------------------

    def _candidates(self) -> list[tuple[Optimisation, Value]]:
        found: list[tuple[Optimisation, Value]] = []
        for unit in discover().values():
            if not self.scope.covers(unit.name):
                continue
            applies = unit.applies(self.bench.profile, self.environment)
            found += [(unit, value) for value in applies.values]
            if not applies:
                self._say_not(unit, applies.reason)
        return found

    def _say_not(self, unit: Optimisation, reason: str) -> None:
        numerics = unit.numerics.value
        self._tell(Tried(unit.name, None, None, None, None, "not applicable", numerics, reason))

    def _ceiling(self) -> Steps:
        """How much faster the loop is when batches cost nothing."""
        seconds = self.bench.clock.budget * _CEILING_SECONDS
        race = Race(self.bench, {}, {}, self._progress("data-free ceiling", None), hold=True)
        yield from race.until(seconds)
        self.found.data_free = race.result.ratio

    def _without_free_data(
        self, candidates: list[tuple[Optimisation, Value]]
    ) -> list[tuple[Optimisation, Value]]:
        ceiling = self.found.data_free
        if ceiling is None or ceiling.high >= _DATA_MATTERS:
            return candidates
        for unit in dict.fromkeys(unit for unit, _ in candidates if unit.data_path):
            reason = f"data is free already: without any wait {ceiling.ratio:.2f}x at most"
            self._say_not(unit, reason)
        return [(unit, value) for unit, value in candidates if not unit.data_path]

    # --- one by one ------------------------------------------------------------------------

    def _trial(self, unit: Optimisation, value: Value, reference: Setting) -> Trial:
        candidate = {**reference, unit.name: value}
        progress = self._progress(unit.name, value)
        race = Race(self.bench, reference, candidate, progress)
        trial = Trial(unit, value, race, " + ".join(reference) or "baseline")
        self._trials.append(trial)
        return trial

    def unfinished(self) -> list[Tried]:
        """What is known of candidates that an interrupt has cut off."""
        return [_tried(t) for t in self._trials if not t.told and t.race.result.pairs]

    def _race(self, trials: list[Trial], seconds: float) -> Steps:
        """A look at each, then time for those that promise most and are soonest decided."""
        end = self.bench.clock.spent + seconds
        for index, trial in enumerate(trials):
            share = (end - self.bench.clock.spent) / (len(trials) - index)
            yield from self._turns(trial, _GLANCE, share)
            if trial.race.open and not trial.hopeless():
                yield from self._turns(trial, _LOOK - _GLANCE, share)
        while left := [t for t in trials if t.race.open]:
            # Nothing to combine yet: then the time that was kept for it is better used here.
            rest = end - self.bench.clock.spent if self.found.winners else self.bench.clock.left
            trial = max(left, key=Trial.promise)
            pairs = trial.race.result.pairs
            yield from self._turns(trial, _MORE, rest)
            if rest <= 0.0 or trial.race.result.pairs == pairs:
                break
        for trial in trials:
            if trial.race.open:
                self._told(trial)

    def _turns(self, trial: Trial, pairs: int, seconds: float) -> Steps:
        if trial.race.result.pairs == 0 and "compile" in trial.race.candidate:
            self.listener.compiling(" + ".join(trial.race.candidate))
        yield from trial.race.turns(pairs, seconds)
        if not trial.race.open:
            yield from self._decided(trial)

    def _decided(self, trial: Trial) -> Steps:
        """A verdict on a candidate alone: the faster ones have to pass their proof."""
        unit, compared = trial.unit, trial.race.result
        if compared.problem or compared.verdict is not Verdict.FASTER or compared.ratio is None:
            self._told(trial)
            return
        trial.value = self._refined(trial)
        refused = yield from self._refusal(unit, trial.value)
        self._told(trial, refused)
        ratio = compared.ratio.ratio
        if not refused and ratio > self.found.winners.get(unit.name, (None, 1.0))[1]:
            self.found.winners[unit.name] = (trial.value, ratio)
            if ratio > self.found.plan_ratio:
                self.found.setting, self.found.plan_ratio = {unit.name: trial.value}, ratio

    def _refined(self, trial: Trial) -> Value:
        block = trial.race.result.block
        if block is None:
            return trial.value
        return trial.unit.refine(trial.value, block, self.bench.profile)

    def _refusal(self, unit: Optimisation, value: Value) -> Generator[Command, Answer, str]:
        """Why a faster candidate may not be used, or an empty string."""
        if unit.name not in self.found.proofs:
            self.found.proofs[unit.name] = yield from prove(unit.name, {unit.name: value}, {})
        proof = self.found.proofs[unit.name]
        if isinstance(proof, str):
            return f"not proven: {proof}"
        if proof.passed or (
            proof.numerics == Numerics.STATISTICS.value
            and proof.figure <= proof.bound
            and Numerics.STATISTICS.value in self.scope.allow
        ):
            return ""
        return proof.reason

    def _numerics(self, unit: Optimisation) -> str:
        proof = self.found.proofs.get(unit.name)
        return proof.numerics if isinstance(proof, Proof) else unit.numerics.value

    # --- together --------------------------------------------------------------------------

    def _combine(self, candidates: list[tuple[Optimisation, Value]]) -> Steps:
        """Greedy: the best first, then what still helps on top of it, measured again."""
        units = discover()
        order = sorted(self.found.winners, key=lambda n: -self.found.winners[n][1])
        steps = [(units[name], self.found.winners[name][0]) for name in order[1:]]
        # Cores and data waits are shared: a value that lost alone may win beside the others.
        steps += [
            (unit, value)
            for unit, value in candidates
            if unit.name in _INTERACT
            and self.found.setting
            and (unit.name, value) not in [(u.name, v) for u, v in steps]
        ]
        for index, (unit, value) in enumerate(steps):
            seconds = self.bench.clock.left / (len(steps) - index)
            if seconds > 0 and self._fits(unit, value):
                yield from self._on_top(unit, value, seconds)

    def _fits(self, unit: Optimisation, value: Value) -> bool:
        setting = self.found.setting
        excluded = set(unit.excludes) | {
            n for k in setting for n in discover()[k].excludes if n == unit.name
        }
        return setting.get(unit.name) != value and not excluded & (set(setting) | {unit.name})

    def _on_top(self, unit: Optimisation, value: Value, seconds: float) -> Steps:
        plan = dict(self.found.setting)
        trial = self._trial(unit, value, plan)
        if "compile" in trial.race.candidate:
            self.listener.compiling(" + ".join(trial.race.candidate))
        yield from trial.race.until(seconds)
        compared, refused = trial.race.result, ""
        wanted = compared.verdict is Verdict.FASTER and not compared.problem
        if wanted and compared.ratio is not None and compared.ratio.ratio < _WORTH_IT:
            refused = "gains less than 2 % on top of the plan, which is cheaper without"
        elif wanted:
            trial.value = self._refined(trial)
            refused = yield from self._refusal(unit, trial.value)
        self._told(trial, refused)
        if wanted and not refused and compared.ratio is not None:
            self.found.setting = {**plan, unit.name: trial.value}
            self.found.plan_ratio *= compared.ratio.ratio

    # --- telling ---------------------------------------------------------------------------

    def _progress(self, name: str, value: Value) -> Progress:
        def progress(ratio: Ratio | None, pairs: int) -> None:
            self.listener.trying(name, value, ratio, pairs, self.bench.clock.left)

        return progress

    def _told(self, trial: Trial, refused: str = "") -> None:
        trial.told = True
        self._tell(_tried(trial, refused, self._numerics(trial.unit)))

    def _tell(self, tried: Tried) -> None:
        self.found.tried.append(tried)
        self.listener.tried(tried)


def _tried(
    trial: Trial,
    refused: str = "",
    numerics: str | None = None,
) -> Tried:
    """The row for the table."""
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
        reason=compared.problem or refused,
        payback_iterations=_payback(compared),
        pairs=compared.pairs,
        seconds=compared.seconds,
        compile_seconds=compared.compile_seconds,
        against=trial.against,
    )


def _payback(compared: Compared) -> int | None:
    """Iterations until the compile time is won back; None where it never is, or there was none."""
    gain = compared.reference_iteration - compared.candidate_iteration
    if not compared.compile_seconds or gain <= 0:
        return None
    return round(compared.compile_seconds / gain)
