"""What can only be seen on an accelerator, in one script of under five minutes.

    make gpu-check            # or: python benchmarks/gpu_check.py [--json FILE]

Runs a small convolutional network and a small transformer on the accelerator (on the CPU, as a
dry run, where there is none), watches the loop through hasten's own seams, and for every unit
that speaks to the device prints: what it changed (proof), whether it took effect, and how much
faster the loop is in interleaved blocks. Needs torch and numpy only, and says what it skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import textwrap
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from hasten.environment import look
from hasten.instrument.shield.launch import ShieldMode
from hasten.optimisations import find
from hasten.records import BlockDone, Failed, Profile, Proof, Prove, RunBlock, Setting, Watch
from hasten.tuning.process import Child, Gone

SETTINGS: dict[str, Setting] = {
    "amp-bf16": {"amp-bf16": True},
    "fused-optimizer fused": {"fused-optimizer": "fused"},
    "fused-optimizer foreach": {"fused-optimizer": "foreach"},
    "compile": {"compile": {}},
    "compile reduce-overhead": {"compile": {"mode": "reduce-overhead"}},
    "compile max-autotune": {"compile": {"mode": "max-autotune"}},
    "cuda-graphs": {"cuda-graphs": True},
    "amp-fp16": {"amp-fp16": True},
    "matmul-precision": {"matmul-precision": "high"},
    "channels-last": {"channels-last": True},
    "channels-last, amp-bf16": {"channels-last": True, "amp-bf16": True},
    "cudnn-benchmark": {"cudnn-benchmark": True},
    "compiled-optimizer": {"compiled-optimizer": True},
    "grads-to-none": {"grads-to-none": True},
    "pinned-memory": {"pinned-memory": True},
    "device-prefetch": {"device-prefetch": True},
    "all": {"amp-bf16": True, "fused-optimizer": "fused", "compile": {}},
}
PAIRS, BLOCK = 6, 20  # blocks of each, and iterations in one
DRY_PAIRS, DRY_BLOCK = 2, 5  # on a CPU, where no figure counts
_LIMIT = 280.0  # seconds for everything

SCRIPT = textwrap.dedent(
    """
    import sys, torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    kind, device, scale = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.manual_seed(0)
    if kind == "cnn":
        width = 16 * scale
        blocks, last = [], 3
        for _ in range(4):
            blocks += [nn.Conv2d(last, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            last = width
        model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
        x = torch.randn(32 * scale, 3, 32, 32)
    else:
        width = 32 * scale
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        head = nn.Linear(16 * width, 10)
        model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), head)
        x = torch.randn(32 * scale, 16, width)
    model.to(device)
    data = TensorDataset(x, torch.randint(0, 10, (len(x),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    while True:
        for a, b in DataLoader(data, batch_size=8 * scale, shuffle=True):
            loss = nn.functional.cross_entropy(model(a.to(device)), b.to(device))
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
    """
)


def main() -> int:
    """Run the checks; returns 1 when a unit failed or took no effect on the accelerator."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    import torch

    found = getattr(torch, "accelerator", None)
    device = str(found.current_accelerator()) if found and found.is_available() else "cpu"
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, device {device}")
    if device == "cpu":
        print("no accelerator: dry run on the CPU; nothing below is a statement about a GPU")
        torch.set_num_threads(1)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        for kind in ("cnn", "transformer"):
            argv = (str(script), kind, device, "16" if device != "cpu" else "1")
            rows += check(kind, argv, begun + _LIMIT)
        # A script that leaves the accelerator idle, which only here is there to be left.
        idle = {"accelerator": {"accelerator": device.partition(":")[0]}}
        rows += check("cnn on cpu", (str(script), "cnn", "cpu", "4"), begun + _LIMIT, idle)
    if options.json:
        options.json.write_text(json.dumps({"device": device, "rows": rows}, indent=1))
    return int(any(row["problem"] for row in rows))


def check(
    kind: str, argv: tuple[str, ...], deadline: float, settings: dict[str, Setting] = SETTINGS
) -> list[dict[str, object]]:
    """Every setting on one kind of model."""
    rows: list[dict[str, object]] = []
    child: Child | None = None
    profile: Profile | None = None
    for name, setting in settings.items():
        if time.monotonic() > deadline:
            print(f"{kind:12} {name:24} skipped: out of time")
            continue
        try:
            if child is None:
                child, profile = begin(argv)
            if reasons := not_applicable(setting, profile):
                print(f"{kind:12} {name:24} not applicable: {reasons}")
                continue
            row = one(child, setting, dry=profile.device == "cpu" and "accelerator" not in setting)
        except Gone as gone:
            row, child = {"problem": f"{gone}\n{gone.tail[-2000:]}"}, None
        row = {"model": kind, "setting": name, "problem": "", **row}
        rows.append(row)
        show(row)
    if child is not None:
        child.close()
    return rows


def not_applicable(setting: Setting, profile: Profile) -> str:
    """Why a unit of this setting can't be tried here, in its own words."""
    machine = look()
    found = [(name, find(name).applies(profile, machine)) for name in setting]
    return "; ".join(f"{name}: {answer.reason}" for name, answer in found if not answer)


def begin(argv: tuple[str, ...]) -> tuple[Child, Profile]:
    """A child at its training loop."""
    child = Child(argv, ShieldMode.NONE, print)
    child.start()
    profile = child.ask(Watch(10, 10.0), 120.0)
    assert isinstance(profile, Profile), profile
    return child, profile


def one(child: Child, setting: Setting, dry: bool) -> dict[str, object]:
    """What it takes to begin, the proof of each part, then pairs of blocks."""
    first = child.ask(RunBlock(setting, 8, 4), 600.0)  # compiles, before a proof does
    proofs = [prove(child, name, {name: value}) for name, value in setting.items()]
    pairs, length = (DRY_PAIRS, DRY_BLOCK) if dry else (PAIRS, BLOCK)
    ratios = []
    for _ in range(pairs):
        base, ours = (child.ask(RunBlock(s, length, 4), 600.0) for s in ({}, setting))
        if not (isinstance(base, BlockDone) and isinstance(ours, BlockDone)):
            return {"problem": str(base if isinstance(base, Failed) else ours)}
        ratios.append(base.seconds / ours.seconds)
    refused = [p.reason for p in proofs if not p.passed]
    return {
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "compile_seconds": first.compile_seconds if isinstance(first, BlockDone) else 0.0,
        "figures": {p.name: [p.figure, p.bound] for p in proofs},
        "problem": "; ".join([*refused, *ours.no_effect.values()]),
    }


def prove(child: Child, name: str, setting: Setting) -> Proof:
    """One proof."""
    answer = child.ask(Prove(name, setting), 600.0)
    return (
        answer
        if isinstance(answer, Proof)
        else Proof(name, "rounding", False, 0.0, 0.0, "", str(answer))
    )


def show(row: dict[str, object]) -> None:
    """One line."""
    if "ratio" in row:
        print(
            f"{row['model']:12} {row['setting']:24} {row['ratio']:5.2f}x "
            f"({row['low']:.2f} to {row['high']:.2f}), compile {row['compile_seconds']:.0f} s, "
            f"error and bound {row['figures']} {row['problem']}",
            flush=True,
        )
    else:
        print(f"{row['model']:12} {row['setting']:24} failed: {row['problem']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
