"""How close the search comes to the best setting, on made-up loops with real units' names.

    python benchmarks/search_quality.py [--seeds 20] [--budgets 60 130 300] [--noise 0.03 0.1]

hasten's own search runs against children that are made up, with a clock that only they move, so
that hundreds of searches take a minute and load does not matter. Each loop below says what data
and computation take, what each unit does to them, and how workers and threads get in each other's
way; the best of all settings is known by trying all. Blocks have noise: independent, with now and
then a slow one, and a drift as of a machine that others use. Given is the share: the best setting's
time over that of what the search chose, as a geometric mean over seeds, and the least of them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from growth import BlockClock, MadeUp
from turns import Nobody

from hasten.environment import look
from hasten.optimisations import Applies, discover, excluded
from hasten.records import BlockDone, LoaderFacts, Profile, Proof, Prove, RunBlock, Setting, Value
from hasten.statistics import Family
from hasten.tuning.candidates import Scope
from hasten.tuning.comparing import Bench
from hasten.tuning.search import Search

WORKERS = tuple({"workers": n, "prefetch": 2, "persistent": True} for n in (2, 1))
VALUES: dict[str, tuple[Value, ...]] = {"loader-workers": WORKERS, "threads": (2,)}
TRAITS = (
    "numerics", "live", "lingers", "excludes", "order", "warmup", "data_path", "likely",
    "one_by_one", "compiles",
)  # fmt: skip
SLOW_BLOCK = 0.05  # chance that a block takes ...
SLOWER = 1.3  # ... so many times as long
DRIFT = 0.97  # of the last block's common part that stays


@dataclass(frozen=True)
class Loop:
    """A made-up training loop on two cores.

    Attributes:
        data, compute: seconds of an iteration without workers.
        gains: what a unit divides the computation's time by, by name.
        cached: what is left of the data's time with `cache-items`; None: it does not apply.
        batched: the same for `batched-fetch`.
        compile_seconds: for `compile`; `compiled-optimizer` takes a tenth.
        absorbs: pairs of units of which the second gains nothing beside the first.
    """

    data: float
    compute: float
    gains: dict[str, float]
    cached: float | None = None
    batched: float | None = None
    compile_seconds: float = 15.0
    absorbs: tuple[tuple[str, str], ...] = (("compile", "channels-last"),)

    @property
    def units(self) -> dict[str, tuple[Value, ...]]:
        """Values to try, by unit."""
        names = list(self.gains)
        names += ["cache-items"] * (self.cached is not None)
        names += ["batched-fetch"] * (self.batched is not None)
        names += ["loader-workers"]
        return {name: VALUES.get(name, (True,)) for name in names}

    def seconds(self, setting: Setting) -> float:
        """Of an iteration."""
        data, compute = self.data, self.compute
        idle = {second for first, second in self.absorbs if first in setting}
        for name in setting:
            compute /= 1.0 if name in idle else self.gains.get(name, 1.0)
        data *= self.cached if "cache-items" in setting and self.cached is not None else 1.0
        data *= self.batched if "batched-fetch" in setting and self.batched is not None else 1.0
        workers = setting.get("loader-workers", {}).get("workers", 0)
        if not workers:
            return data + compute
        passing = 0.0008  # a batch through a pipe
        free = 2.0 - ("threads" in setting) - 1.0  # cores
        lost = max(0.0, min(1.0, data / max(compute, 1e-9)) - free) * (0.5 if workers == 1 else 0.6)
        return max(compute * (1.0 + 0.04 * workers + lost), data / min(workers, 2)) + passing


LOOPS = {
    "jpeg": Loop(
        0.015, 0.0195,
        {"amp-bf16": 0.95, "retain-heap": 1.05, "matmul-precision": 1.0, "channels-last": 1.25,
         "fused-optimizer": 1.04, "threads": 1.15, "compile": 1.3, "compiled-optimizer": 1.03},
        cached=0.05,
    ),
    "jpeg-bound": Loop(
        0.2, 0.03,
        {"amp-bf16": 1.3, "retain-heap": 1.0, "channels-last": 1.1, "fused-optimizer": 1.02,
         "threads": 1.2, "compile": 1.1},
        cached=0.04,
    ),
    "cnn": Loop(
        0.001, 0.02,
        {"amp-bf16": 1.4, "retain-heap": 1.06, "matmul-precision": 1.0, "channels-last": 1.3,
         "fused-optimizer": 1.05, "threads": 1.2, "compile": 1.25, "compiled-optimizer": 1.04},
        batched=0.3,
    ),
    "gpt": Loop(
        0.0005, 0.08,
        {"amp-bf16": 1.7, "retain-heap": 1.02, "matmul-precision": 1.2, "fused-optimizer": 1.08,
         "threads": 1.4, "compile": 1.3, "compiled-optimizer": 1.07},
        absorbs=(("amp-bf16", "matmul-precision"), ("fused-optimizer", "compiled-optimizer")),
    ),
    "lstm": Loop(
        0.0003, 0.05,
        {"amp-bf16": 0.8, "retain-heap": 1.12, "fused-optimizer": 1.03, "threads": 1.15,
         "compile": 0.97, "compiled-optimizer": 1.02},
    ),
    "vae": Loop(
        0.002, 0.006,
        {"amp-bf16": 0.9, "retain-heap": 1.2, "fused-optimizer": 1.15, "threads": 0.9,
         "compile": 1.4, "compiled-optimizer": 1.2, "flush-denormals": 1.0},
        batched=0.1, cached=0.3,
    ),
    "small gains": Loop(
        0.006, 0.014,
        {"amp-bf16": 1.07, "retain-heap": 1.0, "matmul-precision": 1.0, "channels-last": 1.0,
         "fused-optimizer": 1.06, "threads": 1.0, "compile": 1.05, "compiled-optimizer": 1.02},
    ),
    "nothing": Loop(
        0.001, 0.04,
        {"amp-bf16": 0.9, "retain-heap": 1.0, "matmul-precision": 1.0, "channels-last": 0.97,
         "fused-optimizer": 1.0, "threads": 0.95, "compile": 1.0, "compiled-optimizer": 1.0},
    ),
}  # fmt: skip


@contextmanager
def only(loop: Loop) -> Iterator[None]:
    """In place of hasten's units those of a loop, with the real ones' traits."""
    units = discover()
    real = dict(units)
    units.clear()
    for name, values in loop.units.items():
        unit = MadeUp(name)
        for trait in TRAITS:
            setattr(unit, trait, getattr(real[name], trait))
        unit.applies = lambda *_, values=values: Applies(values)  # type: ignore[method-assign]
        units[name] = unit
    try:
        yield
    finally:
        units.clear()
        units.update(real)


@dataclass
class Children:
    """Answers a search: blocks take what the loop says, with noise."""

    loop: Loop
    noise: float
    clock: BlockClock
    random: random.Random
    compiled: set[str] = field(default_factory=set)
    common: float = 0.0

    def answer(self, command: RunBlock | Prove) -> BlockDone | Proof:
        """A block or a proof that passes."""
        if isinstance(command, Prove):
            return Proof(command.name, "rounding", True, 0.0, 0.5, "weight", "gradient error")
        seconds = self.loop.seconds(command.setting)
        if command.hold_data:
            seconds = self.loop.seconds({**command.setting, "cache-items": True})
        self.clock.spent += seconds * command.warmup
        kick = self.random.gauss(0.0, self.noise * math.sqrt(1 - DRIFT**2))
        self.common = DRIFT * self.common + kick
        own = self.random.gauss(0.0, self.noise)
        slow = SLOWER if self.random.random() < SLOW_BLOCK else 1.0
        total = seconds * command.iterations * math.exp(self.common + own) * slow
        self.clock.spent += total
        return BlockDone(
            command.setting, command.iterations, total, total, 0, {},
            compile_seconds=self._compiling(command.setting),
        )  # fmt: skip

    def _compiling(self, setting: Setting) -> float:
        """Seconds of it in this block: once for each combination of what it depends on."""
        spent = 0.0
        for name, part in (("compile", 1.0), ("compiled-optimizer", 0.1)):
            with_it = name + str(sorted(set(setting) & {"amp-bf16", "channels-last"}))
            if name in setting and with_it not in self.compiled:
                self.compiled.add(with_it)
                spent += part * self.loop.compile_seconds
        self.clock.compile_seconds += spent
        return spent


def profile_of(loop: Loop, noise: float, rng: random.Random) -> Profile:
    """What watching shows of it."""
    total = loop.seconds({})
    phases = {"data": loop.data, "forward": 0.4 * loop.compute, "backward": 0.6 * loop.compute}
    return Profile(
        torch="2.14.1",
        device="cpu",
        border="loader",
        iteration_seconds=tuple(total * math.exp(rng.gauss(0.0, noise)) for _ in range(120)),
        phases={**phases, "optimizer": 0.0, "other": 0.0},
        loader=LoaderFacts("map", "D", 8, 100, 0, None, False, True, "c", "s", None, True),
        roots=(),
        optimizers=(),
        threads=1,
        iterations_per_epoch=1000,
    )


def best(loop: Loop) -> float:
    """Seconds of the best setting of all."""
    axes = [[(name, None), *((name, v) for v in values)] for name, values in loop.units.items()]
    least = loop.seconds({})
    for chosen in itertools.product(*axes):
        setting = {name: value for name, value in chosen if value is not None}
        if not any(excluded(discover()[name], set(setting) - {name}) for name in setting):
            least = min(least, loop.seconds(setting))
    return least


def searched(loop: Loop, budget: float, noise: float, seed: int) -> tuple[float, Search]:
    """Seconds of an iteration with what one search chose."""
    clock, rng = BlockClock(budget), random.Random(seed)
    children = Children(loop, noise, clock, rng)
    profile = profile_of(loop, noise, rng)
    bench = Bench(profile, Family(noise=noise), clock, rng)  # type: ignore[arg-type]
    search = Search(bench, look(), Scope(), Nobody())
    steps: Any = search.run()
    try:
        command = next(steps)
        while True:
            command = steps.send(children.answer(command))
    except StopIteration:
        return loop.seconds(search.found.setting), search


def main() -> int:
    """A table: a row for each loop, a column for each budget and noise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budgets", type=float, nargs="*", default=[60, 130, 300])
    parser.add_argument("--noise", type=float, nargs="*", default=[0.03, 0.1])
    parser.add_argument("--loops", nargs="*", default=list(LOOPS))
    parser.add_argument("--settings", action="store_true", help="show what was chosen")
    options = parser.parse_args()
    columns = list(itertools.product(options.noise, options.budgets))
    print("| loop | best | " + " | ".join(f"{b:.0f} s, {n:g}" for n, b in columns) + " |")
    print("|---|---|" + "---|" * len(columns))
    everything: dict[tuple[float, float], list[float]] = {}
    for name in options.loops:
        loop, cells = LOOPS[name], []
        with only(loop):
            least = best(loop)
            for noise, budget in columns:
                found = [searched(loop, budget, noise, seed) for seed in range(options.seeds)]
                shares = [least / seconds for seconds, _ in found]
                everything.setdefault((noise, budget), []).extend(shares)
                cells.append(_cell(shares))
                if options.settings:
                    for (_, search), share in zip(found, shares, strict=True):
                        print(f"    {share:.2f} {search.found.setting}", file=sys.stderr)
        print(
            f"| {name} | {loop.seconds({}) / least:.2f} | " + " | ".join(cells) + " |", flush=True
        )
    print("| all | | " + " | ".join(_cell(shares) for shares in everything.values()) + " |")
    return 0


def _cell(shares: list[float]) -> str:
    mean = statistics.geometric_mean(shares)
    return f"{100 * mean:.0f} % ({100 * min(shares):.0f})"


if __name__ == "__main__":
    sys.exit(main())
