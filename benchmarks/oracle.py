"""How close to the best of all combinations hasten's plan comes, and for what part of the time.

    python benchmarks/oracle.py cnn [--seconds 300]      # one workload; call again to go on
    python benchmarks/oracle.py --report                 # the table of all that is known

For one workload: every combination of the values of the same knobs, as the units' own `applies`
give them, in interleaved blocks against the script as it is, round after round in random order,
each until its interval is narrower than `--target`, or lies below that of the third best, or it
takes twice as long as the script; then `hasten tune` within `--part` of the time that this took,
but at most `--budget`; then Optuna's TPE and random search over the same knobs for as long as that
took by the clock on the wall, since all have to start processes. The grid's top three and what the
samplers chose are timed anew against hasten's plan by siblings, since the first of many noisy
figures is partly first by luck. The share is 1 over the largest of those ratios (at most 1), which
is still slightly in the grid's favour.

Each stage is kept in `benchmarks/results/oracle-NAME.jsonl`, pair by pair; a call goes on where the
last one stopped. Compiling a model takes longer here than all the rest, so `--skip` leaves the
compiling units out for hasten and grid alike, unless told otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import samplers
from turns import NAMES, Log, Nobody, Point, Stopwatch, Table, key, script, table

from hasten.environment import look
from hasten.optimisations import Optimisation, discover
from hasten.records import Profile, Ratio, Setting, Value
from hasten.statistics import Interval
from hasten.tuning.candidates import Scope, collect, without_free_data
from hasten.tuning.comparing import Race, start_part
from hasten.tuning.session import Session, TuneRequest

RESULTS = Path(__file__).parent / "results"
SKIPPED = ("compile", "compiled-optimizer")
TOP = 3
_LEAST, _MOST = 3, 40  # pairs of one setting in the grid
_HOPELESS = 0.5  # times as fast as the script after one pair: no more of it
_FINAL = 12  # pairs by siblings
_FINAL_NARROW = 1.04  # upper over lower end, after which no more are needed

Knobs = dict[str, tuple[Value, ...]]


@dataclass(frozen=True)
class Limits:
    """How far one workload is measured."""

    budget: float
    part: float
    target: float
    skip: tuple[str, ...]
    final_pairs: int = _FINAL
    most_pairs: int = _MOST


# --- what there is to combine ------------------------------------------------------------------


def knobs_of(profile: Profile, skip: tuple[str, ...]) -> Knobs:
    """What hasten would try on this script, by unit: nothing of the data path if data is free."""
    found: dict[str, list[Value]] = {}
    candidates = collect(Scope(skip=skip), profile, look(), _unsaid)
    # As the search has it: without workers nothing loads beside the loop.
    free = profile.iteration / max(profile.iteration - profile.phases["data"], 1e-9)
    for unit, value in without_free_data(candidates, Ratio(free, free, free), _unsaid):
        found.setdefault(unit.name, []).append(value)
    return {name: tuple(values) for name, values in found.items()}


def _unsaid(unit: Optimisation, reason: str) -> None:
    """A unit that isn't tried; hasten's own report says why."""


def combinations(knobs: Knobs) -> list[Setting]:
    """Every setting but the script as it is; none with units that exclude each other."""
    axes = [[(name, None), *((name, value) for value in knobs[name])] for name in knobs]
    settings = []
    for chosen in itertools.product(*axes):
        setting = {name: value for name, value in chosen if value is not None}
        if setting and fits(setting):
            settings.append(setting)
    return sorted(settings, key=lambda setting: key(start_part(setting)))


def fits(setting: Setting) -> bool:
    """Whether no unit in it excludes another."""
    units = discover()
    return not any(set(units[name].excludes) & set(setting) for name in setting)


# --- the grid ----------------------------------------------------------------------------------


class Grid:
    """Every combination, as far as it has been measured."""

    def __init__(self, knobs: Knobs, log: Log, limits: Limits) -> None:
        self.log, self.limits = log, limits
        self.points = {key(setting): Point(setting) for setting in combinations(knobs)}
        for row in log.of("pair"):
            if row["setting"] in self.points:
                self.points[row["setting"]].pairs.append((row["reference"], row["candidate"]))
        for row in log.of("problem"):
            if row["setting"] in self.points:
                self.points[row["setting"]].problem = row["problem"]

    @property
    def seconds(self) -> float:
        """Measuring time so far, over all calls."""
        return math.fsum(row["seconds"] for row in self.log.of("pair") + self.log.of("problem"))

    def ranked(self) -> list[tuple[Point, Interval]]:
        """What works, fastest first."""
        known = [(p, p.interval()) for p in self.points.values() if p.pairs and not p.problem]
        return sorted(known, key=lambda known_point: -known_point[1].ratio)

    def open(self) -> list[Point]:
        """Those of which more pairs are needed."""
        ranked = self.ranked()
        third = ranked[TOP - 1][1].low if len(ranked) >= TOP else 0.0
        known = {point.key: interval for point, interval in ranked}
        return [
            point
            for point in self.points.values()
            if not point.problem
            and not (point.pairs and known[point.key].ratio < _HOPELESS)
            and (len(point.pairs) < _LEAST or self._undecided(point, known[point.key], third))
        ]

    def _undecided(self, point: Point, interval: Interval, third: float) -> bool:
        wide = interval.low <= 0.0 or interval.high / interval.low > 1.0 + self.limits.target
        return wide and interval.high >= third and len(point.pairs) < self.limits.most_pairs

    def measure(self, bench: Table, watch: Stopwatch, rng: random.Random) -> bool:
        """Rounds over what is open until nothing is or the time is over; True: all done."""
        for point in self.points.values():
            point.noise = bench.noise
        while left := self.open():
            # Combinations that take a process of their own come together: two fit into memory.
            rng.shuffle(left)
            left.sort(key=lambda point: key(start_part(point.setting)))
            for point in left:
                if watch.over:
                    return False
                self._once(point, bench)
        return True

    def _once(self, point: Point, bench: Table) -> None:
        before = bench.clock.spent
        shared = bench.bench()
        point.race = point.race or Race(shared, {}, point.setting, lambda ratio, pairs: None)
        pair = bench.pair(point.race)
        seconds = bench.clock.spent - before
        if pair is not None:
            point.pairs.append(pair)
            reference, candidate = pair
            self.log.add(
                "pair", setting=point.key, reference=reference, candidate=candidate,
                seconds=seconds,
            )  # fmt: skip
        elif point.race.result.problem:
            point.problem = point.race.result.problem
            self.log.add("problem", setting=point.key, problem=point.problem, seconds=seconds)


# --- stages ------------------------------------------------------------------------------------


def plan(argv: tuple[str, ...], log: Log, limits: Limits, grid: Grid) -> dict[str, Any]:
    """hasten's plan, from the log if it is there."""
    found = log.last("plan")
    if found is not None:
        return found
    begun = time.monotonic()
    budget = min(limits.budget, limits.part * grid.seconds)
    request = TuneRequest(argv, budget, repeat=True, skip=limits.skip, shield="none")
    outcome = Session(request, Nobody()).run()
    confirmed = outcome.confirmed
    return log.add(
        "plan",
        setting=outcome.setting,
        seconds=outcome.seconds,
        compile_seconds=outcome.compile_seconds,
        wall=time.monotonic() - begun,
        confirmed=[confirmed.ratio, confirmed.low, confirmed.high] if confirmed else None,
        iteration=outcome.profile.iteration,
        environment=outcome.environment,
        budget=budget,
        skip=list(limits.skip),
    )


