"""The search: candidates alone, all promising ones at once, more on top, then what is needed.

Guided by what watching has shown and by the data-free ceiling: nothing on the data path is tried
where data is free. Gains multiply while noise stays as it is, so that everything promising
together is told from the baseline long before any part of it is: hence the *stack*, which is
raced as one candidate and then pruned of what it can do without.
Knows nothing of processes: a generator of commands that is sent answers.
"""

from __future__ import annotations

import math
from collections.abc import Generator

from hasten.environment import Environment
from hasten.optimisations import Optimisation, compiles, discover, excluded
from hasten.records import Outcome, Ratio, Setting, Tried, Value
from hasten.statistics import Verdict
from hasten.tuning import stacks
from hasten.tuning.candidates import Candidate, Scope, collect, without_free_data
from hasten.tuning.comparing import Answer, Bench, Command, Progress, Race, Steps
from hasten.tuning.found import Found
from hasten.tuning.listener import Listener
from hasten.tuning.proving import Proofs
from hasten.tuning.trial import WORTH_IT, Trial, changes, row

_FIRST_SHARE = 0.6  # of the budget is for candidates by themselves
_DATA_BOUND = 1.3  # times as fast without waiting for data: that is seen to first
_LIKELY_SHARE = 0.3  # of the budget, at most, for what mostly helps
_LOOK = 4  # pairs of blocks that every candidate gets, if that takes no more than ...
_LOOK_SHARE = 0.4  # ... of a round
_MORE = 2  # pairs between two decisions about who is next
_CEILING_SECONDS = 0.08  # of the budget
_PRUNE_SHARE = 0.1  # of the budget is kept for each part of a plan that may not be needed, ...
_PRUNE_MOST = 0.4  # ... but not more
_INTERACT = ("threads", "loader-workers")  # share the cores: tried again on top of a plan


