"""`hasten diagnose` on every script of a mistake and on healthy controls; writes findings.md.

    python benchmarks/findings.py                       # some thirty minutes on two cores
    python benchmarks/findings.py --root /work/corpus   # with public scripts as controls
    python benchmarks/findings.py --keep rows.jsonl --only graph-kept vae   # by and by

A mistake has to be found once, at the line that its script marks with "# the mistake", and nothing
else that is called wrong may be found. Where it costs time, the share of the run that it is said to
cost has to be within 20 % of the truth: the script as it is and put right, without hasten, in turns
(truths.py). A control may not be accused of anything wrong or risky, nor a script that was put
right of its mistake; what else costs time in it is listed, and is a matter of the reader's.
Findings about the machine are left out. Exit code 1 when any of this fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import corpus
import corpus_scripts
import truths

SCRIPTS = Path(__file__).parent.parent / "tests" / "scripts"
OUTPUT = Path(__file__).with_suffix(".md")
LIMIT = 300  # seconds for one script
#: What the machine is like, not the script; torch is held to one thread here.
OF_THE_MACHINE = {"busy-machine", "one-thread"}
#: Mistakes that only a GPU shows: see gpu_check.py.
NEEDS_GPU = {
    "copy-bound",
    "device-ping-pong",
    "launch-bound",
    "model-on-cpu",
    "synchronises-each-iteration",
    "unpinned-copies",
}
#: Seen with a small /dev/shm only: tests/integration/test_findings_machine.py.
ELSEWHERE = {"shared-memory-too-small"}
#: Seconds of measuring for mistakes that a short look can't show.
SECONDS = {
    "worker-memory-growth": 30.0,
    "too-many-workers": 15.0,
    "threads-above-cores": 15.0,
    "no-workers": 12.0,
    "slow-transform": 12.0,
    "one-thread": 15.0,
}
#: Loops that look unusual and are sound. `loop_never.py` does not train.
LOOPS = ("by_hand", "gan", "iterable", "lbfgs", "memmap", "new_loader", "next", "own_amp")
LOOPS = (*LOOPS, "validation_first", "compiled_function", "own_compile")
PUBLIC = ("mnist", "vae", "mnist_rnn", "dcgan", "super_resolution", "lm_lstm", "nanogpt")
PUBLIC = (*PUBLIC, "llama2", "mingpt_chargpt", "tutorial_gan", "siamese", "regression")
#: Scripts that can be put right by an argument.
RIGHT = "--right"
_WITHIN = 0.2  # of the truth


@dataclass(frozen=True)
class Case:
    """One command.

    Attributes:
        name: what it is called in the table and by `--only`.
        argv: script and arguments.
        mistake: the finding that has to be made; empty for a control.
        line: where it has to be made.
        cwd: the working directory.
        environment: variables.
        cured: the finding that may not be made any more.
    """

    name: str
    argv: tuple[str, ...]
    mistake: str = ""
    line: int = 0
    cwd: Path = SCRIPTS
    environment: dict[str, str] = field(default_factory=dict)
    cured: str = ""


@dataclass(frozen=True)
class Row:
    """What came out of one case."""

    name: str
    command: str
    mistake: str
    good: bool
    found: str
    line: str
    cost_ms: float | None
    share: float | None
    seconds: float
    remark: str = ""
    truth: tuple[float, float, float] | None = None  # share of the run, and its interval
    load: float | None = None  # average of the last minute, when it had been diagnosed


def cases(root: Path | None) -> Iterator[Case]:
    """Every command, mistakes first."""
    for path in sorted(SCRIPTS.glob("finding_*.py")):
        name = path.stem.removeprefix("finding_").replace("_", "-")
        if name not in NEEDS_GPU | ELSEWHERE:
            yield Case(name, (path.name,), _mistake(name), _marked(path))
    for path in sorted(SCRIPTS.glob("finding_*.py")):
        if RIGHT in path.read_text(encoding="utf-8"):
            name = path.stem.removeprefix("finding_").replace("_", "-")
            if name not in NEEDS_GPU | ELSEWHERE:
                cured = _mistake(name)
                yield Case(f"{name} put right", (path.name, RIGHT), cured=cured)
    controls = [path.name for path in sorted(SCRIPTS.glob("healthy_*.py"))]
    for script in (*controls, *(f"loop_{name}.py" for name in LOOPS), "steady.py"):
        yield Case(script.removesuffix(".py"), (script,))
    if root is not None:
        yield from _public(root)


def _mistake(name: str) -> str:
    """A script may show a variant of a finding: the finding's name is the longest prefix."""
    from hasten.findings import discover

    return max((known for known in discover() if name.startswith(known)), key=len)


def _marked(path: Path) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return 1 + next(i for i, line in enumerate(lines) if line.endswith("# the mistake"))


def _public(root: Path) -> Iterator[Case]:
    for each in corpus_scripts.SCRIPTS:
        if each.name in PUBLIC:
            argv = tuple(each.argv(each.workers[0] if each.workers else None))
            variables = corpus.variables(each, root)
            yield Case(each.name, argv, cwd=corpus.cwd(each, root), environment=variables)


