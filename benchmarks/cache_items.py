"""What keeping items is worth on a script that decodes JPEG files; writes cache_items.md.

Three processes take turns, epoch by epoch, on the same files and seeds: the script as it is, the
same with kept items, and one with two workers. Each epoch of one is paired with the epoch of the
others that ran beside it in time, so that a busy machine slows them alike. Items are compared by
a digest of every batch: the same seeds must give the same bits.

    python benchmarks/cache_items.py [--pictures 400] [--epochs 6]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_suffix(".md")
SIZE = (960, 641)  # of the pictures


def write_pictures(folder: Path, count: int) -> None:
    """Shifted and enlarged copies of scikit-learn's two photographs, as JPEG files."""
    import numpy
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    for index in range(count):
        where = folder / f"class{index % 4}"
        where.mkdir(parents=True, exist_ok=True)
        shifted = Image.fromarray(numpy.roll(photographs[index % 2], index * 7, axis=1))
        shifted.resize(SIZE).save(where / f"{index}.jpg", quality=90)


# --- a child: trains epoch by epoch, when it is told to -------------------------------------


def train(folder: str, keep: bool, workers: int) -> None:
    """One epoch for each line on standard input; prints its seconds and digest."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if keep:
        _keep_items()
    steps = [transforms.Resize((128, 128)), transforms.RandomHorizontalFlip()]
    dataset = ImageFolder(folder, transforms.Compose([*steps, transforms.ToTensor()]))
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=workers)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 5, 4, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()),
        nn.Linear(256, 4),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while sys.stdin.readline():
        digest, begun, digesting = hashlib.sha256(), time.perf_counter(), 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            start = time.perf_counter()
            digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
            digesting += time.perf_counter() - start
        seconds = time.perf_counter() - begun - digesting
        print(seconds, digest.hexdigest(), flush=True)


def _keep_items() -> None:
    """What `hasten run` does with a plan that keeps items in memory."""
    from hasten.instrument.seams.loader import LoaderSeams

    class Silence:
        def __getattr__(self, name: str) -> Any:
            return lambda *args: None

    seams = LoaderSeams(Silence())  # type: ignore[arg-type]
    seams.caches.early = {"store": "memory"}
    seams.caches.matches = lambda facts: True
    seams.install()


# --- the parent: gives turns ----------------------------------------------------------------


class Child:
    """A process that trains one epoch when asked."""

    def __init__(self, folder: Path, keep: bool, workers: int) -> None:
        command = [sys.executable, __file__, "--child", str(folder), str(int(keep)), str(workers)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.epochs: list[tuple[float, str]] = []

    def epoch(self) -> None:
        """Train one."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        seconds, digest = self._process.stdout.readline().split()
        self.epochs.append((float(seconds), digest))

    def end(self) -> None:
        """Let it go."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def measure(folder: Path, epochs: int) -> dict[str, list[tuple[float, str]]]:
    """Seconds and digest of every epoch under each name."""
    children = {
        "as it is": Child(folder, False, 0),
        "kept": Child(folder, True, 0),
        "two workers": Child(folder, False, 2),
    }
    for number in range(epochs):
        order = list(children.values())
        for child in order[number % 3 :] + order[: number % 3]:
            child.epoch()
    for child in children.values():
        child.end()
    return {name: child.epochs for name, child in children.items()}


def page(found: dict[str, list[tuple[float, str]]], pictures: int) -> str:
    """The figures in Markdown."""
    plain, kept, workers = found["as it is"], found["kept"], found["two workers"]
    ratios = [p[0] / k[0] for p, k in zip(plain[1:], kept[1:], strict=True)]
    others = [p[0] / w[0] for p, w in zip(plain[1:], workers[1:], strict=True)]
    equal = sum(p[1] == k[1] for p, k in zip(plain, kept, strict=True))
    rows = [
        f"| {n} | {p[0]:.2f} | {k[0]:.2f} | {w[0]:.2f} | {p[0] / k[0]:.2f} |"
        for n, (p, k, w) in enumerate(zip(plain, kept, workers, strict=True))
    ]
    return "\n".join(
        [
            "# What keeping items is worth",
            "",
            f"`python benchmarks/cache_items.py --pictures {pictures} --epochs {len(plain)}` "
            f"on {os.cpu_count()} cores: {pictures} JPEG files of {SIZE[0]}x{SIZE[1]}, "
            "Resize(128), RandomHorizontalFlip, ToTensor, a small convolution, batches of 16, "
            "one thread. Seconds an epoch, three processes in turns.",
            "",
            "| epoch | as it is | items kept | two workers | kept is faster |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"- From the second epoch on: {statistics.median(ratios):.2f}x "
            f"({min(ratios):.2f} to {max(ratios):.2f}) as fast as the script is; two workers "
            f"give {statistics.median(others):.2f}x ({min(others):.2f} to {max(others):.2f}).",
            f"- The first epoch, which fills: {plain[0][0] / kept[0][0]:.2f}x.",
            f"- Epochs whose batches are equal to the bit, random flips included: {equal} of "
            f"{len(plain)}.",
            "",
        ]
    )


def main() -> None:
    """Measure, print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--child", nargs=3, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        train(given.child[0], given.child[1] == "1", int(given.child[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder), given.pictures)
        text = page(measure(Path(folder), given.epochs), given.pictures)
    print(text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
