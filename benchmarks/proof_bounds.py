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
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "units"))

import torch
from hasten_broken_units import RepeatsBatch, SkipsSteps
from test_proof_broken import BROKEN, CAUSES, PRECISIONS, applies, prove
from test_proof_honest import EAGER_STREAM, SETTINGS
from test_proof_honest import prove as prove_honest
from test_proof_steps import lost_group, old_strides
from test_proof_zoo import KINDS, release
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hasten.instrument.conductor import Conductor, Program
from hasten.instrument.verify.conductor import FollowingConductor
from hasten.records import Proof
from hasten.tuning import invariants
from hasten.verification import Followed

HONEST = {
    **SETTINGS,
    "compile": ({"compile": EAGER_STREAM}, "model"),
    "channels-last": ({"channels-last": True}, "both"),
    "compiled-optimizer": ({"compiled-optimizer": True}, "optimizer"),
}
#: The unit compiles models of one class as static ones: see its docstring.
STATIC = {"compile": {"dynamic": False, **EAGER_STREAM}}
#: Kinds for which a setting is no setting: they have no convolution, or torch refuses.
ELSEWHERE = {
    "channels-last": set(KINDS) - {"cnn", "resnet", "vit", "gan", "unet"},
    "fused": {"sparse-bag"},
    "compiled-optimizer": {"sparse-bag"},
}
Trial = Callable[[str, int], Proof]
#: Faults of an optimizer: the kinds are optimizers, and what has to be said.
STEPS = {
    "lost_group": (("sgd", "adamw"), "is no longer updated: the optimizer has lost it"),
    "old_strides": (("momentum", "adamw"), "its gradient and its state differ in strides"),
}
#: Faults that only counting shows, every fiftieth time; the kind is "loop".
COUNTED = {
    "skipped_steps": (SkipsSteps, "optimizer steps: 120 in 120 iterations, under the plan 118"),
    "repeated_batch": (RepeatsBatch, "has been there before; 2 are repeated"),
}
_LOOP = 120  # iterations


def main() -> int:
    """Make what is missing, then print the table; returns 1 when a case failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    every = [*KINDS, "sgd", "momentum", "adamw", "loop"]
    parser.add_argument("--kinds", default=",".join(every))
    cases = [*HONEST, *BROKEN, *STEPS, *COUNTED]
    parser.add_argument("--cases", default=",".join(cases))
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
    if case in STEPS or case in COUNTED:
        yield from _other_trials(kind, case)
    elif kind not in KINDS:
        return
    elif case in HONEST and kind not in ELSEWHERE.get(case, ()):
        setting, what = HONEST[case]
        setting = STATIC if (case, kind) == ("compile", "gan") else setting
        yield case, None, lambda k, seed: prove_honest(k, seed, setting, what, "rounding")
    elif case in BROKEN and applies(case, kind):
        for precision, setting in PRECISIONS.items():

            def trial(k: str, seed: int, setting: dict[str, Any] = setting) -> Proof:
                torch.manual_seed(seed)
                return prove(KINDS[k](), case, setting)

            yield f"{case} {precision}", CAUSES[case], trial


def _other_trials(kind: str, case: str) -> Iterator[tuple[str, str | None, Trial]]:
    """Faults of an optimizer's step, and of the loop."""
    if case in STEPS and kind in STEPS[case][0]:

        def step(k: str, seed: int) -> Proof:
            torch.manual_seed(seed)
            return lost_group(k) if case == "lost_group" else old_strides(k)[0]

        yield case, STEPS[case][1], step
    if case in COUNTED and kind == "loop":
        yield case, COUNTED[case][1], lambda _, seed: counted(case, seed)


def counted(case: str, seed: int) -> Proof:
    """Compare the counts of a training with and without a fault, as `hasten verify` does."""
    unit = COUNTED[case][0]()
    unit.every = 50
    found = invariants.broken(followed(seed, None), followed(seed, unit))
    return Proof(case, "exact", not found, float(len(found)), 0.0, "", "; ".join(found))


def followed(seed: int, fault: Any) -> Followed:
    """Count a short training in this process; a fault comes into force at its second iteration."""

    def program(conductor: Conductor) -> Program:
        yield
        if fault is not None:
            fault.enable(conductor.seams, True)
        while True:
            yield

    conductor = FollowingConductor(program)
    conductor.install()
    try:
        train(seed)
        return conductor.followed(None, ended=True)
    finally:
        conductor.uninstall()


def train(seed: int) -> None:
    """Ten epochs of twelve batches."""
    torch.manual_seed(seed)
    x, y = torch.randn(96, 8), torch.randint(3, (96,))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    for _ in range(_LOOP // len(loader)):
        for inputs, target in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), target).backward()
            optimizer.step()


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
    text = ["| case | kinds | as it should be | closest to its bound | fell short |"]
    text += ["|---|---|---|---|---|"]
    for (fault, name), found in sorted(cases.items()):
        good, trials = (sum(row[k] for row in found) for k in ("good", "trials"))
        short = [f"{r['kind']} {r['good']}/{r['trials']}" for r in found if r["good"] < r["trials"]]
        closest = max(found, key=lambda row: row["strain"])
        strain = "" if fault else f"{closest['strain']:.2f} ({closest['kind']})"
        kinds = ", ".join(row["kind"] for row in found)
        text.append(f"| {name} | {kinds} | {good} of {trials} | {strain} | {', '.join(short)} |")
    return "\n".join(text)


if __name__ == "__main__":
    sys.exit(main())
