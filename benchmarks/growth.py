"""What grows with what: tuning time with candidates and iteration time, cost with modules, memory.

    python benchmarks/growth.py --tuning             # made-up children and clock; a minute
    python benchmarks/growth.py --modules            # benchmarks/overhead.py, 10 to 2000 modules
    python benchmarks/growth.py --memory             # benchmarks/overhead.py --memory

`--tuning` runs hasten's own search against children that are made up: blocks take the time that a
planted gain says, with noise, and a clock that only they move. So the figures say what the search
asks for, not what this machine does. One candidate of all has the planted gain, at a random place;
the others do nothing. Given is the measuring time until the search is satisfied, within half an
hour and within 180 s, and in how many of the searches its plan was the planted unit alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from turns import Nobody

from hasten.environment import look
from hasten.optimisations import Applies, Numerics, Optimisation, Seams, discover
from hasten.records import BlockDone, Profile, Proof, Prove, RunBlock, Value
from hasten.statistics import Family
from hasten.tuning.candidates import Scope
from hasten.tuning.comparing import Bench
from hasten.tuning.search import Search

CANDIDATES = (2, 4, 8, 16, 32, 64)
ITERATIONS = (0.002, 0.02, 0.2, 2.0)  # seconds
GAIN = 1.3
NOISE = 0.03  # of a block's time, standard deviation of the logarithm
BUDGETS = {"usual": 180.0, "long": 1800.0}
OVERHEAD = Path(__file__).parent / "overhead.py"


class MadeUp(Optimisation):
    """A unit that exists for this benchmark only."""

    numerics = Numerics.ROUNDING

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]

    def applies(self, profile: Any, environment: Any) -> Applies:
        return Applies((True,))

    def enable(self, seams: Seams, value: Value) -> None:
        """Never called: there are no seams."""

    def disable(self, seams: Seams) -> None:
        """Never called."""

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        return None

    def check(self, value: Value) -> None:
        """Any value will do."""


@contextmanager
def made_up(count: int) -> Iterator[list[str]]:
    """So many made-up units among those that hasten knows, by name."""
    units = discover()
    names = [f"made-up-{place}" for place in range(count)]
    try:
        units.update({name: MadeUp(name) for name in names})
        yield names
    finally:
        for name in names:
            units.pop(name, None)


class BlockClock:
    """Time that passes with the made-up blocks only."""

    def __init__(self, budget: float) -> None:
        self.budget, self.spent, self.compile_seconds = budget, 0.0, 0.0

    def exclude(self, seconds: float, compiling: bool = False) -> None:
        """Nothing is apart from measuring here."""

    @property
    def left(self) -> float:
        return max(0.0, self.budget - self.spent)


@dataclass
class Children:
    """Answers a search: blocks take what the planted gains say, with noise."""

    gains: dict[str, float]
    iteration: float
    clock: BlockClock
    random: random.Random

    def answer(self, command: RunBlock | Prove) -> BlockDone | Proof:
        """A block or a proof that passes."""
        if isinstance(command, Prove):
            return Proof(command.name, "rounding", True, 0.0, 0.5, "weight", "gradient error")
        seconds = self.iteration
        for name in command.setting:
            seconds /= self.gains.get(name, 1.0)
        self.clock.spent += seconds * command.warmup
        total = seconds * command.iterations * self.random.lognormvariate(0.0, NOISE)
        self.clock.spent += total
        return BlockDone(command.setting, command.iterations, total, total, 0, {})


def profile_of(iteration: float) -> Profile:
    """A loop without a loader, of so many seconds an iteration."""
    phases = {"data": 0.0, "forward": 0.3, "backward": 0.5, "optimizer": 0.15, "other": 0.05}
    return Profile(
        torch="2.14.1",
        device="cpu",
        border="step",
        iteration_seconds=(iteration,) * 100,
        phases={name: part * iteration for name, part in phases.items()},
        loader=None,
        roots=(),
        optimizers=(),
        threads=1,
    )


def searched(count: int, iteration: float, budget: float, seed: int) -> tuple[float, bool]:
    """Measuring seconds of one search, and whether its plan is what was planted."""
    clock, rng = BlockClock(budget), random.Random(seed)
    with made_up(count) as names:
        planted = rng.choice(names)
        children = Children({planted: GAIN}, iteration, clock, rng)
        bench = Bench(profile_of(iteration), Family(noise=NOISE), clock, rng)  # type: ignore[arg-type]
        search = Search(bench, look(), Scope(only=tuple(names)), Nobody())
        steps = search.run()
        try:
            command = next(steps)
            while True:
                command = steps.send(children.answer(command))
        except StopIteration:
            return clock.spent, set(search.found.setting) == {planted}


def tuning(
    candidates: Iterable[int], iterations: Iterable[float], searches: int
) -> Iterator[dict[str, Any]]:
    """One row for each number of candidates and iteration time, with both budgets in it."""
    for iteration in iterations:
        for count in candidates:
            row: dict[str, Any] = {"candidates": count, "iteration": iteration}
            for name, budget in BUDGETS.items():
                done = [searched(count, iteration, budget, seed) for seed in range(searches)]
                row[name] = {
                    "seconds": statistics.median(seconds for seconds, _ in done),
                    "most": max(seconds for seconds, _ in done),
                    "right": sum(right for _, right in done),
                    "searches": searches,
                }
            yield row


def table(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: what was asked for and what was found."""
    budgets = [f"at most {budget:.0f} s: median (most) | plan right" for budget in BUDGETS.values()]
    yield "| iteration | candidates | " + " | ".join(budgets) + " |"
    yield "|---|---|" + "---|---|" * len(BUDGETS)
    for row in rows:
        cells = [f"{1000 * row['iteration']:g} ms", str(row["candidates"])]
        for found in (row[name] for name in BUDGETS):
            cells.append(f"{found['seconds']:.0f} s ({found['most']:.0f} s)")
            cells.append(f"{found['right']} of {found['searches']}")
        yield "| " + " | ".join(cells) + " |"


def overhead(*arguments: str) -> int:
    """What `benchmarks/overhead.py` says."""
    return subprocess.run([sys.executable, str(OVERHEAD), *arguments], check=False).returncode


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--modules", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--candidates", type=int, nargs="*", default=list(CANDIDATES))
    parser.add_argument("--iterations", type=float, nargs="*", default=list(ITERATIONS))
    parser.add_argument("--searches", type=int, default=5, help="for each row of --tuning")
    options = parser.parse_args()
    status, everything = 0, not (options.tuning or options.modules or options.memory)
    if options.tuning or everything:
        for line in table(tuning(options.candidates, options.iterations, options.searches)):
            print(line, flush=True)
    if options.modules or everything:
        status |= overhead("--only", "modules")
    if options.memory or everything:
        status |= overhead("--memory")
    return status


if __name__ == "__main__":
    sys.exit(main())