def duel(bench: Table, log: Log, name: str, ours: Setting, theirs: Setting, pairs: int) -> None:
    """Time one setting against hasten's plan by siblings."""
    done = [row for row in log.of("duel") if row["name"] == name and row["setting"] == key(theirs)]
    if done:
        return
    if ours == theirs:  # the same setting needs no measuring: it is as fast as itself
        log.add("duel", name=name, setting=key(theirs), ratio=1.0, low=1.0, high=1.0, pairs=0)
        return
    shared = bench.bench(siblings=True)
    race = Race(shared, ours, theirs, lambda ratio, count: None)
    point = Point(theirs, noise=bench.noise)
    while len(point.pairs) < pairs and not race.result.problem:
        pair = bench.pair(race)
        if pair is not None:
            point.pairs.append(pair)
        interval = point.interval()
        if len(point.pairs) >= 6 and interval.high < _FINAL_NARROW * interval.low:
            break
    interval = point.interval()
    log.add(
        "duel", name=name, setting=key(theirs), ratio=interval.ratio, low=interval.low,
        high=interval.high if math.isfinite(interval.high) else None, pairs=len(point.pairs),
        problem=race.result.problem,
    )  # fmt: skip


def run(name: str, argv: tuple[str, ...], log: Log, limits: Limits, seconds: float) -> bool:
    """As many stages of one workload as fit into the time; True: all are done."""
    watch = Stopwatch(seconds)
    with table(argv) as bench:
        assert bench.profile is not None
        knobs = _knobs(bench.profile, log, limits)
        grid = Grid(knobs, log, limits)
        # The top three stay what they were when hasten had its turn.
        if log.last("plan") is None:
            if not grid.measure(bench, watch, random.Random(len(log.rows))):
                return False
            log.add(
                "done", combinations=len(grid.points), seconds=grid.seconds, target=limits.target,
                most_pairs=limits.most_pairs,
            )  # fmt: skip
    found = plan(argv, log, limits, grid)  # alone: the grid's processes have ended
    if watch.over:
        return False
    with table(argv) as bench:
        rivals = [(f"grid {i + 1}", p.setting) for i, (p, _) in enumerate(grid.ranked()[:TOP])]
        rivals.append(("as it is", {}))
        if not _duels(bench, log, found["setting"], rivals, limits, watch):
            return False
        for kind in samplers.KINDS:
            if watch.over:
                return False
            samplers.search(kind, bench, knobs, log, Stopwatch(found["wall"]))
        rivals = [(kind, samplers.chosen(log, kind)) for kind in samplers.KINDS]
        return _duels(bench, log, found["setting"], rivals, limits, watch)


