"""What people use today, on the same scripts in the same run as hasten's plan.

    python benchmarks/peers.py gpt [--seconds 300] [--steps 200 --seeds 3] [--budget 60]
    python benchmarks/peers.py --report

Rivals of `benchmarks/workloads/NAME.py`: `NAME_by_hand.py` has everything on that the tuning guide
advises, and `NAME_autotune.py` uses pytorch-autotune (from PyPI). hasten's plan runs on the
unchanged script. For each:

- speed: all of them stand still at an iteration border while one has its block, in random order
  round after round; the ratio to the script as it is, paired by round, with its interval;
- lines to rewrite: added and removed lines of a diff to the script, its docstring aside;
- time to result: seconds of whole runs of `--steps` iterations, compilation and searches included
  (hasten's run, and its tuning beside it);
- loss: held-out, at the end of those runs over the same seeds. *Right* says that the mean over the
  seeds is not above the script's by more than twice the standard error of the difference.

Each result is kept in `benchmarks/results/peers-NAME.jsonl`; a call goes on where the last stopped.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from turns import ALPHA, NAMES, WORKLOADS, Log, Nobody, Point, Stopwatch, script

from hasten.environment import look
from hasten.instrument.shield.launch import ShieldMode
from hasten.plan import Plan, dump, machine_fingerprint
from hasten.records import BlockDone, Profile, RunBlock, Setting, Watch
from hasten.statistics import Family
from hasten.tuning.comparing import Bench, Clock, new_family
from hasten.tuning.process import Child, Gone
from hasten.tuning.session import Session, TuneRequest

RESULTS = Path(__file__).parent / "results"
RIVALS = ("hasten", "by hand", "autotune")
_START = 400.0  # seconds until the first iteration: searches and compilation come before
_BLOCK = 300.0  # seconds that a block may take
_WARM = 4  # iterations that come first in each block: another process had the caches
_SETTLE = 12  # iterations before the first round: compilation, pools


def file_of(name: str, rival: str) -> Path:
    """The script of a rival; hasten's is the workload itself."""
    ending = {"by hand": "_by_hand", "autotune": "_autotune"}.get(rival, "")
    return WORKLOADS / f"{name}{ending}.py"


def available(rival: str) -> bool:
    """Whether what a rival needs is installed."""
    return rival != "autotune" or find_spec("pytorch_autotune") is not None


def lines_changed(name: str, rival: str) -> int:
    """Added and removed lines, without the docstring's."""
    sides = [file_of(name, side).read_text("utf-8").splitlines()[1:] for side in ("", rival)]
    changed = difflib.unified_diff(*sides, lineterm="", n=0)
    return sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in changed)


# --- speed -------------------------------------------------------------------------------------


class Runner:
    """One script in a child that stands still between its blocks."""

    def __init__(self, path: Path, setting: Setting) -> None:
        self.setting, self.argv = setting, (str(path),)
        self.problem = ""
        self.child = Child(self.argv, ShieldMode.NONE, lambda text: None, start_setting=setting)
        self.profile: Profile | None = None

    def start(self) -> None:
        """Come to the training loop, and let what is slow only once pass."""
        try:
            self.child.start()
            answer = self.child.ask(Watch(20, 10.0), _START)
            assert isinstance(answer, Profile), answer
            self.profile = answer
            self.block(_SETTLE)
        except Gone as gone:
            self.problem = str(gone)

    def block(self, iterations: int) -> float | None:
        """Mean seconds of an iteration in one block; None: the script failed."""
        try:
            answer = self.child.ask(RunBlock(self.setting, iterations, _WARM), _BLOCK)
        except Gone as gone:
            self.problem = str(gone)
            return None
        if not isinstance(answer, BlockDone):
            self.problem = str(answer)
            return None
        return answer.seconds / answer.iterations


def race(paths: dict[str, tuple[Path, Setting]], log: Log, watch: Stopwatch, rounds: int) -> None:
    """Rounds in which each has a block; the first path is what the others are compared with."""
    runners = {name: Runner(*paths[name]) for name in paths}
    try:
        for name, runner in runners.items():
            runner.start()
            if runner.problem:
                log.add("failed", rival=name, problem=runner.problem)
        base = next(iter(runners.values()))
        if base.profile is None:
            raise SystemExit(f"the script as it is failed: {base.problem}")
        shared = Bench(base.profile, Family(), Clock(math.inf), random.Random(0))
        length, noise = shared.length({}), new_family(base.profile).noise
        while len(log.of("round")) < rounds and not watch.over:
            working = [name for name, runner in runners.items() if not runner.problem]
            random.shuffle(working)
            seconds = {name: runners[name].block(length) for name in working}
            log.add("round", seconds=seconds, noise=noise)
    finally:
        for runner in runners.values():
            runner.child.close()


def speed(log: Log, rival: str) -> dict[str, Any] | None:
    """A rival's gain over the script as it is, from all rounds."""
    rows = [r for r in log.of("round") if r["seconds"].get(rival) and r["seconds"].get("script")]
    if not rows:
        return None
    point = Point({}, noise=rows[-1]["noise"])
    point.pairs = [(row["seconds"]["script"], row["seconds"][rival]) for row in rows]
    interval = point.interval()
    high = interval.high if math.isfinite(interval.high) else None
    return {"ratio": interval.ratio, "low": interval.low, "high": high, "pairs": len(rows)}


# --- whole runs --------------------------------------------------------------------------------


