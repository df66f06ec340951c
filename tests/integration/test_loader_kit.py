"""What the tests of the loader seam share: events, datasets, comparison with plain torch."""

from __future__ import annotations

import gc
import multiprocessing
import random
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

from hasten.instrument.seams.loader import LoaderSeams, OwnedLoader
from hasten.instrument.seams.loader_batches import leaves

Point = namedtuple("Point", "x y")


class Events:
    """Counts, and lets a test act at iteration borders."""

    def __init__(self, act: Callable[[Any, int], None] | None = None) -> None:
        self.act = act
        self.counts = {"fetching": 0, "fetched": 0, "started": 0, "ended": 0}

    def fetching(self, loader: Any) -> None:
        if self.act is not None:
            self.act(loader, self.counts["fetching"])
        self.counts["fetching"] += 1

    def fetched(self, loader: Any, batch: Any) -> None:
        self.counts["fetched"] += 1

    def epoch_started(self, loader: Any) -> None:
        self.counts["started"] += 1

    def epoch_ended(self, loader: Any) -> None:
        self.counts["ended"] += 1


@contextmanager
def seams(events: Events | None = None) -> Iterator[LoaderSeams]:
    """The seam installed; afterwards nothing of it may be left."""
    seam = LoaderSeams(events or Events())
    plain = DataLoader.__iter__
    seam.install()
    try:
        yield seam
    finally:
        seam.close()
        assert DataLoader.__iter__ is plain
        assert_nothing_left()


def assert_nothing_left() -> None:
    """No process, and no thread but those that were there before."""
    gc.collect()
    end = time.monotonic() + 5
    while multiprocessing.active_children() and time.monotonic() < end:
        time.sleep(0.01)
    assert multiprocessing.active_children() == []
    feeders = [t for t in threading.enumerate() if "QueueFeeder" in t.name or "pin" in t.name]
    end = time.monotonic() + 5
    while any(t.is_alive() for t in feeders) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(t.is_alive() for t in feeders)


def seed(value: int = 0) -> None:
    """All global random states."""
    torch.manual_seed(value)
    random.seed(value)
    numpy.random.seed(value)


def states(generator: torch.Generator | None = None) -> tuple[Any, ...]:
    """All random states, comparable."""
    own = None if generator is None else bytes(generator.get_state().numpy())
    return (
        bytes(torch.get_rng_state().numpy()),
        random.getstate(),
        repr(numpy.random.get_state()),
        own,
    )


def same(batch: Any) -> list[tuple[str, str]]:
    """A batch as something that compares by value."""
    return list(leaves(batch))


class Numbers(Dataset[Any]):
    """Item i is i, in one of several shapes."""

    def __init__(self, size: int, shape: str = "tensor") -> None:
        self.size, self.shape, self.epoch = size, shape, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        index = int(index)
        if self.shape == "dict":
            return {
                "x": torch.tensor([index]),
                "name": f"item {index}",
                "deep": [index, {"y": 1.5}],
            }
        if self.shape == "tuple":
            return torch.full((2,), index), numpy.float32(index), index
        if self.shape == "namedtuple":
            return Point(torch.tensor(index), numpy.arange(3) + index)
        if self.shape == "epoch":
            return torch.tensor([index, self.epoch])
        return torch.tensor(index)


class Noise(Numbers):
    """Items draw from the random states named in `shape`."""

    def __getitem__(self, index: int) -> Any:
        values = [float(index)]
        if "torch" in self.shape:
            values.append(float(torch.rand(())))
        if "random" in self.shape:
            values.append(random.random())
        if "numpy" in self.shape:
            values.append(float(numpy.random.rand()))
        return torch.tensor(values, dtype=torch.float64)


def owned(seam: LoaderSeams, loader: DataLoader[Any]) -> OwnedLoader:
    """What the seam knows of a loader that it must know."""
    found = seam.owned(loader)
    assert found is not None
    return found
