"""How true the anatomy is: planted time by phase, "other" of a clean loop, the data-free ceiling.

    python benchmarks/anatomy.py [--pairs 40] [--json PATH]

1. Planted time: tests/scripts/planted.py spends drawn amounts of processor time in each phase and
   counts them itself. A line through what it spent and what was seen has to have the slope 1.
2. A clean loop: tests/scripts/ceiling.py with its batches in memory; the share of "other".
3. The ceiling: blocks with data free (the same batch again and again) of tests/scripts/ceiling.py,
   in turns with blocks of the same script over a data set in memory, in a process of its own that
   stands still meanwhile. The ratio has to be within 5 % of 1.

Writes anatomy.md. Exit code 1 when any of this is surely not so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hasten.environment import look
from hasten.instrument.shield.launch import ShieldMode
from hasten.records import BlockDone, RunBlock, Watch
from hasten.statistics.bootstrap import change_of_mean
from hasten.tuning.process import Child

SCRIPTS = Path(__file__).parent.parent / "tests" / "scripts"
OUTPUT = Path(__file__).with_suffix(".md")
PHASES = ("data", "forward", "backward", "optimizer", "other")
WITHIN, OTHER, CEILING = 0.03, 0.02, 0.05
_BLOCK, _WARMUP = 20, 3
#: Runs a script under every observer and prints its own rows beside what was seen.
_OBSERVED = """
import json, runpy, sys
import torch
from hasten.instrument.observe.conductor import ObservingConductor, fine

def program(conductor):
    conductor.log.observing = True
    for _ in range(5):
        yield
    seen = []
    for _ in range(ITERATIONS):
        iteration = yield
        conductor.tell_ended(iteration)
        rows = getattr(sys.modules["__main__"], "rows", None)
        if not iteration.void:
            seen.append([rows[-1] if rows else {}, fine(conductor.recorder.used)])
    print(json.dumps(seen))
    conductor.stop_observing()
    sys.stdout.flush()
    sys.exit()

ObservingConductor(program).install()
sys.argv = ARGV
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Slope:
    """One phase: planted milliseconds that were found there, of each that was planted."""

    phase: str
    slope: float
    low: float
    high: float
    elsewhere: float  # the largest slope of another phase's planted time in this one


def observed(script: str, iterations: int, *arguments: str) -> list[Any]:
    """Rows of the script and seconds of processor time by phase, an iteration each."""
    code = _OBSERVED.replace("ITERATIONS", str(iterations))
    code = code.replace("ARGV", repr([script, *arguments]))
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=600
    )
    found: list[Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def slopes(rows: list[Any], seed: int = 0) -> list[Slope]:
    """Least squares by phase without the tenth that fits worst; intervals by drawing iterations."""
    planted = np.array([[row[name] for name in PHASES] + [1.0] for row, _ in rows])
    random = np.random.default_rng(seed)
    found = []
    for index, name in enumerate(PHASES):
        seen = np.array([1000 * phases[name] for _, phases in rows])
        line = _line(planted, seen)
        draws = [random.integers(0, len(rows), len(rows)) for _ in range(400)]
        drawn = [_line(planted[places], seen[places])[index] for places in draws]
        low, high = np.quantile(drawn, [0.005, 0.995])
        others = float(np.abs(np.delete(line, [index, len(PHASES)])).max())
        found.append(Slope(name, float(line[index]), float(low), float(high), others))
    return found


def _line(planted: Any, seen: Any) -> Any:
    line = np.linalg.lstsq(planted, seen, rcond=None)[0]
    off = np.abs(planted @ line - seen)
    kept = off <= np.quantile(off, 0.9)
    return np.linalg.lstsq(planted[kept], seen[kept], rcond=None)[0]


def ceiling(pairs: int) -> list[list[tuple[float, float]]]:
    """An iteration with data free, and over memory, in blocks that take turns.

    Returns:
        For both, a block each: seconds of an iteration, and of them processor time.
    """
    script = str(SCRIPTS / "ceiling.py")
    children = [
        Child((script, *more), ShieldMode.NONE, print, cwd=str(SCRIPTS))
        for more in ((), ("--memory",))
    ]
    free: list[tuple[float, float]] = []
    memory: list[tuple[float, float]] = []
    try:
        for child in children:
            child.start()
            child.ask(Watch(8, 5.0), 120.0)
        for number in range(pairs + 1):
            order = [(children[0], True, free), (children[1], False, memory)]
            for child, held, times in order if number % 2 else order[::-1]:
                done = child.ask(RunBlock({}, _BLOCK, _WARMUP, held), 120.0)
                assert isinstance(done, BlockDone), done
                if number:  # the first pair warms up
                    spent = done.seconds, done.processor_seconds
                    times.append((spent[0] / done.iterations, spent[1] / done.iterations))
    finally:
        for child in children:
            child.close()
    return [free, memory]


def ratio(free: list[float], memory: list[float]) -> tuple[str, bool]:
    """Free over memory in words, and whether it can be within the limit."""
    change = change_of_mean(memory, free)
    assert change is not None and change.low is not None and change.high is not None
    words = f"{1 + change.estimate:.3f} ({1 + change.low:.3f} to {1 + change.high:.3f})"
    return words, change.low < CEILING and change.high > -CEILING


def main() -> int:
    """Measure all three and write the page.

    Returns:
        1 when something is surely not as it has to be.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40, help="of blocks, for the ceiling")
    parser.add_argument("--iterations", type=int, default=300, help="with planted time")
    options = parser.parse_args()
    lines, good = [], True
    for one in slopes(observed(str(SCRIPTS / "planted.py"), options.iterations)):
        right = one.low < 1 + WITHIN and one.high > 1 - WITHIN and one.elsewhere < WITHIN
        good &= right
        interval = f"{one.low:.3f} to {one.high:.3f}"
        lines.append(f"| {one.phase} | {one.slope:.3f} | {interval} | {one.elsewhere:.3f} |")
        print(lines[-1], flush=True)
    clean = observed(str(SCRIPTS / "ceiling.py"), options.iterations, "--memory")
    total = sum(sum(phases.values()) for _, phases in clean)
    other = sum(phases["other"] for _, phases in clean) / total
    good &= other < OTHER
    print(f"other on a clean loop: {100 * other:.2f} %", flush=True)
    free, memory = ceiling(options.pairs)
    ratios = []
    for which in (0, 1):
        words, right = ratio([block[which] for block in free], [block[which] for block in memory])
        ratios.append(words)
        good &= right
    print(f"data free against memory: {ratios[0]}, by processor time {ratios[1]}")
    OUTPUT.write_text(_page(lines, other, ratios, len(free)), encoding="utf-8")
    return 0 if good else 1


def _page(lines: list[str], other: float, ratios: list[str], pairs: int) -> str:
    machine = look().describe()
    return f"""# How true the anatomy is

Written by `{Path(__file__).name}` on {machine.get("cpu")}, {machine.get("cores")} cores, torch
{machine.get("torch")}, load {machine.get("load") or 0:.1f} at the end.

Milliseconds of processor time that were found in a phase, for each that a script had planted
there, with a 99 % interval, and the most that was found of another phase's:

| phase | found | interval | of another phase |
|---|---|---|---|
{chr(10).join(lines)}

"Other" of a clean loop: {100 * other:.2f} % of the processor time.

An iteration with data free, against the same script over a data set in memory, in {pairs} pairs
of blocks of {_BLOCK} iterations: {ratios[0]}, by processor time
{ratios[1]}.
"""


if __name__ == "__main__":
    sys.exit(main())