def _duels(
    bench: Table,
    log: Log,
    ours: Setting,
    rivals: list[tuple[str, Setting]],
    limits: Limits,
    watch: Stopwatch,
) -> bool:
    for name, setting in rivals:
        if watch.over:
            return False
        duel(bench, log, name, ours, setting, limits.final_pairs)
    return True


def _knobs(profile: Profile, log: Log, limits: Limits) -> Knobs:
    """Kept with the results, so that each call goes on with the same grid."""
    kept = log.last("knobs")
    if kept is None:
        knobs = knobs_of(profile, limits.skip)
        kept = log.add("knobs", knobs={name: list(values) for name, values in knobs.items()})
    return {name: tuple(values) for name, values in kept["knobs"].items()}


# --- what came out -----------------------------------------------------------------------------


def share(log: Log) -> float | None:
    """hasten's speed over the best one's; None while it isn't known."""
    rivals = [row for row in log.of("duel") if row["name"].startswith("grid")]
    if not any(row["name"] == "as it is" for row in log.of("duel")):  # the last of them
        return None
    best: float = max(row["ratio"] for row in rivals)
    return min(1.0, 1.0 / best)


def row(name: str, log: Log) -> str:
    """One line of the table."""
    found, done = log.last("plan"), log.last("done")
    if found is None or done is None or share(log) is None:
        pairs = len(log.of("pair"))
        state = f"not finished: {pairs} pairs of the grid" if pairs else "not run"
        return f"| {name} | {state} | | | | | | |"
    tuned = found["seconds"] + found["compile_seconds"]
    settings = ", ".join(f"`{unit}`" for unit in found["setting"]) or "none"
    duels = {row["name"]: row for row in log.of("duel")}
    cells = [name, settings, gain(duels["as it is"]), f"{100 * (share(log) or 0.0):.1f} %"]
    cells += [", ".join(against(duels[f"grid {i}"]) for i in (1, 2, 3) if f"grid {i}" in duels)]
    known = [kind for kind in samplers.KINDS if kind in duels]
    cells += [", ".join(f"{kind} {against(duels[kind])}" for kind in known) or "not run"]
    cells += [f"{tuned:.0f} s of {done['seconds']:.0f} s, {100 * tuned / done['seconds']:.0f} %"]
    loads = [row["load"] for row in log.rows]
    cells += [f"{done['combinations']}; {min(loads):.1f} to {max(loads):.1f}"]
    return "| " + " | ".join(cells) + " |"


