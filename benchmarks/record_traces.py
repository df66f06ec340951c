"""Records iteration times of real small training loops, for the tests of the statistics.

    python benchmarks/record_traces.py --moment 1            # all, about ten minutes
    python benchmarks/record_traces.py --moment 2 --only mlp-quiet cnn-bursty

Every file in `tests/unit/traces` is one loop under one load: consecutive iteration times of one
unchanged setting (so: A/A), in milliseconds, as float32. Loops: `cnn` (about 20 ms, in memory),
`loader` (DataLoader with two workers that come in bursts), `mlp` (1 to 2 ms). Loads: `quiet`,
`busy1` and `busy2` (that many processes that never rest) and `bursty` (two that work and rest for
random spells, as a browser or another job does). `crowded` is what others were running then: some
eight jobs on two cores, recorded as `quiet` and renamed. Where other people's jobs could not be
stopped, moment 3 of `quiet` was recorded at a priority that leaves them next to no processor
time, though some of the memory's bandwidth (as root; the first line is undone with the shell):

    echo -19 > /proc/self/autogroup
    nice -n -19 python benchmarks/record_traces.py --moment 3 --only cnn-quiet

The first 650 iterations of `cnn-quiet-1` were made before others used the machine. torch has one
thread, as the recording should show the machine's noise and not a thread pool's.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRACES = Path(__file__).parent.parent / "tests" / "unit" / "traces"
Step = Callable[[], None]


def spin(bursty: bool) -> None:
    """Uses up a core; with `bursty` in random spells of 0.05 to 3 s, never in step with a loop."""
    spell = random.Random()
    while True:
        until = time.monotonic() + (spell.uniform(0.05, 1.5) ** 2 if bursty else 60.0)
        while time.monotonic() < until:
            sum(range(1000))
        if bursty:
            time.sleep(spell.uniform(0.05, 1.5) ** 2)


@contextlib.contextmanager
def load(name: str) -> Iterator[None]:
    """Keeps other processes busy meanwhile; they end with the block, whatever happens in it."""
    count = {"quiet": 0, "busy1": 1, "busy2": 2, "bursty": 2}[name]
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=spin, args=(name == "bursty",), daemon=True) for _ in range(count)
    ]
    for other in others:
        other.start()
    try:
        time.sleep(3.0 if count else 0.5)  # they import torch first
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def training_step(model: nn.Module, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> Step:
    """One iteration as a textbook writes it: the batch, forward, backward, optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()

    def step() -> None:
        images, labels = next(batches)
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def convolutional(width: int) -> nn.Module:
    """A small image classifier for 32 x 32 colour images."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * width, 10),
    )  # fmt: skip


def in_memory(images: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of 32 from tensors in memory, without end."""
    labels = torch.randint(0, 10, (len(images),))
    while True:
        for chosen in torch.split(torch.randperm(len(images)), 32):
            if len(chosen) == 32:
                yield images[chosen], labels[chosen]


class Decoded(Dataset[tuple[torch.Tensor, int]]):
    """Items that cost processor time to make, as a decoded JPEG does."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = np.random.default_rng(index).standard_normal((3, 160, 160), dtype=np.float32)
        return torch.from_numpy(np.ascontiguousarray(noise[:, ::5, ::5])), index % 10


def cnn() -> Step:
    """About 20 ms an iteration; data in memory."""
    return training_step(convolutional(20), in_memory(torch.randn(2048, 3, 32, 32)))


def loader() -> Step:
    """Bound by data: two workers hand over two batches at a time, then make the loop wait."""
    batches = DataLoader(Decoded(), batch_size=32, num_workers=2)
    return training_step(convolutional(2), iter(batches))


def mlp() -> Step:
    """1 to 2 ms an iteration; mostly Python."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 512), nn.ReLU(), nn.Linear(512, 10))
    return training_step(model, in_memory(torch.randn(2048, 3, 16, 16)))


LOOPS: dict[str, tuple[Callable[[], Step], int]] = {
    "cnn": (cnn, 2500),
    "loader": (loader, 1600),
    "mlp": (mlp, 12000),
}


def record(make: Callable[[], Step], iterations: int, load_name: str) -> np.ndarray:
    """Times of consecutive iterations in ms, the start of the loop left out."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = make()
    for _ in range(20):
        step()
    with load(load_name):
        borders = np.empty(iterations + 1)
        for i in range(iterations + 1):
            borders[i] = time.perf_counter()
            step()
    return (np.diff(borders) * 1e3).astype(np.float32)


def main() -> None:
    """Records what was asked for, one file each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--moment", default="1", help="goes into the file names")
    parser.add_argument("--only", nargs="*", help="such as cnn-quiet; all when left out")
    arguments = parser.parse_args()
    names = [f"{loop}-{kind}" for loop in LOOPS for kind in ("quiet", "busy1", "busy2", "bursty")]
    TRACES.mkdir(parents=True, exist_ok=True)
    for name in arguments.only or names:
        loop, kind = name.split("-")
        times = record(*LOOPS[loop], kind)
        np.savez_compressed(TRACES / f"{name}-{arguments.moment}.npz", iteration_ms=times)
        print(f"{name:14} {len(times)} x median {np.median(times):.2f} mean {times.mean():.2f} ms")


if __name__ == "__main__":
    main()
