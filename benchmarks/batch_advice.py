"""Does the advised batch size reach a target accuracy no later than half and than double of it?

    python benchmarks/batch_advice.py --json FILE [--seeds 5] [--epochs 4] [--target 0.8]

Asks `hasten batch` for advice on the demo, and trains it with the advised batch size, half and
double of it, each with the learning rate that the rule gives, over some seeds. The time to the
target is the number of iterations until the validation accuracy is there (between two epochs by a
straight line) times the seconds of an iteration, which `hasten batch` measures in turns: so neither
other work on the machine nor validation counts. Of each seed's times the logarithms are compared in
pairs, with Student's 95 % interval. Goes on where it stopped. Needs the demo's data: `make data`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "image_classification.py"
OWN, RATE, ITEMS = 32, 1e-3, 1437  # as the demo has it
_ACCURACY = re.compile(r"val loss \S+ accuracy (\S+)")


def batch(options: argparse.Namespace, *more: str) -> dict[str, Any]:
    """What `hasten batch` says about the demo."""
    line = [sys.executable, "-m", "hasten", "batch", "--json", "--budget", str(options.budget)]
    line += [*more, str(SCRIPT), "--image-size", str(options.image_size), "--epochs", "100"]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def advice(options: argparse.Namespace) -> dict[str, Any]:
    """The advised batch size, and the seconds of an iteration with it, half and double of it."""
    found = batch(options)
    if not (found["noise_scale"] or {}).get("samples") and options.size is None:
        raise SystemExit(f"there is no advice to compare: {found['no_noise_scale']}")
    size = int(options.size or found["advice"]["batch_size"])
    sizes = [max(1, size // 2), size, size * 2]
    turns = batch(options, "--sizes", ",".join(map(str, sizes)))
    rows = {row["size"]: row for row in turns["sizes"] if not row["failed"]}
    return {
        "advised": found["advice"]["batch_size"],
        "size": size,
        "noise_scale": found["noise_scale"],
        "relative_times": {row["size"]: row["time_to_loss"] for row in found["sizes"]},
        "seconds": {str(n): n / rows[n]["samples_per_second"] for n in sizes},
    }


def train(options: argparse.Namespace, seed: int, size: int) -> list[float]:
    """Validation accuracy after each epoch; AdamW, so the rate goes with the square root."""
    rate = RATE * math.sqrt(size / OWN)
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, str(SCRIPT), "--seed", str(seed), "--batch-size", str(size)]
        line += ["--lr", f"{rate:.6g}", "--epochs", str(options.epochs)]
        line += ["--image-size", str(options.image_size)]
        line += ["--checkpoint", str(Path(folder) / "checkpoint.pt")]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
    return [float(number) for number in _ACCURACY.findall(done.stdout)]


def epochs_to(target: float, curve: list[float]) -> float | None:
    """Epochs until an accuracy is reached, by straight lines from a tenth; None: it isn't."""
    before = 0.1  # ten classes
    for epoch, accuracy in enumerate(curve):
        if accuracy >= target:
            return epoch + max(0.0, target - before) / max(accuracy - before, 1e-9)
        before = accuracy
    return None


def compared(known: dict[str, Any], target: float, other: int) -> tuple[list[float], int]:
    """Logarithms of how many times later another size is there; and seeds that one never was.

    A size that does not get there counts with all of its epochs, if the other one does.
    """
    size, logs, lost = known["advice"]["size"], [], 0
    for runs in known["runs"].values():
        if str(size) not in runs or str(other) not in runs:
            continue
        times = [_seconds(known, n, runs[str(n)], target) for n in (other, size)]
        reached = [epochs_to(target, runs[str(n)]) is not None for n in (other, size)]
        lost += not all(reached)
        if any(reached):
            logs.append(math.log(times[0] / times[1]))
    return logs, lost


def _seconds(known: dict[str, Any], size: int, curve: list[float], target: float) -> float:
    epochs = epochs_to(target, curve)
    iterations = (len(curve) if epochs is None else epochs) * math.ceil(ITEMS / size)
    return iterations * float(known["advice"]["seconds"][str(size)])


def report(known: dict[str, Any], target: float) -> int:
    """Print what came out; returns how many comparisons show the advice to be later."""
    from scipy.stats import t  # comes with scikit-learn, which makes the demo's images

    size, later = known["advice"]["size"], 0
    print(f"advised: {known['advice']['advised']} samples; compared: {size}; target {target:g}")
    for other in (max(1, size // 2), size * 2):
        logs, lost = compared(known, target, other)
        if len(logs) < 2:
            print(f"{other} samples: {len(logs)} seeds, too few for an interval")
            continue
        mean, spread = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
        half = float(t.ppf(0.975, len(logs) - 1)) * spread
        low, high = math.exp(mean - half), math.exp(mean + half)
        later += high < 1.0
        verdict = "later" if low > 1 else "sooner" if high < 1 else "no difference shown"
        print(
            f"{other} samples: {math.exp(mean):.2f} times the time ({low:.2f} to {high:.2f}, "
            f"{len(logs)} seeds, {lost} not there): {verdict}"
        )
    return later


def main() -> int:
    """Run what is missing and say what came out; returns 1 when the advice was shown to be late."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--target", type=float, default=0.8, help="validation accuracy")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of hasten batch")
    parser.add_argument("--size", type=int, help="compare this size in place of the advised one")
    parser.add_argument("--pieces", type=int, default=10**6, help="runs in this call, at most")
    parser.add_argument("--json", type=Path, required=True, help="read, and only the rest is run")
    options = parser.parse_args()
    known = json.loads(options.json.read_text()) if options.json.exists() else {"runs": {}}
    pieces = options.pieces
    if "advice" not in known:
        known["advice"] = advice(options)
        options.json.write_text(json.dumps(known, indent=1))
        pieces -= 1
    size = known["advice"]["size"]
    for seed in range(options.seeds):
        runs = known["runs"].setdefault(str(seed), {})
        for n in (max(1, size // 2), size, size * 2):
            if str(n) not in runs and pieces > 0:
                pieces -= 1
                runs[str(n)] = train(options, seed, n)
                options.json.write_text(json.dumps(known, indent=1))
                print(f"seed {seed}, {n} samples: {runs[str(n)]}", flush=True)
    return int(report(known, options.target) > 0)


if __name__ == "__main__":
    sys.exit(main())
