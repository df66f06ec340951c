"""Who finds a planted bottleneck: `hasten diagnose`, TraceML and torch.profiler, on one script.

    python benchmarks/diagnosis_peers.py [--ms 12] [--rounds 3]

`bottlenecks/digits.py` spends `--ms` of processor time an iteration in one phase, where a user's
code would: in the data set, the model's forward, a backward, the optimizer's step, or between
steps. hasten gets that script; TraceML and torch.profiler get `digits_traceml.py` and
`digits_profiler.py`, the same with their lines written into the loop. For each: what it says is
the matter, how many of the planted milliseconds it shows in that phase (over what it shows there
without them, on average over the rounds), the line that it names, the seconds until it says so,
and the lines to write.

torch.profiler says nothing by itself: its first row by time of its own stands for that, apart from
`ProfilerStep*`, in which all Python code is. It has no row for the forward pass or for the script's
own code. Writes diagnosis_peers.md.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from hasten.environment import look

SCRIPTS = Path(__file__).parent / "bottlenecks"
OUTPUT = Path(__file__).with_suffix(".md")
PHASES = ("data", "forward", "backward", "optimizer", "other")
TOOLS = ("hasten", "TraceML", "torch.profiler")
_STEPS = 400
_ACTIVE = 50  # iterations that digits_profiler.py records
_SECONDS = 10.0  # of measuring, for hasten
_LIMIT = 300.0


@dataclass(frozen=True)
class Said:
    """What one tool said of one run.

    Attributes:
        verdict: in its words.
        line: file and line that it names; empty: none.
        phases: milliseconds an iteration, of those phases that it knows.
        seconds: until it said so.
    """

    verdict: str
    line: str
    phases: dict[str, float] = field(default_factory=dict)
    seconds: float = math.nan


def run(command: list[str], folder: str) -> tuple[str, float]:
    """What a command prints, and its seconds."""
    begun = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT, check=True
    )
    return done.stdout, time.monotonic() - begun


def hasten(slow: str, ms: float, folder: str) -> Said:
    """By `hasten diagnose --json`."""
    script = [str(SCRIPTS / "digits.py"), "--slow", slow, "--ms", str(ms)]
    tool = [sys.executable, "-m", "hasten", "diagnose", "--json", "--budget", str(_SECONDS)]
    text, seconds = run([*tool, *script], folder)
    document = json.loads(text)
    phases = {name: document["phases"][name] for name in PHASES}
    # What is said about the machine (other programs, threads) is not about the planted time.
    found = [f for f in document["findings"] if f["name"] not in ("busy-machine", "one-thread")]
    if not found:
        most = max(phases, key=lambda name: phases[name])
        return Said(f"nothing wrong found; most in {most}", "", phases, seconds)
    first = found[0]
    line = f"{Path(first['file']).name}:{first['line']}" if first["file"] else ""
    return Said(f"{first['name']}: {first['summary']}", line, phases, seconds)


def traceml(slow: str, ms: float, folder: str) -> Said:
    """By `traceml run`, from its final_summary.json."""
    script = [str(SCRIPTS / "digits_traceml.py"), "--args", "--slow", slow, "--ms", str(ms)]
    command = [str(Path(sys.executable).with_name("traceml")), "run", *script]
    _, seconds = run([*command, "--steps", str(_STEPS)], folder)
    newest = max(Path(folder).rglob("final_summary.json"), key=lambda path: path.stat().st_mtime)
    document = json.loads(newest.read_text("utf-8"))
    mean = document["step_time"]["global"]["average"]
    phases = {name: mean[f"{name}_ms"] for name in ("forward", "backward", "optimizer")}
    phases |= {"data": mean["input_wait_ms"], "other": mean["residual_ms"]}
    return Said(document["primary_diagnosis"]["summary"], "", phases, seconds)


def profiler(slow: str, ms: float, folder: str) -> Said:
    """By the rows of torch.profiler's table."""
    script = [str(SCRIPTS / "digits_profiler.py"), "--slow", slow, "--ms", str(ms)]
    text, seconds = run([sys.executable, *script, "--steps", str(_STEPS)], folder)
    rows = json.loads(text.strip().splitlines()[-1])
    total = {name: whole / 1000 / _ACTIVE for name, _, whole in rows}
    first = max((row for row in rows if row[0] != "ProfilerStep*"), key=lambda row: row[1])
    phases = {
        "data": math.fsum(ms for name, ms in total.items() if name.startswith("enumerate(")),
        "backward": math.fsum(
            ms for name, ms in total.items() if name.startswith("autograd::engine::evaluate")
        ),
        "optimizer": math.fsum(
            ms for name, ms in total.items() if name.startswith("Optimizer.step")
        ),
    }
    return Said(f"first row: {first[0]}", "", phases, seconds)