class Search:
    """One search over every optimisation that applies."""

    def __init__(
        self, bench: Bench, environment: Environment, scope: Scope, listener: Listener
    ) -> None:
        self.bench, self.environment, self.scope = bench, environment, scope
        self.listener = listener
        self.found = Found()
        self.proofs = Proofs(scope.allow, bench.clock)
        self._trials: list[Trial] = []
        self._remedies: list[Candidate] = []  # of what was refused, to be tried

    def run(self) -> Steps:
        """The whole search."""
        candidates = collect(self.scope, self.bench.profile, self.environment, self._say_not)
        if any(unit.data_path for unit, _ in candidates):
            yield from self._ceiling()
            candidates = without_free_data(candidates, self.found.data_free, self._say_not)
        candidates.sort(key=lambda pair: pair[0].data_path)  # their limit is known
        yield from self._data_first(candidates)
        yield from self._likely(candidates)
        rivals = self._rivals(candidates)
        while rivals:
            winner = yield from self._round(rivals, self._share())
            if winner is None:
                break
            self._adopt(winner)
            rivals = self._rivals(candidates)
        if not self.found.setting:
            yield from self._unproven()
        yield from self._prune()
        for trial in self._trials:
            if not trial.told and trial is self._latest(trial.unit, trial.value):
                self._told(trial)

    # --- what to try -----------------------------------------------------------------------

    def _say_not(self, unit: Optimisation, reason: str) -> None:
        numerics = unit.numerics.value
        self._tell(Tried(unit.name, None, None, None, None, "not applicable", numerics, reason))

    def _ceiling(self) -> Steps:
        """How much faster the loop is when batches cost nothing."""
        profile = self.bench.profile
        alone = profile.loader is not None and profile.loader.workers == 0
        if alone or not self.bench.throw_away:
            # Where nothing loads beside the loop it would be faster by what it waits, and no more;
            # with workers that is the least, as they also take cores. Holding a batch would
            # train on it again and again.
            ratio = profile.iteration / max(profile.iteration - profile.phases["data"], 1e-9)
            self.found.data_free = Ratio(ratio, ratio, ratio)
            return
        seconds = self.bench.clock.budget * _CEILING_SECONDS
        race = Race(self.bench, {}, {}, self._progress("data-free ceiling", None), hold=True)
        yield from race.until(seconds)
        self.found.data_free = race.result.ratio

    # --- at once ---------------------------------------------------------------------------

    def _data_first(self, candidates: list[Candidate]) -> Steps:
        """Where the loop waits for data for long, all else is measured sooner without the wait."""
        ceiling = self.found.data_free
        if ceiling is None or ceiling.ratio < _DATA_BOUND:
            return
        rivals = [pair for pair in self._rivals(candidates) if pair[0].data_path]
        winner = yield from self._round(rivals, _LIKELY_SHARE * self.bench.clock.left, short=True)
        if winner is not None:
            self._adopt(winner)

    def _likely(self, candidates: list[Candidate]) -> Steps:
        """What mostly helps, at once: a large gain is told soon, and all else is quicker on it.

        Where it turns out not to be faster, or a part of it is refused and nothing is left, the
        search begins with candidates by themselves.
        """
        clock, idle = self.bench.clock, set[str]()
        end = clock.spent + _LIKELY_SHARE * clock.left
        while clock.spent < end and (stack := self._likely_stack(candidates, idle)) is not None:
            while stack.race.open and clock.spent < end:
                pairs = stack.race.result.pairs
                yield from self._turns(stack, _MORE, end - clock.spent)
                if stack.race.result.pairs == pairs or (pairs and stack.ratio() < WORTH_IT):
                    break
                if pairs >= _LOOK and clock.spent + stack.seconds_left(doubt=False) > end:
                    break  # other candidates may gain more than this little
            if stack.won:
                self._adopt(stack)
            block = stack.race.result.block
            found_idle = set(block.no_effect) - idle if block is not None else set()
            if not stack.refused and not found_idle:
                return
            idle |= found_idle

    def _likely_stack(self, candidates: list[Candidate], idle: set[str]) -> Trial | None:
        bundle = stacks.likely(self._rivals(candidates), idle, self.proofs.objection)
        if bundle is None:
            return None
        return self._trial(bundle, bundle.setting, self.found.setting)

    # --- one by one ------------------------------------------------------------------------

    def _trial(self, unit: Optimisation, value: Value, reference: Setting) -> Trial:
        progress = self._progress(unit.name, value)
        race = Race(self.bench, reference, {**reference, **changes(unit, value)}, progress)
        trial = Trial(unit, value, race, " + ".join(reference) or "baseline")
        self._trials.append(trial)
        return trial

    def _entered(self, unit: Optimisation, value: Value) -> Trial:
        """A candidate on top of the plan; with the turns that it has had there already."""
        latest = self._latest(unit, value)
        if latest is not None and latest.open and latest.race.reference == self.found.setting:
            return latest
        return self._trial(unit, value, self.found.setting)

    def outcome(self, interrupted: bool) -> Outcome:
        """What is known by now.

        Args:
            interrupted: the search was cut off, so that the best that is proven counts.
        """
        found, clock = self.found, self.bench.clock
        return Outcome(
            environment=self.environment.describe(),
            profile=self.bench.profile,
            tried=(*found.tried, *self._unfinished()),
            setting=found.best if interrupted else found.setting,
            confirmed=None,
            confirmed_verdict="",
            seconds=clock.spent,
            compile_seconds=clock.compile_seconds,
            iterations=0,
            interrupted=interrupted,
            data_free=found.data_free,
            gain=found.best_ratio if interrupted else found.plan_ratio,
            proof_seconds=self.proofs.seconds,
        )

    def _unfinished(self) -> list[Tried]:
        """What is known of candidates that an interrupt has cut off."""
        cut_off = [t for t in self._trials if not t.told and t.race.result.pairs]
        return [row(trial, numerics=self.proofs.numerics(trial.unit)) for trial in cut_off]

    def _round(
        self, rivals: list[Candidate], seconds: float, short: bool = False
    ) -> Generator[Command, Answer, Trial | None]:
        """Race everything against the plan so far, until one is best beyond doubt.

        Each gets a look; then time goes to those that may be better than the best one proven.

        Args:
            rivals: what is raced.
            seconds: for the round.
            short: no more than that, even if nothing is found.
        """
        trials = [self._entered(unit, value) for unit, value in rivals]
        clock, first = self.bench.clock, not self.found.setting
        end = clock.spent + seconds
        yield from self._looks(trials, end)
        while True:
            trials += self._remedied()
            trials += self._stack(trials)
            best = max((t for t in trials if t.won), key=Trial.worth, default=None)
            left = [t for t in trials if t.open and t.may_beat(best, self._limit(t))]
            if short or not first:  # time is better used for other things
                left = [trial for trial in left if trial.promising]
            # With nothing to build on, the time that was kept for it is better used here.
            rest = clock.left if first and not short and best is None else end - clock.spent
            if not left or rest <= 0.0:
                return best
            trial = max(left, key=Trial.promise)
            pairs = trial.race.result.pairs
            yield from self._turns(trial, _MORE, rest)
            if trial.race.result.pairs == pairs and trial.race.open:
                return best  # what is left is too short for one more pair

    def _share(self) -> float:
        """Seconds for a round."""
        if not self.found.setting:
            return self.bench.clock.left * _FIRST_SHARE
        return max(0.0, self.bench.clock.left - self._kept())

    def _kept(self) -> float:
        """Seconds that are kept for pruning."""
        return min(_PRUNE_SHARE * len(self._unsure()), _PRUNE_MOST) * self.bench.clock.budget

    def _looks(self, trials: list[Trial], end: float) -> Steps:
        """A few pairs of each candidate, fewer of those that look bad."""
        clock = self.bench.clock
        pairs = self._look(trials, end - clock.spent)
        for index, trial in enumerate(trials):
            if self._limit(trial) < max(t.ratio() for t in trials):
                continue  # whatever comes of it, another one is better
            share = (end - clock.spent) / (len(trials) - index)
            yield from self._turns(trial, 1, share)
            if trial.race.open and not trial.hopeless():
                yield from self._turns(trial, pairs - 1, share)

    def _limit(self, trial: Trial) -> float:
        """The most that a candidate can gain on top of the plan: for data waits, the ceiling."""
        ceiling = self.found.data_free
        if not trial.unit.data_path or ceiling is None or math.isinf(ceiling.high):
            return math.inf
        iteration = 1.0 / self.found.plan_ratio  # in units of the baseline's
        return iteration / max(iteration - (1.0 - 1.0 / ceiling.high), 0.05)

    def _look(self, trials: list[Trial], seconds: float) -> int:
        """Pairs that each candidate gets first: few where they would eat up the round."""
        each = sum(trial.race.pair_seconds for trial in trials)
        return max(1, min(_LOOK, int(_LOOK_SHARE * seconds / max(each, 1e-9))))

    def _turns(self, trial: Trial, pairs: int, seconds: float) -> Steps:
        if trial.race.result.pairs == 0 and compiles(trial.race.candidate):
            self.listener.compiling(" + ".join(trial.race.candidate))
        if not self.bench.throw_away:  # what is measured trains the user's model
            yield from self.proofs.admit(trial)
        yield from trial.race.turns(pairs, seconds)
        if not trial.race.open or trial.leads():
            yield from self._decided(trial)

    def _decided(self, trial: Trial) -> Steps:
        """A verdict, or as good as one: what is faster has to pass its proof."""
        compared, refused = trial.race.result, trial.race.result.barred
        faster = compared.verdict is Verdict.FASTER or (trial.race.open and trial.leads())
        trial.won = faster and not compared.problem
        if trial.won and trial.race.reference and trial.ratio() < WORTH_IT:
            refused = "gains less than 2 % on top of the plan, which is cheaper without"
        elif trial.won:
            trial.value = self._refined(trial)
            refused = yield from self.proofs.refusal(trial.unit, trial.value)
        self._remedies += self.proofs.remedies(trial.unit, trial.value) if refused else []
        trial.won = trial.won and not refused
        self._told(trial, refused)
        if trial.won and trial.ratio() * self.found.plan_ratio > self.found.best_ratio:
            # An interrupt from now on finds at least this.
            self.found.best = {**trial.race.reference, **changes(trial.unit, trial.value)}
            self.found.best_ratio = trial.ratio() * self.found.plan_ratio

    def _remedied(self) -> list[Trial]:
        """Other values in the place of those that a proof has refused, where they are new."""
        waiting, self._remedies = self._remedies, []
        new = [(u, v) for u, v in waiting if self._latest(u, v) is None and self._fits(u, v)]
        return [self._trial(unit, value, self.found.setting) for unit, value in new]

    def _refined(self, trial: Trial) -> Value:
        block = trial.race.result.block
        if block is None:
            return trial.value
        return trial.unit.refine(trial.value, block, self.bench.profile)

    def _unproven(self) -> Steps:
        """Without any verdict: the most likely gain, to be decided by what comes after."""
        likely = [t for t in self._trials if t.open and t.race.likely]
        for trial in sorted(likely, key=lambda trial: trial.gain, reverse=True):
            refused = yield from self.proofs.refusal(trial.unit, trial.value)
            if trial.ratio() >= WORTH_IT and not refused:
                self._adopt(trial)
                trial.won, self.found.sure = True, False
                return

    # --- together --------------------------------------------------------------------------

    def _adopt(self, winner: Trial) -> None:
        self.found.setting = {**self.found.setting, **changes(winner.unit, winner.value)}
        self.found.plan_ratio *= winner.ratio()

    def _rivals(self, candidates: list[Candidate]) -> list[Candidate]:
        """What may still help on top of the plan; what is tried again for its company last."""
        fitting: list[Candidate] = []
        for unit, value in candidates:
            before = any(unit is earlier for earlier, _ in fitting)
            if self._fits(unit, value) and not (unit.one_by_one and before):
                fitting.append((unit, value))
        return sorted(fitting, key=lambda pair: self._known(*pair) and pair[0].name in _INTERACT)

    def _stack(self, trials: list[Trial]) -> list[Trial]:
        """Everything promising of a round as one more candidate, unless it was one before."""
        found = stacks.promising(trials, self._trials, self.proofs.objection)
        if found is None:
            return []
        bundle, gain = found
        stack = self._trial(bundle, bundle.setting, self.found.setting)
        stack.expected = math.exp(gain)
        return [stack]

    # --- less again ------------------------------------------------------------------------

    def _unsure(self) -> list[str]:
        """Parts of the plan that were not seen to be needed, those with least evidence first."""
        setting = self.found.setting
        if len(setting) < 2:
            return []
        sure = {
            trial.unit.name
            for trial in self._trials
            if trial.won and {*trial.race.reference, trial.unit.name} == set(setting)
        }
        alone = {n: self._latest(discover()[n], setting[n]) for n in setting}
        return sorted(set(setting) - sure, key=lambda n: t.ratio() if (t := alone[n]) else 0.0)

    def _prune(self) -> Steps:
        """Leave out what the plan can do without: each part against the rest."""
        unsure = self._unsure()
        while unsure and len(self.found.setting) > 1:
            name = unsure.pop(0)
            value = self.found.setting[name]
            rest = {n: v for n, v in self.found.setting.items() if n != name}
            trial = self._trial(discover()[name], value, rest)
            yield from trial.race.until(self.bench.clock.left / (len(unsure) + 1))
            trial.won = trial.race.result.verdict is Verdict.FASTER
            if not trial.race.result.pairs:
                self._trials.remove(trial)
                continue
            not_needed = trial.needless()
            self._told(trial, "gains less than 2 % beside the rest" if not_needed else "")
            if not_needed:
                self.found.setting = rest
                self.found.plan_ratio /= trial.ratio()

    def _latest(self, unit: Optimisation, value: Value) -> Trial | None:
        same = [t for t in self._trials if t.unit is unit and t.tried == value]
        return same[-1] if same else None

    def _known(self, unit: Optimisation, value: Value) -> bool:
        return self._latest(unit, value) is not None

    def _fits(self, unit: Optimisation, value: Value) -> bool:
        setting, latest = self.found.setting, self._latest(unit, value)
        if excluded(unit, setting):
            return False
        if latest is None:
            return unit.name not in setting
        if latest.race.result.problem or latest.refused:
            return False
        # Cores and data waits are shared: a value that lost alone may win beside the others.
        interacts = unit.name in _INTERACT
        if unit.name in setting and not (interacts and setting[unit.name] != latest.value):
            return False
        if latest.hopeless() or (latest.loses() and not interacts):
            return False
        # Compiling once more, with the plan, may cost more than it promises.
        return not latest.compiles_long or latest.ratio() >= 1.0

    # --- telling ---------------------------------------------------------------------------

    def _progress(self, name: str, value: Value) -> Progress:
        def progress(ratio: Ratio | None, pairs: int) -> None:
            self.listener.trying(name, value, ratio, pairs, self.bench.clock.left)

        return progress

    def _told(self, trial: Trial, refused: str = "") -> None:
        trial.told, trial.refused = True, refused
        self._tell(row(trial, refused, self.proofs.numerics(trial.unit)))

    def _tell(self, tried: Tried) -> None:
        self.found.tried.append(tried)
        self.listener.tried(tried)
