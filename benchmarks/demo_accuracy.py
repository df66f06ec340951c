"""Does the demo's plan train as well as the script does without it?

    python benchmarks/demo_accuracy.py [--plan examples/hasten.toml] [--seeds 5] [--epochs 8]

Trains `examples/image_classification.py` with each seed twice, as it is and by `hasten run`, in
turns, and compares the validation accuracy of the last epoch in pairs. The plan is not inferior
when the lower end of the one-sided 95 % interval of the mean difference lies above minus one
point (non-inferiority, margin one point). Needs the demo's data and plan: run `make demo` first.
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

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "image_classification.py"
MARGIN = 1.0  # points
_ACCURACY = re.compile(r"val loss \S+ accuracy (\S+)")


def accuracy(prefix: list[str], seed: int, epochs: int) -> float:
    """Validation accuracy in points after the last epoch."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--seed", str(seed), "--epochs", str(epochs)]
        arguments += ["--checkpoint", str(Path(folder) / "checkpoint.pt")]
        done = subprocess.run(
            [*prefix, str(SCRIPT), *arguments], capture_output=True, text=True, check=True
        )
    return 100 * float(_ACCURACY.findall(done.stdout)[-1])


def main() -> int:
    """Run every pair and say what came out; returns 1 when not shown to be non-inferior."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", type=Path, default=ROOT / "examples" / "hasten.toml")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--json", type=Path, help="pairs; read, and only missing seeds are run")
    options = parser.parse_args()
    plain = [sys.executable]
    planned = [sys.executable, "-m", "hasten", "run", "--plan", str(options.plan)]
    known = options.json is not None and options.json.exists()
    pairs = json.loads(options.json.read_text())["pairs"] if known else []
    for seed in range(len(pairs), options.seeds):
        pair = accuracy(plain, seed, options.epochs), accuracy(planned, seed, options.epochs)
        print(f"seed {seed}: as it is {pair[0]:.2f}, with the plan {pair[1]:.2f}", flush=True)
        pairs.append(pair)
    differences = [ours - base for base, ours in pairs]
    mean, low = statistics.fmean(differences), lower_end(differences)
    shown = low > -MARGIN
    print(
        f"difference {mean:+.2f} points, one-sided 95 % lower end {low:+.2f}: "
        f"{'not inferior' if shown else 'not shown'} by a margin of {MARGIN:g}"
    )
    if options.json:
        document = {"pairs": pairs, "mean": mean, "low": low, "margin": MARGIN}
        options.json.write_text(json.dumps(document, indent=1))
    return int(not shown)


def lower_end(differences: list[float]) -> float:
    """The lower end of Student's one-sided 95 % interval of the mean."""
    from scipy.stats import t  # comes with scikit-learn, which makes the demo's images

    spread = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences) - float(t.ppf(0.95, len(differences) - 1)) * spread


if __name__ == "__main__":
    sys.exit(main())