def diagnose(case: Case, budget: float) -> tuple[dict[str, Any], float]:
    """The document, or {"error": the line that hasten says; and the seconds it took."""
    seconds = SECONDS.get(case.mistake, budget)
    command = [sys.executable, "-m", "hasten", "diagnose", "--json", "--budget", str(seconds)]
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [*command, *case.argv],
            cwd=case.cwd,
            env={**os.environ, **case.environment},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {LIMIT} s"}, time.monotonic() - begun
    lines = done.stderr.strip().splitlines() or [""]
    document = json.loads(done.stdout) if done.returncode == 0 else {"error": lines[-1]}
    return document, time.monotonic() - begun


def judged(case: Case, document: dict[str, Any], seconds: float) -> Row:
    """Whether a case came out as it has to."""
    start = case.name, " ".join(case.argv), case.mistake
    if "error" in document:
        return Row(*start, False, "", "", None, None, seconds, document["error"])
    found = [
        f
        for f in document["findings"]
        if f["name"] == case.mistake or f["name"] not in OF_THE_MACHINE
    ]
    mine = [f for f in found if f["name"] == case.mistake]
    wrong = [f for f in found if f["kind"] in ("wrong", "risk") and f not in mine]
    cured = [f for f in found if f["name"] == case.cured and f["kind"] != "limit"]
    wrong += [f for f in cured if f not in wrong]
    others = [f["name"] for f in found if f not in mine and f["kind"] != "limit"]
    remark = f"also {', '.join(others)}" if others else ""
    if not case.mistake:
        first = min(found, key=lambda f: f["name"] not in others, default=None)
        cost = (first["cost_ms"], first["share"]) if first and others else (None, None)
        return Row(*start, not wrong, ", ".join(others) or "nothing", "-", *cost, seconds)
    if not mine:
        return Row(*start, False, "not found", "-", None, None, seconds, remark)
    line = "right" if mine[0]["line"] == case.line else f"{mine[0]['line']}, not {case.line}"
    good = len(mine) == 1 and line == "right" and not wrong
    cost = mine[0]["cost_ms"], mine[0]["share"]
    return Row(*start, good, "found" if len(mine) == 1 else "twice", line, *cost, seconds, remark)


def with_truth(case: Case, row: Row) -> Row:
    """The row with what the mistake really costs, where it costs time and can be put right."""
    script = case.argv[0]
    if row.share is None or not case.mistake or RIGHT not in _text(script):
        return row
    found = truths.truth(script, RIGHT, case.cwd)
    if found is None:
        return replace(row, remark=f"{row.remark} no truth: the script ended".strip())
    low, high = found.low * (1 - _WITHIN), found.high * (1 + _WITHIN)
    truth = found.share, found.low, found.high
    return replace(row, truth=truth, good=row.good and low <= row.share <= high)


def _text(script: str) -> str:
    return (SCRIPTS / script).read_text(encoding="utf-8")


def markdown(rows: list[Row]) -> str:
    """The table, and how many came out well."""
    text = ["# What `hasten diagnose` finds", "", f"Made by `{Path(__file__).name}`.{_loads(rows)}"]
    text += [
        "",
        "Costs are what was seen in that one diagnosis; shares are held against the truth.",
        "",
    ]
    for title, chosen in (
        ("Scripts with one mistake", [row for row in rows if row.mistake]),
        ("Controls", [row for row in rows if not row.mistake]),
    ):
        good = sum(row.good for row in chosen)
        text += [f"## {title}: {good} of {len(chosen)} as they have to be", ""]
        text += [
            "| command | found | line | cost | share | in truth | seconds | remark |",
            "|---|" + "---|" * 7,
        ]
        text += [_line(row) for row in chosen]
        text.append("")
    return "\n".join(text)


def _loads(rows: list[Row]) -> str:
    loads = [row.load for row in rows if row.load is not None]
    if not loads:
        return ""
    return f" The machine's load was between {min(loads):.1f} and {max(loads):.1f} meanwhile."


def _line(row: Row) -> str:
    cost = "-" if row.cost_ms is None else f"{row.cost_ms:.2f} ms"
    share = "-" if row.share is None else f"{100 * row.share:.0f} %"
    found = row.found if row.good else f"**{row.found or 'failed'}**"
    remark = row.remark.replace("|", "/")
    truth = "-"
    if row.truth is not None:
        truth = "{:.0f} % ({:.0f} to {:.0f})".format(*(100 * part for part in row.truth))
    cells = (row.command, found, row.line, cost, share, truth, f"{row.seconds:.0f}", remark)
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Diagnose every case, write the table.

    Returns:
        1 when something did not come out as it has to.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--root", type=Path, help="of a prepared corpus: see corpus.py")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds for each")
    parser.add_argument("--only", nargs="*", default=[], help="names of cases")
    parser.add_argument("--keep", type=Path, help="rows go here, and are not measured again")
    options = parser.parse_args()
    rows = _kept(options.keep)
    for case in cases(options.root):
        if case.name in rows or (options.only and case.name not in options.only):
            continue
        row = with_truth(case, judged(case, *diagnose(case, options.budget)))
        row = rows[case.name] = replace(row, load=os.getloadavg()[0])
        print(_line(row), flush=True)
        if options.keep is not None:
            with options.keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
        OUTPUT.write_text(markdown(list(rows.values())), encoding="utf-8")
    return 0 if all(row.good for row in rows.values()) else 1


def _kept(path: Path | None) -> dict[str, Row]:
    if path is None or not path.exists():
        return {}
    found = (Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    return {row.name: row for row in found}


if __name__ == "__main__":
    sys.exit(main())
