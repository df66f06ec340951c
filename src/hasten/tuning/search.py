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
    compare,
    prove,
)
from hasten.tuning.listener import Listener

_DATA_MATTERS = 1.03  # a loop that data makes slower is at least this much faster without
_WORTH_IT = 1.02  # a part of a plan that gains less is left out: the cheaper plan is as good
_ALONE_SHARE = 0.65  # of the budget is for candidates by themselves
_CEILING_SECONDS = 0.08  # of the budget
_INTERACT = ("threads", "loader-workers")  # share the cores: tried again on top of a plan

Steps = Generator[Command, Answer, None]


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


class Search:
    """One search over every optimisation that applies."""

    def __init__(
        self, bench: Bench, environment: Environment, scope: Scope, listener: Listener
    ) -> None:
        self.bench, self.environment, self.scope = bench, environment, scope
        self.listener = listener
        self.found = Found()

    def run(self) -> Steps:
        """The whole search."""
        candidates = self._candidates()
        if any(unit.data_path for unit, _ in candidates):
            yield from self._ceiling()
            candidates = self._without_free_data(candidates)
        limit = self.bench.clock.left * _ALONE_SHARE
        end = self.bench.clock.spent + limit
        for index, (unit, value) in enumerate(candidates):
            # What a quick verdict leaves over is there for those that follow.
            share = (end - self.bench.clock.spent) / (len(candidates) - index)
            yield from self._alone(unit, value, max(0.0, share))
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
        compared = yield from compare(
            self.bench, {}, {}, seconds, self._progress("data-free ceiling", None), hold=True
        )
        self.found.data_free = compared.ratio

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

    def _alone(self, unit: Optimisation, value: Value, seconds: float) -> Steps:
        compared = yield from self._measure(unit, value, {}, seconds)
        if compared.verdict is not Verdict.FASTER:
            self._tell(_tried(unit, value, compared))
            return
        if compared.block is not None:
            value = unit.refine(value, compared.block, self.bench.profile)
        refused = yield from self._refusal(unit, value)
        self._tell(_tried(unit, value, compared, refused, self._numerics(unit)))
        ratio = compared.ratio.ratio if compared.ratio is not None else 1.0
        if not refused and ratio > self.found.winners.get(unit.name, (None, 1.0))[1]:
            self.found.winners[unit.name] = (value, ratio)
            if ratio > self.found.plan_ratio:
                self.found.setting, self.found.plan_ratio = {unit.name: value}, ratio

    def _measure(
        self, unit: Optimisation, value: Value, reference: Setting, seconds: float
    ) -> Generator[Command, Answer, Compared]:
        candidate = {**reference, unit.name: value}
        if "compile" in candidate:
            self.listener.compiling(" + ".join(candidate))
        progress = self._progress(unit.name, value)
        progress(None, 0)
        return (yield from compare(self.bench, reference, candidate, seconds, progress))

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
        compared = yield from self._measure(unit, value, plan, seconds)
        wanted = compared.verdict is Verdict.FASTER
        refused = ""
        if wanted and compared.ratio is not None and compared.ratio.ratio < _WORTH_IT:
            refused = "gains less than 2 % on top of the plan, which is cheaper without"
        elif wanted:
            if compared.block is not None:
                value = unit.refine(value, compared.block, self.bench.profile)
            refused = yield from self._refusal(unit, value)
        against = " + ".join(plan)
        self._tell(_tried(unit, value, compared, refused, self._numerics(unit), against))
        if wanted and not refused and compared.ratio is not None:
            self.found.setting = {**plan, unit.name: value}
            self.found.plan_ratio *= compared.ratio.ratio

    # --- telling ---------------------------------------------------------------------------

    def _progress(self, name: str, value: Value) -> Progress:
        def progress(ratio: Ratio | None, pairs: int) -> None:
            self.listener.trying(name, value, ratio, pairs, self.bench.clock.left)

        return progress

    def _tell(self, tried: Tried) -> None:
        self.found.tried.append(tried)
        self.listener.tried(tried)


def _tried(
    unit: Optimisation,
    value: Value,
    compared: Compared,
    refused: str = "",
    numerics: str | None = None,
    against: str = "baseline",
) -> Tried:
    """The row for the table."""
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
        against=against,
    )


def _payback(compared: Compared) -> int | None:
    """Iterations until the compile time is won back; None where it never is, or there was none."""
    gain = compared.reference_iteration - compared.candidate_iteration
    if not compared.compile_seconds or gain <= 0:
        return None
    return round(compared.compile_seconds / gain)
