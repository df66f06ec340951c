"""How the proof's bounds hold: honest settings that must pass, planted faults that must not.

    python benchmarks/proof_bounds.py --trials 20 --lines FILE        # all; long
    python benchmarks/proof_bounds.py --kinds unet --cases bf16,scaled_gradient --lines FILE
    python benchmarks/proof_bounds.py --lines FILE --table            # only print what FILE holds

Every case is tried on every kind of model of tests/unit/test_proof_zoo.py with so many seeds, and
appended to FILE as a line of JSON, so that it can be made in pieces: what FILE has is passed over.
An honest setting counts when it passes; a fault when it is refused with its cause in the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "unit"))

import torch
from test_proof_broken import BROKEN, CAUSES, PRECISIONS, applies, prove
from test_proof_honest import EAGER_STREAM, SETTINGS
from test_proof_honest import prove as prove_honest
from test_proof_zoo import KINDS, release

from hasten.records import Proof

HONEST = {
    **SETTINGS,
    "compile": ({"compile": EAGER_STREAM}, "model"),
}
Trial = Callable[[str, int], Proof]


def main() -> int:
    """Make what is missing, then print the table; returns 1 when a case failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--cases", default=",".join([*SETTINGS, *BROKEN]))
    parser.add_argument("--lines", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        for kind in options.kinds.split(","):
            for case in options.cases.split(","):
                make(kind, case, options.trials, options.lines)
    rows = read(options.lines)
    print(table(rows))
    return int(any(row["good"] < row["trials"] for row in rows))


def make(kind: str, case: str, trials: int, lines: Path) -> None:
    """Every trial of a case on a kind, unless the file has it."""
    done = {(row["kind"], row["name"]) for row in read(lines)}
    for name, wanted, trial in _trials(kind, case):
        if (kind, name) in done:
            continue
        row = _row(kind, name, wanted, trials, trial)
        with lines.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)


def _trials(kind: str, case: str) -> Iterator[tuple[str, str | None, Trial]]:
    """Name, expected cause (None: it has to pass), and the trial itself."""
    if case in HONEST and (kind, case) != ("sparse-bag", "fused"):
        yield case, None, lambda k, seed: prove_honest(k, seed, *HONEST[case], "rounding")
    elif case in BROKEN and applies(case, kind):
        for precision, setting in PRECISIONS.items():

            def trial(k: str, seed: int, setting: dict[str, Any] = setting) -> Proof:
                torch.manual_seed(seed)
                return prove(KINDS[k](), case, setting)

            yield f"{case} {precision}", CAUSES[case], trial


def _row(kind: str, name: str, wanted: str | None, trials: int, trial: Trial) -> dict[str, Any]:
    good, strain, seconds, wrong = 0, 0.0, 0.0, ""
    for seed in range(trials):
        begun = time.monotonic()
        proof = trial(kind, seed)
        seconds = max(seconds, time.monotonic() - begun)
        release()
        torch._dynamo.reset()
        right = proof.passed if wanted is None else _refused(proof, wanted)
        good += right
        strain = max(strain, proof.figure / max(proof.bound, 1e-12)) if proof.passed else strain
        wrong = wrong if right else f"seed {seed}: {proof.reason}"
    return {
        "kind": kind,
        "name": name,
        "honest": wanted is None,
        "trials": trials,
        "good": good,
        "strain": round(strain, 3),
        "seconds": round(seconds, 2),
        "wrong": wrong,
    }


def _refused(proof: Proof, cause: str) -> bool:
    return not proof.passed and re.search(cause, proof.reason) is not None


def read(lines: Path) -> list[dict[str, Any]]:
    """What a file holds."""
    return [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line a case, with the kinds on which it fell short."""
    cases: dict[tuple[bool, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        cases[not row["honest"], row["name"]].append(row)
    text = [
        "| case | kinds | as it should be | closest to its bound | longest proof | fell short |"
    ]
    text += ["|---|---|---|---|---|---|"]
    for (fault, name), found in sorted(cases.items()):
        good, trials = (sum(row[k] for row in found) for k in ("good", "trials"))
        short = [f"{r['kind']} {r['good']}/{r['trials']}" for r in found if r["good"] < r["trials"]]
        closest = max(found, key=lambda row: row["strain"])
        strain = "" if fault else f"{closest['strain']:.2f} ({closest['kind']})"
        longest = max(row["seconds"] for row in found)
        text.append(
            f"| {name} | {len(found)} | {good} of {trials} | {strain} | {longest:.1f} s "
            f"| {', '.join(short)} |"
        )
    return "\n".join(text)


if __name__ == "__main__":
    sys.exit(main())
