"""Does another worker count give the same batches? Tried on the script's own next batches.

The reference is fetched in a forked copy of this process, and not in the process itself: items
may open files, fill caches and draw random numbers, and nothing of that may reach the script.
"""

from __future__ import annotations

import io
import itertools
import random
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader

from hasten.instrument.seams.loader_batches import difference, leaves
from hasten.instrument.seams.loader_facts import start_method
from hasten.instrument.seams.loader_fork import LIMIT, elsewhere, line
from hasten.instrument.seams.loader_random import preserved, random_states
from hasten.instrument.seams.loader_seeded import ItemSeeds, Tagged
from hasten.instrument.seams.loader_torch import Config, quietly, shadow

_HANDLES = ("h5py", "lmdb", "sqlite3", "zipfile", "tarfile")
Leaves = list[list[tuple[str, str]]]


@dataclass(frozen=True)
class LoaderProbe:
    """Whether batches are the same with another worker count.

    Attributes:
        equal: the batches were the same to the bit, and nothing speaks against it.
        random_items: fetching draws from or resets a random state, or an item fetched twice
            differs: another worker count makes another random stream.
        reason: one line for the user; empty: nothing was found.
        worst: where the first difference was, for example `batch 1['image']`.
        seconds: that the probe took.
    """

    equal: bool
    random_items: bool
    reason: str
    worst: str
    seconds: float


@dataclass(frozen=True)
class _Reference:
    batches: Leaves
    moved: tuple[str, ...]  # random states that fetching moved
    unsteady: str  # where a batch fetched twice differs
    held: tuple[str, ...]  # open files in the dataset before anything was fetched
    opened: tuple[str, ...]  # ... and those that fetching opened


def handles(thing: Any) -> set[str]:
    """The names of attributes that hold an open file, which forked processes would share."""
    found: set[str] = set()
    waiting, seen = deque([("", thing)]), {id(thing)}
    for _ in range(5000):
        if not waiting:
            break
        path, owner = waiting.popleft()
        for name, item in _parts(owner):
            module = type(item).__module__.partition(".")[0]
            if (isinstance(item, io.IOBase) and not _in_memory(item)) or module in _HANDLES:
                found.add(path + name)
            elif id(item) not in seen and not isinstance(item, torch.Tensor):
                seen.add(id(item))
                waiting.append((f"{path}{name}.", item))
    return found


def _parts(owner: Any) -> list[tuple[str, Any]]:
    """What an object holds; of long containers the beginning."""
    if isinstance(owner, dict):
        return [(str(key), item) for key, item in itertools.islice(owner.items(), 100)]
    if isinstance(owner, (list, tuple)):
        return [(str(place), item) for place, item in enumerate(owner[:100])]
    return list(getattr(owner, "__dict__", {}).items())


def _in_memory(item: io.IOBase) -> bool:
    return isinstance(item, (io.BytesIO, io.StringIO)) or item.closed


def _fetch(loader: DataLoader[Any], config: Config, indices: list[Any], seeds: ItemSeeds) -> Leaves:
    """Fetch these index batches by a pool of their own."""
    key = seeds.sample(loader)
    feed = indices if key is None else [Tagged(index, key) for index in indices]
    copy = shadow(loader, config, feed, torch.Generator().manual_seed(0))
    seeds.dress(copy)
    # A copy for the comparison needs no page-locked memory, and mustn't hang.
    copy.__dict__.update(pin_memory=False, timeout=LIMIT if config.workers else 0)
    inner: Any = quietly(copy)
    try:
        return [list(leaves(batch)) for batch in inner]
    finally:
        if config.workers:
            inner._shutdown_workers()


def _reference(loader: DataLoader[Any], indices: list[Any], seeds: ItemSeeds) -> _Reference:
    """Fetch without workers, twice: in the order of the stream, and backwards with other seeds."""
    here = Config(0, None, False)
    held = tuple(sorted(handles(loader.dataset)))
    before = random_states()
    batches = _fetch(loader, here, indices, seeds)
    moved = tuple(name for name, state in random_states().items() if state != before[name])
    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)
    again = _fetch(loader, here, indices[::-1], seeds)[::-1]
    opened = tuple(sorted(handles(loader.dataset) - set(held)))
    return _Reference(batches, moved, _first(batches, again) or "", held, opened)


def _first(one: Leaves, other: Leaves) -> str | None:
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if (path := difference(a, b)) is not None:
            return f"batch {place}{path if path.startswith(('[', '.')) else ' (' + path + ')'}"
    return None if len(one) == len(other) else "the number of batches"


def probe(
    loader: DataLoader[Any],
    indices: list[Any],
    drew: bool,
    workers: int,
    prefetch: int | None,
    seeds: ItemSeeds | None = None,
) -> LoaderProbe:
    """Fetch `indices` without workers and by a pool, and compare.

    Args:
        loader: the script's.
        indices: its next index batches.
        drew: the sampler drew from the random state for a single batch.
        workers: the worker count in question. For none, the pool is one of the script's size.
        prefetch: of the pool.
        seeds: by which items are seeded; None: they aren't.
    """
    seeds = seeds or ItemSeeds()
    started = time.perf_counter()

    def verdict(equal: bool, moving: bool, reason: str, worst: str = "") -> LoaderProbe:
        return LoaderProbe(equal, moving, reason, worst, time.perf_counter() - started)

    if not indices:
        return verdict(False, False, "there is no batch left to compare")
    config = Config.normal(workers or loader.num_workers or 1, prefetch, False)
    with preserved():
        try:
            reference = elsewhere(lambda: _reference(loader, indices, seeds))
        except Exception as error:
            return verdict(False, False, f"items cannot be fetched without workers: {line(error)}")
        if reason := _shares_files(loader, reference, workers):
            return verdict(False, bool(reference.moved), reason)
        try:
            other = _fetch(loader, config, indices, seeds)
        except Exception as error:
            reason = f"items cannot be fetched by {config.workers} workers: {line(error)}"
            return verdict(False, bool(reference.moved), reason)
    worst = _first(reference.batches, other) or ""
    reason = _randomness(reference, drew)
    if worst and not reason:
        reason = f"batches differ with {config.workers} workers"
    return verdict(not worst, bool(_randomness(reference, drew)), reason, worst)


def _randomness(reference: _Reference, drew: bool) -> str:
    if reference.moved:
        names = " and ".join(reference.moved)
        return f"items draw from or reset the global random state of {names}"
    if reference.unsteady:
        return f"an item fetched twice differs ({reference.unsteady}): it has a state of its own"
    return "the sampler draws from the global random state for every batch" if drew else ""


def _shares_files(loader: DataLoader[Any], reference: _Reference, workers: int) -> str:
    """Why workers would read from each other's files; empty: they would not."""
    if workers and not loader.num_workers and start_method(loader) == "fork" and reference.held:
        return f"the dataset holds an open file ({reference.held[0]}) that workers would share"
    if not workers and loader.num_workers and reference.opened:
        return f"items open a file ({reference.opened[0]}) that later workers would share"
    return ""