def gain(duel_row: dict[str, Any]) -> str:
    """The plan over the script as it is: the inverse of that duel."""
    low, high = duel_row["low"], duel_row["high"]
    upper = f"{1 / low:.2f}" if low else "?"
    lower = f"{1 / high:.2f}" if high else "?"
    return f"{1 / duel_row['ratio']:.2f} ({lower} to {upper})"


def against(duel_row: dict[str, Any]) -> str:
    """A rival's speed over the plan's."""
    if not duel_row["pairs"]:
        return "1 (the plan itself)"
    high = f"{duel_row['high']:.2f}" if duel_row["high"] else "?"
    return f"{duel_row['ratio']:.2f} ({duel_row['low']:.2f} to {high})"


def report(folder: Path) -> str:
    """The table of all workloads, with the geometric mean of those that are done."""
    logs = {name: Log(folder / f"oracle-{name}.jsonl") for name in NAMES}
    head = [
        "workload", "plan", "gain over the script", "share of the best", "top three over the plan",
        "samplers over the plan", "time against the grid's", "combinations; load",
    ]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += [row(name, log) for name, log in logs.items()]
    shares = [found for log in logs.values() if (found := share(log)) is not None]
    if shares:
        mean = math.exp(math.fsum(math.log(found) for found in shares) / len(shares))
        lines.append(
            f"\nGeometric mean of the share over {len(shares)} of {len(NAMES)} workloads: "
            f"{100 * mean:.1f} %, least {100 * min(shares):.1f} %."
        )
    return "\n".join(lines)


def main() -> int:
    """Measure one workload, or show what is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", nargs="?", choices=NAMES)
    parser.add_argument("--seconds", type=float, default=math.inf, help="that this call may take")
    parser.add_argument("--budget", type=float, default=120.0, help="most seconds for hasten")
    parser.add_argument("--part", type=float, default=0.1, help="of the grid's time, for hasten")
    parser.add_argument("--target", type=float, default=0.05, help="width of the grid's intervals")
    parser.add_argument("--most", type=int, default=_MOST, help="pairs of one setting in the grid")
    parser.add_argument("--final", type=int, default=_FINAL, help="pairs by siblings")
    parser.add_argument("--skip", nargs="*", default=list(SKIPPED), help="units to leave out")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.report or options.workload is None:
        print(report(options.results))
        return 0
    skip = tuple(options.skip)
    limits = Limits(options.budget, options.part, options.target, skip, options.final, options.most)
    log = Log(options.results / f"oracle-{options.workload}.jsonl")
    done = run(options.workload, (str(script(options.workload)),), log, limits, options.seconds)
    print(row(options.workload, log))
    return 0 if done else 3  # 3: call again


if __name__ == "__main__":
    sys.exit(main())
