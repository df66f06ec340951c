"""What single optimisations gain or lose, on the small scripts of tests/scripts.

    python benchmarks/units.py [--only NAME] [--pairs N] [--json FILE]

For each case a script is watched by hasten's own seams, the unit says whether it applies, is
proven, and takes turns with the script as it is, block by block. Printed are the median of the
paired ratios (above 1: faster) with the smallest and largest, the proof's figure against its
bound, or the reason why the unit doesn't apply. `benchmarks/units.md` keeps what was seen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from hasten.environment import look
from hasten.instrument.shield.launch import ShieldMode
from hasten.optimisations import find
from hasten.records import BlockDone, Profile, Proof, Prove, RunBlock, Setting, Watch
from hasten.tuning.process import Child, Gone

ROOT = Path(__file__).parent.parent
JPEG = "../../benchmarks/workloads/jpeg.py"
ITERATIONS = 12  # in a block


@dataclass(frozen=True)
class Case:
    """One unit on one script; `force`: also measured where it doesn't apply here."""

    unit: str
    value: Any
    script: str
    arguments: tuple[str, ...] = ()
    force: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        return (str(ROOT / "tests" / "scripts" / self.script), *self.arguments)


CASES = (
    Case("grads-to-none", True, "unit_zeros.py"),
    Case("grads-to-none", True, "unit_branches.py"),
    Case("grads-to-none", True, "steady.py"),
    Case("channels-last", True, "unit_images.py"),
    Case("channels-last", True, "unit_viewing.py"),
    Case("channels-last", True, "steady.py"),
    Case("matmul-precision", "medium", "steady.py"),
    Case("matmul-precision", "medium", "unit_images.py"),
    Case("flush-denormals", True, "unit_denormals.py"),
    Case("flush-denormals", True, "steady.py"),
    Case("compiled-optimizer", True, "unit_rmsprop.py"),
    Case("compiled-optimizer", True, "unit_images.py"),
    Case("autocast-off", True, "unit_autocast.py"),
    Case("autocast-off", True, "unit_autocast.py", ("float16",)),
    Case("autocast-off", True, "steady.py"),
    Case("debug-off", ["anomaly"], "unit_debug.py"),
    Case("debug-off", ["profiler"], "unit_debug.py", ("profiler",)),
    Case("debug-off", ["anomaly"], "steady.py"),
    Case("amp-fp16", True, "steady.py", force=True),
    Case("amp-fp16", True, "loop_own_amp.py"),
    Case("batched-fetch", True, "unit_rows.py"),
    Case("batched-fetch", True, JPEG),
    Case("cache-items", {"store": "memory"}, JPEG),
    Case("cache-items", {"store": "memory"}, "unit_rows.py"),
    *(
        Case(name, value, "unit_images.py")
        for name, value in (
            ("accelerator", "cuda"),
            ("cudnn-benchmark", True),
            ("cuda-graphs", True),
            ("allocator", "jemalloc"),
        )
    ),
    Case("pinned-memory", True, "loop_validation_first.py"),
    Case("device-prefetch", True, "loop_validation_first.py"),
)


def measure(case: Case, pairs: int) -> dict[str, Any]:
    """One case, in a process of its own."""
    child = Child(case.argv, ShieldMode.NONE, lambda text: None, cwd=str(ROOT / "tests"))
    try:
        child.start()
        profile = child.ask(Watch(12, 20.0), 120.0)
        assert isinstance(profile, Profile), profile
        unit = find(case.unit)
        answer = unit.applies(profile, look())
        if not answer and not case.force:
            return {"reason": answer.reason}
        row = turns(child, {case.unit: case.value}, pairs)
        return row | ({"reason": f"not applicable: {answer.reason}"} if not answer else {})
    except Gone as gone:
        return {"reason": f"failed: {gone.tail.strip().splitlines()[-1][:100]}"}
    finally:
        child.close()


def turns(child: Child, setting: Setting, pairs: int) -> dict[str, Any]:
    """Proof, then blocks in turns; a first block of the candidate isn't counted."""
    (name,) = setting
    proof = child.ask(Prove(name, setting), 300.0)
    first = child.ask(RunBlock(setting, 4, 4), 300.0)
    assert isinstance(first, BlockDone), first
    ratios = []
    for place in range(pairs):
        order = ({}, setting) if place % 2 else (setting, {})
        done = {bool(s): child.ask(RunBlock(s, ITERATIONS, 3), 120.0) for s in order}
        ours, theirs = done[False], done[True]
        assert isinstance(ours, BlockDone) and isinstance(theirs, BlockDone)
        ratios.append(ours.seconds / theirs.seconds)
    assert isinstance(proof, Proof), proof
    return {
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "milliseconds": 1000 * ours.seconds / ours.iterations,
        "compile_seconds": first.compile_seconds,
        "passed": proof.passed,
        "numerics": proof.numerics,
        "proof": proof.reason,
        "no_effect": "; ".join(theirs.no_effect.values()),
    }


def line(case: Case, row: dict[str, Any]) -> str:
    """A row of the table in units.md."""
    script = " ".join((case.script, *case.arguments))
    if "ratio" not in row:
        return f"| `{case.unit}` | {script} | | {row['reason']} |"
    said = f"{'proven' if row['passed'] else 'refused'} ({row['numerics']}): {row['proof']}"
    said = "; ".join(filter(None, [said, row["no_effect"], row.get("reason")]))
    ratio = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
    return f"| `{case.unit}` | {script}, {row['milliseconds']:.1f} ms | {ratio} | {said} |"


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print("| unit | script, iteration | ratio (least to most) | |\n|---|---|---|---|")
    for case in CASES:
        if options.only and case.unit not in options.only:
            continue
        row = measure(case, options.pairs)
        rows.append({"unit": case.unit, "script": case.script, **row})
        print(line(case, row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
