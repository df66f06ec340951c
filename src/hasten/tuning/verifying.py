"""`verify`: does training under a plan come out as well as without? Asked of paired runs.

In each pair one child runs the script as it is and one with the plan, from the same seeds and over
the same first iterations. Counters have to be equal; the loss at the end, and a metric that the
script prints, have to be not worse beyond a margin.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from hasten.errors import HastenError
from hasten.optimisations import compiles, discover
from hasten.protocol import Message
from hasten.records import Failed, Setting
from hasten.tuning import invariants, leftovers
from hasten.tuning.driver import before_training
from hasten.tuning.noninferiority import CANNOT_TELL, WORSE, judge
from hasten.tuning.process import Child, Gone
from hasten.tuning.shields import choose_shield
from hasten.verification import Follow, Followed, Judged, Pair, Verification

HOLDS, BROKEN = "holds", "broken"
_LOOK = 8  # iterations that tell how long the others may take
_SMOOTHED = 0.2  # of the iterations, at the end, whose mean loss is compared
_FEWEST = 10  # iterations below which a curve says nothing
_PATIENCE = 20.0  # times the usual: a run that takes longer counts as hanging
_COMPILE_SECONDS = 1800.0
_WHOLE_SECONDS = 7 * 86400.0  # of a run to the script's own end


@dataclass(frozen=True)
class VerifyRequest:
    """What to verify, and how.

    Attributes:
        argv: the script and its arguments as Python takes them.
        setting: of the plan.
        seeds: pairs of runs.
        iterations: of each run; None: to the script's own end.
        margin: how much higher the final loss may be; None: from the spread between seeds.
        metric: a regular expression for a number in the script's output; its last match counts.
        metric_margin: likewise for the metric, in its units.
        lower_is_better: of the metric.
        confidence: of each one-sided bound.
        item_seeds: what is random in an item comes from seed, epoch and index, in both.
        shield: "auto", "overlay", "redirect" or "none".
        timeout: seconds until the first iterations.
        together: both runs of a pair at the same time, which memory has to hold.
    """

    argv: tuple[str, ...]
    setting: Setting
    seeds: int = 5
    iterations: int | None = 200
    margin: float | None = None
    metric: str | None = None
    metric_margin: float | None = None
    lower_is_better: bool = False
    confidence: float = 0.95
    item_seeds: bool = False
    shield: str = "auto"
    timeout: float = 600.0
    together: bool = False


@dataclass
class _Run:
    """What one child did."""

    followed: Followed
    metric: float | None


_Steps = Generator[None, None, _Run | None]


@dataclass
class Verifying:
    """One run of `verify`."""

    request: VerifyRequest
    say: Callable[[str], None]
    notes: dict[str, None] = field(default_factory=dict)
    broken: dict[str, None] = field(default_factory=dict)
    runs: list[tuple[_Run, _Run]] = field(default_factory=list)
    shield: str = ""

    def run(self) -> Verification:
        """Run every pair and judge.

        Raises:
            HastenError: the script can't be verified, with what to do.
        """
        begun = time.monotonic()
        leftovers.sweep()
        self._mode = choose_shield(self.request.shield)
        for number in range(self.request.seeds):
            baseline, plan = self._both(number)
            if plan is None or baseline is None:
                break
            self._add(number, baseline, plan)
        return self._verification(time.monotonic() - begun)

    def _add(self, number: int, baseline: _Run, plan: _Run) -> None:
        self.runs.append((baseline, plan))
        found = invariants.broken(baseline.followed, plan.followed)
        self.broken.update(dict.fromkeys(found))
        self.notes.update(dict.fromkeys(invariants.remarks(baseline.followed, plan.followed)))
        count = min(len(run.followed.iterations) for run in (baseline, plan))
        last = [_final(run.followed.losses, count) for run in (baseline, plan)]
        self.say(
            f"pair {number + 1} of {self.request.seeds}: {count} iterations, final loss "
            f"{last[0]:.5g}, under the plan {last[1]:.5g}"
            + (f"; {len(found)} broken invariants" if found else "")
        )

    # --- children --------------------------------------------------------------------------

    def _both(self, number: int) -> tuple[_Run | None, _Run | None]:
        """Both runs of a pair: the script as it is, and under the plan."""
        found: list[_Run | None] = [None, None]
        going = dict(enumerate(self._child(s, number) for s in ({}, self.request.setting)))
        try:
            while going:
                for place in list(going) if self.request.together else [min(going)]:
                    try:
                        next(going[place])
                    except StopIteration as end:
                        found[place] = end.value
                        del going[place]
        finally:
            for child in going.values():
                child.close()
        return found[0], found[1]

    def _child(self, setting: Setting, number: int) -> _Steps:
        """Follow one run; None when it fails under the plan, which is noted as broken.

        Yields whenever there is something to wait for.
        """
        units = discover()
        child = Child(
            self.request.argv,
            self._mode,
            lambda text: self.notes.update({text: None}),
            start_setting={n: v for n, v in setting.items() if not units[n].live},
            pair=number,
            item_seeds=self.request.item_seeds,
        )
        try:
            child.start()
            self.shield = child.describe
            return (yield from self._followed(child, setting))
        except Gone as gone:
            if not setting:
                raise before_training(gone, self.request.timeout) from None
            self.broken[f"the script fails under the plan: {gone.message}"] = None
            return None
        finally:
            child.close()

    def _followed(self, child: Child, setting: Setting) -> _Steps:
        wanted = self.request.iterations
        begun = time.monotonic()
        more = _COMPILE_SECONDS if compiles(setting) else 0.0
        first = _LOOK if wanted is None else min(_LOOK, wanted)
        child.send(Follow(setting, first))
        yield
        answer = child.answer(self.request.timeout + more)
        usual = time.monotonic() - begun
        if isinstance(answer, Followed) and not answer.ended and first != wanted:
            limit = _WHOLE_SECONDS
            if wanted is not None:
                limit = self.request.timeout + more + _PATIENCE * usual * wanted / first
            child.send(Follow(setting, wanted))
            yield
            answer = child.answer(limit)
        if not isinstance(answer, Followed):
            raise HastenError(f"the script could not be followed: {_why(answer)}", 3)
        run = _Run(answer, self._metric(child.output()))
        if answer.ended:
            self._check_end(child, answer)
        return run

    def _check_end(self, child: Child, answer: Followed) -> None:
        """A script that came to its end must have ended well.

        Raises:
            Gone: it did not.
            HastenError: it hardly trained.
        """
        try:
            child.receive(self.request.timeout)
        except Gone as gone:
            if gone.kind != "ended" or len(answer.iterations) < _FEWEST:
                raise

    def _metric(self, output: str) -> float | None:
        if self.request.metric is None:
            return None
        matches = list(re.finditer(self.request.metric, output, re.MULTILINE))
        if not matches:
            raise HastenError(
                f"--metric-regex: nothing in the script's output matches {self.request.metric!r}"
                + (
                    f" within {self.request.iterations} iterations: allow more with --iterations"
                    if self.request.iterations is not None
                    else ""
                )
            )
        last = matches[-1]
        text = last.group(1) if last.re.groups else last.group()
        try:
            return float(text)
        except (TypeError, ValueError):
            raise HastenError(
                f"--metric-regex: {text!r} is not a number; put the number into ( )"
            ) from None

    # --- conclusions -----------------------------------------------------------------------

    def _verification(self, seconds: float) -> Verification:
        counts = [len(run.followed.iterations) for pair in self.runs for run in pair]
        count = min(counts, default=0)
        judged = self._judged(count) if self.runs else ()
        self._remark(count)
        if self.broken or any(j.verdict == WORSE for j in judged):
            verdict = BROKEN
        elif any(j.verdict == CANNOT_TELL for j in judged) or not judged:
            verdict = CANNOT_TELL
        else:
            verdict = HOLDS
        return Verification(
            verdict=verdict,
            judged=judged,
            broken=tuple(self.broken),
            pairs=tuple(self._pair(number, *pair) for number, pair in enumerate(self.runs)),
            iterations=count,
            smoothed=_window(count),
            seeds=self._seeds(),
            setting=dict(self.request.setting),
            notes=tuple(self.notes),
            shield=self.shield,
            seconds=seconds,
        )

    def _judged(self, count: int) -> tuple[Judged, ...]:
        request = self.request
        ours, theirs = (
            [_final(pair[side].followed.losses, count) for pair in self.runs] for side in (0, 1)
        )
        same = all(_same(b.followed.losses, p.followed.losses) for b, p in self.runs)
        found = [
            judge("final loss", ours, theirs, request.margin, request.confidence, identical=same)
        ]
        if request.metric is not None:
            values = [(b.metric, p.metric) for b, p in self.runs]
            kept = [(b, p) for b, p in values if b is not None and p is not None]
            metric = judge(
                "metric",
                [b for b, _ in kept],
                [p for _, p in kept],
                request.metric_margin,
                request.confidence,
                higher_is_better=not request.lower_is_better,
                identical=same and all(b == p for b, p in kept),
            )
            found.append(metric)
        return tuple(found)

    def _pair(self, number: int, baseline: _Run, plan: _Run) -> Pair:
        metrics = tuple(m for m in (baseline.metric, plan.metric) if m is not None)
        return Pair(
            number=number,
            baseline=baseline.followed.losses,
            plan=plan.followed.losses,
            metrics=metrics,
        )

    def _seeds(self) -> str:
        moved = dict.fromkeys(n for pair in self.runs for r in pair for n in r.followed.reseeded)
        text = (
            "python, numpy and torch were seeded before the script's first line, once for each pair"
        )
        if moved:
            text += (
                f"; where the script seeds itself ({', '.join(moved)}), the pair's offset was added"
            )
        return text

    def _remark(self, count: int) -> None:
        """What limits the conclusions."""
        if 0 < count < _FEWEST:
            self.notes[f"only {count} iterations were followed: the curve says little"] = None
        if all(
            map(math.isnan, (x for b, p in self.runs for r in (b, p) for x in r.followed.losses))
        ):
            self.notes["backward() was given no loss that is a number: none was compared"] = None
        several = [r.followed.losses_an_iteration for pair in self.runs for r in pair]
        if several and statistics.fmean(several) > 1.01:
            self.notes["an iteration has several backward passes: their mean loss is compared"] = (
                None
            )
        if len(self.runs) < self.request.seeds:
            self.notes[f"only {len(self.runs)} of {self.request.seeds} pairs were run"] = None


def _window(count: int) -> int:
    return max(1, round(_SMOOTHED * count))


def _final(losses: Sequence[float], count: int) -> float:
    """The mean loss of the last iterations of the first `count`."""
    kept = losses[:count]
    last = kept[-_window(count) :]
    return statistics.fmean(last) if last else math.nan


def _same(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return len(ours) == len(theirs) and all(
        b == p or (math.isnan(b) and math.isnan(p)) for b, p in zip(ours, theirs, strict=True)
    )


def _why(answer: Message) -> str:
    return answer.message if isinstance(answer, Failed) else f"unexpected {type(answer).__name__}"


def verify(request: VerifyRequest, say: Callable[[str], None]) -> Verification:
    """Find out whether training under a plan is not worse than without.

    Args:
        request: what, and how.
        say: is told what is going on, a line each.

    Raises:
        HastenError: the script can't be verified, with what to do.
    """
    return Verifying(request, say).run()
