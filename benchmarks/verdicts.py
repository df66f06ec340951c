"""How often verdicts are wrong, and what they cost, on recorded iteration times.

    python benchmarks/verdicts.py                          # some three minutes on one core
    python benchmarks/verdicts.py --families 300 --only cnn-quiet-3 mlp-busy2-1
    python benchmarks/verdicts.py --lengths                # power against block length

A/A traces from `tests/unit/traces` stand for the loop. A comparison starts at a random place of a
recording and lays its blocks on consecutive iterations as the tuner does: n iterations, some
discarded after the switch, the next n; which of two neighbouring blocks is the reference's is
drawn. With a true effect, candidate times are divided by it. The noise that a family is told comes
from the 200 iterations before its first block, or, with `--stale`, from the recording's quietest
stretch, as if the machine got busy right after the watching.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hasten.statistics import block_length
from hasten.statistics.comparison import share
from hasten.statistics.wealth import Wealth

Array = npt.NDArray[np.float64]
TRACES = Path(__file__).parent.parent / "tests" / "unit" / "traces"
MEMBERS = 12
ALPHA = 0.01
WATCHED = 200


@dataclass(frozen=True)
class Tape:
    """One recording, read as a ring.

    Attributes:
        name: file name without its ending.
        iteration_ms: consecutive iteration times in ms.
        in_flight: batches under way (0 without loader workers).
    """

    name: str
    iteration_ms: Array
    in_flight: int

    @property
    def warm_up(self) -> int:
        """Iterations discarded after each switch."""
        return max(1, self.in_flight)

    def block_length(self) -> int:
        """What hasten recommends from the first watched iterations."""
        watched = self.iteration_ms[:WATCHED]
        return block_length(watched, self.in_flight, 2 if self.in_flight else 1)

    def blocks(self, starts: Array, pairs: int, n: int) -> Array:
        """Total times in ms of neighbouring blocks, shape (comparisons, pairs, 2)."""
        totals = np.concatenate([[0.0], np.cumsum(np.tile(self.iteration_ms, 2))])
        first = np.arange(2 * pairs) * (n + self.warm_up)
        first = (starts[:, None].astype(int) + first) % len(self.iteration_ms)
        times: Array = (totals[first + n] - totals[first]).reshape(len(starts), pairs, 2)
        return times

    def noise(self, starts: Array, n: int) -> Array:
        """`block_noise` of the watched iterations before each start, for many at once."""
        watched = max(WATCHED, 3 * n + self.warm_up)
        totals = np.concatenate([[0.0], np.cumsum(np.tile(self.iteration_ms, 2))])
        logs = np.log(totals[n:] - totals[:-n])
        first = starts[:, None].astype(int) - watched
        steps = []
        for gap in (n + self.warm_up, n + self.warm_up + 1):
            places = (first + np.arange(watched - gap - n + 1)) % len(self.iteration_ms)
            steps.append(np.abs(logs[gap:] - logs[:-gap])[places])
        noise: Array = np.quantile(np.concatenate(steps, axis=1), 0.8, axis=1)
        return noise


def tapes(only: Sequence[str] = ()) -> list[Tape]:
    """The recordings, by name."""
    found = []
    for path in sorted(TRACES.glob("*.npz")):
        if not only or path.stem in only:
            times = np.load(path)["iteration_ms"].astype(np.float64)
            found.append(Tape(path.stem, times, 4 if path.stem.startswith("loader") else 0))
    return found


def log_ratios(blocks: Array, effect: float, random: np.random.Generator) -> Array:
    """Log of reference over candidate time; the coin decides which block is whose."""
    coins = np.where(random.random(blocks.shape[:2]) < 0.5, 1.0, -1.0)
    ratios: Array = coins * np.log(blocks[..., 0] / blocks[..., 1]) + np.log(effect)
    return ratios


def first_decision(x: Array, noise: Array, enough: Array) -> Array:
    """Pairs at which a ratio of 1 is first ruled out, infinite where it never is."""
    decided = np.full(len(x), np.inf)
    for first in range(0, len(x), 120):  # portions that fit into the processor's cache
        rows = slice(first, first + 120)
        wealth = Wealth(np.zeros(1), noise[rows], len(x[rows]))
        for pair in range(x.shape[1]):
            wealth.bet(x[rows, pair])
            found = wealth.highest[:, 0] >= enough[rows]
            decided[rows][found & np.isinf(decided[rows])] = pair + 1
    return decided


def thresholds(families: int) -> Array:
    """Log wealth that each member of each family needs, shape (families * MEMBERS,)."""
    each = [np.log(1.0 / (ALPHA * share(member))) for member in range(1, MEMBERS + 1)]
    return np.tile(each, families)


def false_alarms(tape: Tape, families: int, n: int, pairs: int, seed: int, stale: bool) -> float:
    """Share of families of twelve equal candidates with any verdict of faster or slower."""
    random = np.random.default_rng(seed)
    starts = random.integers(0, len(tape.iteration_ms), families * MEMBERS).astype(np.float64)
    noise = np.concatenate([tape.noise(some, n) for some in np.array_split(starts, families)])
    if stale:
        everywhere = tape.noise(np.arange(0.0, len(tape.iteration_ms), 50.0), n)
        noise = np.full(len(starts), everywhere.min())
    x = log_ratios(tape.blocks(starts, pairs, n), 1.0, random)
    decided = first_decision(x, noise, thresholds(families))
    return float(np.isfinite(decided).reshape(families, MEMBERS).any(axis=1).mean())


def power(
    tape: Tape, effect: float, n: int, cases: int, pairs: int, seed: int
) -> tuple[Array, float]:
    """Pairs to a verdict for the twelfth member, and seconds a pair takes with its warm-up."""
    random = np.random.default_rng(seed)
    starts = random.integers(0, len(tape.iteration_ms), cases).astype(np.float64)
    x = log_ratios(tape.blocks(starts, pairs, n), effect, random)
    enough = np.full(cases, np.log(1.0 / (ALPHA * share(MEMBERS))))
    decided = first_decision(x, tape.noise(starts, n), enough)
    seconds = 2 * (n + tape.warm_up) * float(tape.iteration_ms.mean()) / 1e3
    return decided, seconds


def describe(tape: Tape, effect: float, n: int, cases: int, seed: int) -> str:
    """Power at 750 iterations and at 180 s, and the median and 99 % cost."""
    pairs = 200
    decided, seconds = power(tape, effect, n, cases, pairs, seed)
    in_750 = np.mean(decided * 2 * (n + tape.warm_up) <= 750)
    in_180_s = np.mean(decided * seconds <= 180.0)
    median, most = np.quantile(decided, [0.5, 0.99], method="higher")
    return (
        f"{tape.name:17} {n:4d} {effect:5.2f}  {in_750:8.3f} {in_180_s:8.3f} "
        f"{median:7.0f} {most:7.0f} {median * seconds:8.1f} {most * seconds:8.1f}"
    )


POWER_HEAD = (
    f"{'trace':17} {'n':>4} {'ratio':>5}  {'in 750':>8} {'in 180s':>8} "
    f"{'pairs':>7} {'99 %':>7} {'seconds':>8} {'99 %':>8}"
)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--families", type=int, default=600, help="for each recording")
    parser.add_argument("--cases", type=int, default=1000, help="for each effect")
    parser.add_argument("--only", nargs="*", default=[], help="recordings, such as cnn-quiet-1")
    parser.add_argument("--lengths", action="store_true", help="power against block length")
    parser.add_argument("--stale", action="store_true", help="noise as before the machine got busy")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chosen = tapes(arguments.only)
    print(POWER_HEAD)
    for tape in chosen:
        usual = tape.block_length()
        lengths = [max(2, usual * k // 4) for k in (2, 4, 8, 16)] if arguments.lengths else [usual]
        for n in lengths:
            for effect in (1.05,) if arguments.lengths else (1.05, 1.2, 1.5):
                print(describe(tape, effect, n, arguments.cases, arguments.seed), flush=True)
    if arguments.lengths:
        return
    print(f"\nfalse alarms, families of {MEMBERS}, looking after each of 40 pairs")
    total = 0.0
    for tape in chosen:
        n = tape.block_length()
        rate = false_alarms(tape, arguments.families, n, 40, arguments.seed, arguments.stale)
        total += rate
        print(f"{tape.name:17} {n:4d} {rate:8.4f}  of {arguments.families}", flush=True)
    print(f"{'all':22} {total / len(chosen):8.4f}  of {arguments.families * len(chosen)}")


if __name__ == "__main__":
    main()
