"""`hasten run --tune` against plain Python on the demo: wall time from start to end, and weights.

    python examples/make_data.py
    python benchmarks/run_tune.py --pairs 3 --epochs 16

Each pair trains the example once as plain Python and once under `hasten run --tune`, which may try
what is exact only, in random order. Both start from the same seed; every tensor of the checkpoints
at the end is compared to the bit. The ratio counts everything: start, watching, tuning, training.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "image_classification.py"


def train(prefix: list[str], options: argparse.Namespace, folder: Path) -> tuple[float, Any, str]:
    """Train once; returns wall seconds, the last checkpoint and what hasten said at the end."""
    checkpoint = folder / "checkpoint.pt"
    command = [sys.executable, *prefix, str(SCRIPT), "--epochs", str(options.epochs)]
    command += ["--checkpoint", str(checkpoint), *options.arguments]
    begun = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    seconds = time.monotonic() - begun
    if done.returncode != 0:
        sys.exit(done.stderr)
    said = [line for line in done.stderr.splitlines() if "tuned for" in line]
    return seconds, torch.load(checkpoint, weights_only=True), " ".join(said)


def differing(a: Any, b: Any, path: str = "") -> list[str]:
    """Paths of what differs between two checkpoints, to the bit."""
    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) else [path]
    if isinstance(a, dict):
        return [p for key in a for p in differing(a[key], b[key], f"{path}.{key}")]
    if isinstance(a, list | tuple):
        pairs = enumerate(zip(a, b, strict=True))
        return [p for i, (x, y) in pairs for p in differing(x, y, f"{path}.{i}")]
    return [] if a == b else [path]


def main() -> int:
    """Run the pairs and print each; exits with 1 where weights differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--budget", type=float, default=40)
    parser.add_argument("arguments", nargs="*", help="more arguments of the example, after --")
    options = parser.parse_args()
    ratios, different = [], 0
    for number in range(options.pairs):
        seconds: dict[bool, float] = {}
        saved: dict[bool, Any] = {}
        said = ""
        for tuned in random.sample([True, False], 2):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                prefix = ["-m", "hasten", "run", "--tune", "--budget", str(options.budget)]
                prefix += ["--plan", str(folder / "hasten.toml")]
                found = train(prefix if tuned else [], options, folder)
            seconds[tuned], saved[tuned] = found[0], found[1]
            said = found[2] or said
        ratios.append(seconds[False] / seconds[True])
        wrong = differing(saved[False], saved[True])
        different += bool(wrong)
        print(
            f"pair {number + 1}: plain {seconds[False]:.0f} s, tuned {seconds[True]:.0f} s, "
            f"{ratios[-1]:.2f}x; checkpoints {'differ at ' + wrong[0] if wrong else 'equal'}; "
            f"load {os.getloadavg()[0]:.1f}; {said}",
            flush=True,
        )
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"geometric mean {mean:.2f}x, least {min(ratios):.2f}x")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
