"""Is the memory of a large batch what three small ones predict?

    python benchmarks/batch_memory.py [--size 320] [--json FILE] [MODEL ...]

For each model of `tests/scripts/batch_models.py`, memory is measured at 4, 8 and 16 samples a
batch, each in a process of its own, as `hasten batch` does it. The model that they give predicts
the peak of a large batch, and a limit is chosen into which it is predicted to fit, with the usual
tenth left free. Then the large batch is run: its own peak of tensors and of the whole process are
the measured figures. With `--json` a run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from hasten.batching import MeasureMemory, MemoryUsed
from hasten.instrument.shield.launch import ShieldMode
from hasten.records import Setting
from hasten.tuning.memory_model import MARGIN, fit, taken
from hasten.tuning.process import Child

SCRIPT = Path(__file__).parent.parent / "tests" / "scripts" / "batch_models.py"
SMALL = (4, 8, 16)
OWN, ITEMS = 8, 2048  # as the script has it
MIB = 2**20


def names() -> list[str]:
    """The models that the script knows, in its order."""
    table = SCRIPT.read_text(encoding="utf-8").partition("MODELS = {")[2].partition("\n}")[0]
    return re.findall(r'"(\w+)": \(', table)


def weigh(model: str, size: int) -> MemoryUsed:
    """Memory at one batch size, in a process that was started for it."""
    wanted = {"size": size, "from": OWN, "dataset": "TensorDataset", "items": ITEMS}
    start: Setting = {} if size == OWN else {"batch-size": {**wanted, "shuffled": True}}
    argv = (str(SCRIPT), model)
    child = Child(argv, ShieldMode.NONE, print, cwd=str(SCRIPT.parent), start_setting=start)
    try:
        child.start()
        answer = child.ask(MeasureMemory(3, 2, start), 300.0)
    finally:
        child.close()
    if not isinstance(answer, MemoryUsed) or answer.no_effect or answer.trouble:
        raise RuntimeError(f"{model} with {size} samples: {answer}")
    return answer


def row(model: str, size: int) -> dict[str, Any]:
    """What is predicted for one model, and what it takes; in bytes."""
    small = [weigh(model, size) for size in SMALL]
    predicted = fit(small)
    used = weigh(model, size)
    return {
        "model": model,
        "size": size,
        "tensors_predicted": predicted.tensors(size),
        "tensors_measured": used.peak,
        "all_predicted": predicted.total(size),
        "all_measured": taken(used),
        "limit": predicted.total(size) / (1 - MARGIN),
        "aligned": predicted.aligned,
        "small": [[one.batch_size, one.peak, taken(one)] for one in small],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    head = (
        "| model | tensors: predicted | measured | error | in all: predicted | measured | limit |"
    )
    lines = [head, "|---|---|---|---|---|---|---|"]
    for found in rows:
        error = found["tensors_predicted"] / found["tensors_measured"] - 1
        above = "" if found["all_measured"] <= found["limit"] else " **above**"
        figures = [
            f"{found['tensors_predicted'] / MIB:.1f} MiB",
            f"{found['tensors_measured'] / MIB:.1f} MiB",
            f"{error:+.2%}",
            f"{found['all_predicted'] / MIB:.0f} MiB",
            f"{found['all_measured'] / MIB:.0f} MiB",
            f"{found['limit'] / MIB:.0f} MiB{above}",
        ]
        lines.append(f"| {found['model']} | {' | '.join(figures)} |")
    return "\n".join(lines)


def main() -> int:
    """Measure what is missing, print the table; returns 1 when a promise does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="all, when none is given")
    parser.add_argument("--size", type=int, default=320, help="samples in the large batch")
    parser.add_argument("--json", type=Path, help="rows; read, and only missing ones are measured")
    options = parser.parse_args()
    known = options.json is not None and options.json.exists()
    rows = json.loads(options.json.read_text(encoding="utf-8")) if known else []
    for model in options.models or names():
        if not any((r["model"], r["size"]) == (model, options.size) for r in rows):
            print(f"{model} ...", file=sys.stderr, flush=True)
            rows.append(row(model, options.size))
            if options.json is not None:
                options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    return int(
        any(
            abs(r["tensors_predicted"] / r["tensors_measured"] - 1) > 0.1
            or r["all_measured"] > r["limit"]
            for r in rows
        )
    )


if __name__ == "__main__":
    sys.exit(main())
