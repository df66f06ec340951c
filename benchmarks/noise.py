"""Why turns: how often a verdict is right, for runs in turns and for one run after the other.

    python benchmarks/noise.py                   # results/noise.json and noise.svg; two minutes
    python benchmarks/noise.py --cases 40        # quicker
    python benchmarks/noise.py --record          # record this machine first (see record_traces.py)

A recorded training loop (`tests/unit/traces`: the same CNN with 0, 1 and 2 busy processes on two
cores) stands for the script; a candidate's times are the recorded ones divided by its true effect.
Every way of comparing may use as many iterations as the others and begins at a random place:

- *turns*: hasten's blocks in random order inside each pair, judged after every pair by its
  sequential test at 1 %, with the noise of the iterations before;
- *runs, t test*: all of one, then all of the other; Welch's test of iteration times at 1 %;
- *runs, higher mean*: the same, and whoever is 2 % faster on average is called faster.

Curves give the share of cases called faster. At a true effect of 1 they should lie below 1 %.
What two separate processes differ by besides (memory layout, caches) is not in such a recording,
which is in favour of the runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from verdicts import ALPHA, Array, Tape, first_decision, log_ratios, tapes

HERE = Path(__file__).parent
RECORDINGS = {0: "cnn-quiet-3", 1: "cnn-busy1-1", 2: "cnn-busy2-1"}
EFFECTS = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5)
WAYS = ("turns", "runs, t test", "runs, higher mean")
ITERATIONS = 600  # of both settings together
_MARGIN = 1.02  # that a mean has to be better by


@dataclass(frozen=True)
class Called:
    """Shares of the cases in which a candidate was called faster, and slower."""

    faster: float
    slower: float


def in_turns(tape: Tape, effect: float, starts: Array, random: np.random.Generator) -> Called:
    """hasten's way on blocks that lie as the tuner lays them."""
    n = tape.block_length()
    pairs = max(1, ITERATIONS // (2 * (n + tape.warm_up)))
    x = log_ratios(tape.blocks(starts, pairs, n), effect, random)
    enough = np.full(len(starts), math.log(1.0 / ALPHA))
    decided = first_decision(x, tape.noise(starts, n), enough)
    told = np.isfinite(decided)
    # The side on which 1 was ruled out is that of the median at the time of the verdict.
    ends = np.where(told, decided, 1).astype(int)
    middle = np.array([np.median(row[:end]) for row, end in zip(x, ends, strict=True)])
    return Called(float((told & (middle > 0)).mean()), float((told & (middle < 0)).mean()))


def runs(tape: Tape, effect: float, starts: Array, random: np.random.Generator) -> Array:
    """Times of two runs one after the other, shape (cases, 2, iterations): reference first."""
    half = ITERATIONS // 2
    places = starts[:, None].astype(int) + np.arange(2 * half)
    times = tape.iteration_ms[places % len(tape.iteration_ms)].reshape(len(starts), 2, half)
    swapped = random.random(len(starts)) < 0.5  # whose run is first is up to chance
    times[swapped] = times[swapped][:, ::-1]
    times[:, 1] /= effect
    return times


def by_t_test(times: Array) -> Called:
    """Welch's test with the normal quantile, which 300 iterations a side allow."""
    means, spreads = times.mean(axis=2), times.var(axis=2, ddof=1) / times.shape[2]
    scores = (means[:, 0] - means[:, 1]) / np.sqrt(spreads.sum(axis=1))
    critical = 2.5758293035489004  # two-sided 1 %
    return Called(float((scores > critical).mean()), float((scores < -critical).mean()))


def by_mean(times: Array) -> Called:
    """Whoever is some per cent faster on average."""
    means = times.mean(axis=2)
    ratios = means[:, 0] / means[:, 1]
    return Called(float((ratios > _MARGIN).mean()), float((ratios < 1 / _MARGIN).mean()))


def curves(tape: Tape, cases: int, seed: int) -> dict[str, list[dict[str, float]]]:
    """What each way calls faster at every effect."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for effect in EFFECTS:
        random = np.random.default_rng([seed, round(1000 * effect)])
        starts = random.integers(0, len(tape.iteration_ms), cases).astype(np.float64)
        after = runs(tape, effect, starts, random)
        called = (in_turns(tape, effect, starts, random), by_t_test(after), by_mean(after))
        for way, each in zip(WAYS, called, strict=True):
            found[way].append({"effect": effect, "faster": each.faster, "slower": each.slower})
    return found


def measure(recordings: dict[int, str], cases: int, seed: int = 0) -> dict[str, Any]:
    """All curves, with what they were made from."""
    by_name = {tape.name: tape for tape in tapes(list(recordings.values()))}
    missing = sorted(set(recordings.values()) - set(by_name))
    if missing:
        raise SystemExit(f"no such recording: {', '.join(missing)}")
    return {
        "iterations": ITERATIONS,
        "cases": cases,
        "alpha": ALPHA,
        "load": round(os.getloadavg()[0], 2),
        "busy": {
            str(busy): {"recording": name, "curves": curves(by_name[name], cases, seed)}
            for busy, name in recordings.items()
        },
    }


def plot(found: dict[str, Any], path: Path) -> None:
    """One panel for each number of busy processes."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hasten"  # the same picture is the same file
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(found["busy"]), figsize=(10, 3.4), sharey=True)
    for panel, (busy, each) in zip(np.atleast_1d(panels), found["busy"].items(), strict=True):
        for way, style in zip(WAYS, ("o-", "s--", "^:"), strict=True):
            points = each["curves"][way]
            panel.plot(
                [point["effect"] for point in points],
                [100 * (point["faster"] + (point["effect"] == 1.0) * point["slower"])
                 for point in points],
                style, label=way, markersize=4,
            )  # fmt: skip
        panel.axhline(100 * found["alpha"], color="grey", linewidth=0.6)
        panel.set_title(f"{busy} busy processes on two cores", fontsize=10)
        panel.set_xlabel("true effect (at 1: any verdict is wrong)")
    np.atleast_1d(panels)[0].set_ylabel("verdicts in 100 cases")
    np.atleast_1d(panels)[-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def table(found: dict[str, Any]) -> str:
    """The curves in figures."""
    effects = [f"{effect:g}" for effect in EFFECTS[1:]]
    head = ["busy", "way", "wrong at 1", *(f"faster at {effect}" for effect in effects)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for busy, each in found["busy"].items():
        for way in WAYS:
            points = each["curves"][way]
            wrong = points[0]["faster"] + points[0]["slower"]
            cells = [f"{100 * wrong:.1f} %", *(f"{100 * p['faster']:.0f} %" for p in points[1:])]
            lines.append(f"| {busy} | {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def record() -> dict[int, str]:
    """Record this machine's loop under each load; returns the names of the recordings."""
    from record_traces import LOOPS, TRACES
    from record_traces import record as record_one

    names = {}
    for busy, load in ((0, "quiet"), (1, "busy1"), (2, "busy2")):
        names[busy] = f"cnn-{load}-9"
        times = record_one(*LOOPS["cnn"], load)
        np.savez_compressed(TRACES / f"{names[busy]}.npz", iteration_ms=times)
    return names


def main() -> int:
    """Make the curves and the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1000, help="for each effect")
    parser.add_argument("--record", action="store_true", help="record this machine first")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "noise.json")
    parser.add_argument("--svg", type=Path, default=HERE / "noise.svg")
    options = parser.parse_args()
    found = measure(record() if options.record else RECORDINGS, options.cases)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    plot(found, options.svg)
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
