"""How far a tuned script is from what the machine allows.

    python benchmarks/limit.py gpt [--budget 60]     # tunes, or takes the plan of the oracle's log
    python benchmarks/limit.py --report

After tuning, two figures. *Over the data-free ceiling*: the planned iteration over the same with
one batch that is held, by blocks in turns; 1 says that data costs nothing. *Achieved over peak*:
the floating point operations of an iteration, counted by torch as `hasten diagnose` does, over the
planned iteration's time, and that over what a large matrix product reaches on this machine in the
plan's precision and with its number of threads. The same is given for the script as it is.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from turns import NAMES, Log, Nobody, Point, Table, script, table

from hasten.records import Setting
from hasten.tuning.comparing import Race
from hasten.tuning.diagnosing import DiagnoseRequest, Diagnosing
from hasten.tuning.session import Session, TuneRequest

RESULTS = Path(__file__).parent / "results"
PAIRS = 8
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def plan_of(name: str, results: Path, budget: float) -> Setting:
    """The oracle's plan if there is one, otherwise a new one."""
    kept = Log(results / f"oracle-{name}.jsonl").last("plan")
    if kept is not None:
        return dict(kept["setting"])
    request = TuneRequest((str(script(name)),), budget, repeat=True, shield="none")
    return Session(request, Nobody()).run().setting


@contextmanager
def threads(setting: Setting) -> Iterator[None]:
    """Children start with the plan's number of threads, so that peaks are measured with it."""
    before = {name: os.environ.get(name) for name in _THREADS}
    try:
        if "threads" in setting:
            os.environ.update(dict.fromkeys(_THREADS, str(setting["threads"])))
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def ceiling(bench: Table, setting: Setting) -> dict[str, Any]:
    """Seconds of an iteration under a setting, and over the same with data free."""
    shared = bench.bench()
    hold = Race(shared, setting, setting, lambda ratio, pairs: None, hold=True)
    point = Point(setting, noise=bench.noise)
    while len(point.pairs) < PAIRS and not hold.result.problem:
        pair = bench.pair(hold)
        if pair is not None:
            point.pairs.append(pair)
    if not point.pairs:
        return {"problem": hold.result.problem}
    interval, middle = point.interval(), sorted(ours for ours, _ in point.pairs)
    return {
        "iteration": middle[len(middle) // 2],
        "ratio": interval.ratio,
        "low": interval.low,
        "high": interval.high if math.isfinite(interval.high) else None,
    }


def arithmetic(argv: tuple[str, ...], setting: Setting) -> dict[str, Any]:
    """Operations of an iteration and measured peaks, by a diagnosis with the plan's threads."""
    with threads(setting):
        request = DiagnoseRequest(argv, budget=30.0, shield="none")
        examined = Diagnosing(request, lambda text: None).run().examined
    return {"flops": examined.flops, "peaks": examined.peaks}


def measure(name: str, log: Log, setting: Setting) -> None:
    """Both figures for the script as it is, and for the plan."""
    argv = (str(script(name)),)
    with table(argv) as bench:
        has_loader = bench.profile is not None and bench.profile.loader is not None
        sides = {"script": {}, "plan": setting} if setting else {"script": {}}
        found = {side: ceiling(bench, its) for side, its in sides.items()}
    for side, its in sides.items():
        log.add(
            "limit", side=side, setting=its, loader=has_loader, **found[side],
            **arithmetic(argv, its),
        )  # fmt: skip


def row(name: str, log: Log) -> str:
    """One line of the table."""
    newest = {found["side"]: found for found in log.of("limit")}
    if "script" not in newest:
        return f"| {name} | not run | | | | |"
    if "plan" not in newest:
        cells = [name, "no plan", *_cells(newest["script"]), "", ""]
    else:
        units = ", ".join(f"`{unit}`" for unit in newest["plan"]["setting"])
        cells = [name, units, *_cells(newest["script"]), *_cells(newest["plan"])]
    cells.append(f"{max(found['load'] for found in newest.values()):.1f}")
    return "| " + " | ".join(cells) + " |"


def _cells(found: dict[str, Any]) -> list[str]:
    if "iteration" not in found:
        return [f"failed: {found['problem']}", ""]
    high = f"{found['high']:.2f}" if found["high"] else "?"
    over = f"{found['ratio']:.2f} ({found['low']:.2f} to {high})"
    dtype = "bfloat16" if "amp-bf16" in found["setting"] else "float32"
    peak = found["peaks"].get(dtype)
    if not peak or not found["flops"]:
        return [over, "not countable"]
    speed = found["flops"] / found["iteration"]
    return [over, f"{speed / 1e9:.1f} of {peak / 1e9:.0f} GFLOP/s, {100 * speed / peak:.0f} %"]


def report(folder: Path) -> str:
    """The table of all workloads."""
    head = [
        "workload", "plan", "script over data-free", "script, of peak", "plan over data-free",
        "plan, of peak", "load",
    ]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += [row(name, Log(folder / f"limit-{name}.jsonl")) for name in NAMES]
    return "\n".join(lines)


def main() -> int:
    """Measure one workload, or show what is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", nargs="?", choices=NAMES)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds, where it must tune")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.report or options.workload is None:
        print(report(options.results))
        return 0
    log = Log(options.results / f"limit-{options.workload}.jsonl")
    measure(options.workload, log, plan_of(options.workload, options.results, options.budget))
    print(row(options.workload, log))
    return 0


if __name__ == "__main__":
    sys.exit(main())