ASK = {"hasten": hasten, "TraceML": traceml, "torch.profiler": profiler}


def lines(tool: str) -> int:
    """Lines that are added or changed for a tool, the docstring aside."""
    if tool == "hasten":
        return 0
    other = "digits_traceml.py" if tool == "TraceML" else "digits_profiler.py"
    sides = [(SCRIPTS / name).read_text("utf-8").splitlines()[1:] for name in ("digits.py", other)]
    changed = difflib.unified_diff(*sides, lineterm="", n=0)
    return sum(line[:1] == "+" and line[:3] != "+++" for line in changed)


def told(tool: str, slow: str, ms: float, all_said: dict[Any, list[Said]]) -> str:
    """One row of the table."""
    with_it, without = all_said[tool, slow], all_said[tool, "nothing"]
    shown = "-"
    if slow in with_it[0].phases:
        more = fmean(s.phases[slow] for s in with_it) - fmean(s.phases[slow] for s in without)
        shown = f"{more:.2f} of {ms:.0f} ms"
    verdicts = " / ".join(sorted({said.verdict for said in with_it})).replace("|", "/")
    named = ", ".join(sorted({said.line for said in with_it if said.line})) or "-"
    seconds = fmean(said.seconds for said in with_it)
    cells = (slow, tool, verdicts, shown if slow != "nothing" else "-", named, f"{seconds:.0f}")
    return f"| {' | '.join(cells)} |"


def page(rows: list[str], ms: float, rounds: int, loads: list[float]) -> str:
    """The results as Markdown."""
    machine = look().describe()
    wrote = ", ".join(f"{tool} {lines(tool)}" for tool in TOOLS)
    return f"""# Who finds a planted bottleneck

Written by `{Path(__file__).name}` on {machine.get("cpu")}, {machine.get("cores")} cores, torch
{machine.get("torch")}, traceml-ai {version("traceml-ai")}, load {min(loads):.1f}
to {max(loads):.1f}.

{ms:.0f} ms of processor time an iteration are planted in one phase of `bottlenecks/digits.py`.
*Shown* is what a tool has in that phase over what it has there without them, mean of {rounds}
runs. Lines to write into the script: {wrote}.

| planted in | tool | what it says | shown | line named | seconds |
|---|---|---|---|---|---|
{chr(10).join(rows)}
"""


def main() -> int:
    """Ask every tool about every phase and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ms", type=float, default=12.0, help="planted an iteration")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    all_said: dict[Any, list[Said]] = {}
    loads = []
    for _ in range(options.rounds):
        for slow in ("nothing", *PHASES):
            for tool in TOOLS:
                with tempfile.TemporaryDirectory(prefix="hasten-peers-") as folder:
                    said = ASK[tool](slow, options.ms, folder)
                all_said.setdefault((tool, slow), []).append(said)
                loads.append(os.getloadavg()[0])
                print(slow, tool, said, flush=True)
    rows = [told(t, slow, options.ms, all_said) for slow in ("nothing", *PHASES) for t in TOOLS]
    OUTPUT.write_text(page(rows, options.ms, options.rounds, loads), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