def whole_run(name: str, rival: str, setting: Setting, steps: int, seed: int) -> dict[str, Any]:
    """One run from start to end: seconds, and the held-out loss that it printed."""
    arguments = [str(file_of(name, rival)), "--steps", str(steps), "--seed", str(seed)]
    with tempfile.TemporaryDirectory(prefix="hasten-peers-") as folder:
        if rival == "hasten":
            path = Path(folder) / "hasten.toml"
            plan = Plan(arguments[0], (), setting, fingerprint=machine_fingerprint("cpu", look()))
            dump(plan, path)
            arguments = ["-m", "hasten", "run", "--plan", str(path), *arguments]
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, check=False
        )
    seconds = time.monotonic() - begun
    if done.returncode:
        problem = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"problem": problem, "seconds": seconds}
    printed = json.loads(done.stdout.strip().splitlines()[-1])
    return {"loss": printed["loss"], "loop_seconds": printed["seconds"], "seconds": seconds}


def whole_runs(
    name: str, setting: Setting, log: Log, watch: Stopwatch, steps: int, seeds: int
) -> bool:
    """Every rival from every seed, seed by seed so that all meet the same machine."""
    for seed in range(seeds):
        for rival in ("script", *RIVALS):
            done = [r for r in log.of("run") if (r["rival"], r["seed"]) == (rival, seed)]
            if done or not available(rival):
                continue
            if watch.over:
                return False
            found = whole_run(name, rival, setting, steps, seed)
            log.add("run", rival=rival, seed=seed, steps=steps, **found)
    return True


def loss_said(log: Log, rival: str) -> str:
    """Mean held-out loss, and whether it is as good as the script's."""
    losses = {
        side: [row["loss"] for row in log.of("run") if row["rival"] == side and "loss" in row]
        for side in ("script", rival)
    }
    if not losses[rival]:
        problems = [row["problem"] for row in log.of("run") if row["rival"] == rival]
        return f"failed: {problems[0][:80]}" if problems else "not run"
    mean = statistics.mean(losses[rival])
    if rival == "script" or min(map(len, losses.values())) < 2:
        return f"{mean:.4g}" + ("" if rival == "script" else " (too few seeds to say)")
    error = math.sqrt(sum(statistics.variance(values) / len(values) for values in losses.values()))
    right = mean - statistics.mean(losses["script"]) <= 2 * error
    return f"{mean:.4g}, {'right' if right else 'WORSE'}"


# --- all of it ---------------------------------------------------------------------------------


def plan(name: str, log: Log, budget: float) -> dict[str, Any]:
    """hasten's plan for the unchanged script: the oracle's beside these results, or a new one."""
    if (found := log.last("plan")) is not None:
        return found
    kept = Log(log.path.with_name(f"oracle-{name}.jsonl")).last("plan")
    if kept is not None:
        told = {word: kept[word] for word in ("setting", "wall", "budget", "skip")}
        return log.add("plan", **told, source="oracle")
    begun = time.monotonic()
    request = TuneRequest((str(script(name)),), budget, repeat=True, shield="none")
    outcome = Session(request, Nobody()).run()
    return log.add("plan", setting=outcome.setting, wall=time.monotonic() - begun, budget=budget)


def run(name: str, log: Log, options: argparse.Namespace) -> bool:
    """As much as fits into the time; True: all is done."""
    watch = Stopwatch(options.seconds)
    found = plan(name, log, options.budget)
    paths = {"script": (script(name), {})}
    paths |= {
        rival: (file_of(name, rival), found["setting"] if rival == "hasten" else {})
        for rival in RIVALS
        if available(rival)
    }
    if len(log.of("round")) < options.rounds and not watch.over:
        race(paths, log, watch, options.rounds)
    if len(log.of("round")) < options.rounds:
        return False
    return whole_runs(name, found["setting"], log, watch, options.steps, options.seeds)


def rows(name: str, log: Log) -> list[str]:
    """The lines of one workload."""
    found = log.last("plan")
    if found is None:
        return [f"| {name} | not run | | | | | |"]
    loads = [row["load"] for row in log.rows]
    lines = []
    for rival in ("script", *RIVALS):
        cells = [name, rival if rival != "hasten" else f"hasten ({_units(found['setting'])})"]
        said = speed(log, rival) if rival != "script" else None
        high = "?" if said is None or said["high"] is None else f"{said['high']:.2f}"
        cells += ["1" if rival == "script" else "not measured"]
        if said is not None:
            cells[-1] = f"{said['ratio']:.2f} ({said['low']:.2f} to {high}; {said['pairs']} rounds)"
        cells += [str(0 if rival == "hasten" else lines_changed(name, rival))]
        runs = [row for row in log.of("run") if row["rival"] == rival and "loss" in row]
        time_said = f"{statistics.median(r['seconds'] for r in runs):.0f} s" if runs else "not run"
        if runs and rival == "hasten":
            time_said += f" after {found['wall']:.0f} s of tuning"
        cells += [time_said, loss_said(log, rival), f"{min(loads):.1f} to {max(loads):.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _units(setting: Setting) -> str:
    return ", ".join(f"`{name}`" for name in setting) or "no plan"


def report(folder: Path) -> str:
    """The table of all workloads."""
    head = [
        "workload", "what", f"speed ({1 - ALPHA:.0%} interval)", "lines to rewrite",
        "time to result", "held-out loss", "load",
    ]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in NAMES:
        lines += rows(name, Log(folder / f"peers-{name}.jsonl"))
    return "\n".join(lines)


def main() -> int:
    """Measure one workload, or show what is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", nargs="?", choices=NAMES)
    parser.add_argument("--seconds", type=float, default=math.inf, help="that this call may take")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for hasten's search")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=400, help="iterations of a whole run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.report or options.workload is None:
        print(report(options.results))
        return 0
    log = Log(options.results / f"peers-{options.workload}.jsonl")
    done = run(options.workload, log, options)
    print("\n".join(rows(options.workload, log)))
    return 0 if done else 3  # 3: call again


if __name__ == "__main__":
    sys.exit(main())
