"""Times the training loader by itself: making a batch in one process, and the loader at full speed.

Batches are made of the script's next indices, which it still gets later; random states are put
back.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from hasten.diagnosis import LoaderTimes, Place, TransformTime
from hasten.instrument.observe.calls import CallTimes
from hasten.instrument.observe.places import place, place_of
from hasten.instrument.seams.loader import OwnedLoader
from hasten.instrument.seams.loader_random import preserved
from hasten.instrument.seams.loader_torch import Config, quietly, shadow

_BATCHES = 6  # that are made in this process
_ALONE = 200  # batches that are taken from the loader alone, at most
_SHOWN = 6  # classes


def loader_times(owned: OwnedLoader, seconds: float) -> LoaderTimes:
    """Measure a loader while the script stands at a border.

    Args:
        owned: the training loader.
        seconds: to be spent, about.
    """
    if owned.reason is not None:
        return LoaderTimes(unknown=owned.reason)
    # Outside `preserved`: what a sampler draws now, it would have drawn at the script's next batch.
    indices = _next_indices(owned, _ALONE)
    if len(indices) < 2:
        return LoaderTimes(unknown="the epoch was over")
    with preserved():
        try:
            made = _made_here(owned.loader, indices[:_BATCHES], seconds / 2)
            alone = _alone(owned.loader, indices, made.fetch or 0.0, seconds / 2)
        except Exception as error:  # code of the script, in a place that it did not expect
            return LoaderTimes(unknown=f"{type(error).__name__}: {error}")
    from dataclasses import replace

    return replace(made, alone=alone)


def _next_indices(owned: OwnedLoader, count: int) -> list[Any]:
    """The script's next index batches, which it still gets; at an epoch's end the last ones."""
    iterator = owned._iterator()
    indices = [] if iterator is None else iterator.upcoming(count)[0]
    return indices if len(indices) > 1 else list(owned.recent)


def _made_here(loader: DataLoader[Any], indices: list[Any], seconds: float) -> LoaderTimes:
    """Make batches without workers: first by the clock alone, then by class and line."""
    assert get_worker_info() is None
    fetch = collate = 0.0
    count, size, deadline = 0, 0, time.perf_counter() + seconds / 2
    for index in indices:
        items, batch, collating = _make(loader, index)
        fetch, collate, count = fetch + items + collating, collate + collating, count + 1
        size = max(size, batch_bytes(batch))
        if time.perf_counter() > deadline:
            break
    calls = CallTimes()
    begun = time.perf_counter()
    with calls:
        _make(loader, indices[0])
    scale = fetch / count / max(1e-9, time.perf_counter() - begun)
    return LoaderTimes(
        fetch=fetch / count,
        collate=collate / count,
        batch_bytes=size,
        transforms=_transforms(calls, loader, scale),
        item_place=_hottest(calls),
        collate_place=place_of(loader.collate_fn),
    )


def _make(loader: DataLoader[Any], index: Any) -> tuple[float, Any, float]:
    """Seconds for the items, the batch, seconds for collating, as torch's fetcher does it."""
    dataset: Any = loader.dataset
    begun = time.perf_counter()
    if not loader._auto_collation:
        items = dataset[index]
    elif getattr(dataset, "__getitems__", None):
        items = dataset.__getitems__(index)
    else:
        items = [dataset[place] for place in index]
    between = time.perf_counter()
    batch = loader.collate_fn(items)
    return between - begun, batch, time.perf_counter() - between


def _transforms(
    calls: CallTimes, loader: DataLoader[Any], scale: float
) -> tuple[TransformTime, ...]:
    ours = (type(loader.dataset), type(loader.collate_fn))
    found = [
        TransformTime(cls.__qualname__, scale * spent, _written(cls))
        for cls, spent in calls.classes.items()
        if cls not in ours
    ]
    return tuple(sorted(found, key=lambda t: -t.seconds)[:_SHOWN])


def _written(cls: type) -> Place | None:
    for name in ("__call__", "forward"):
        if name in vars(cls):
            return place_of(vars(cls)[name])
    return None


def _hottest(calls: CallTimes) -> Place | None:
    """The user's line whose calls take longest."""
    if not calls.lines:
        return None
    return place(*max(calls.lines, key=lambda line: calls.lines[line]))


def batch_bytes(batch: Any) -> int:
    """Bytes of all tensors in a batch."""
    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    return sum(map(batch_bytes, batch)) if isinstance(batch, (list, tuple)) else 0


def _alone(
    loader: DataLoader[Any], indices: list[Any], fetch: float, seconds: float
) -> float | None:
    """Seconds a batch when batches are taken as fast as they come."""
    config = Config.of(loader)
    if not config.workers:
        return fetch
    ahead = config.capacity
    repeated = itertools.islice(itertools.cycle(indices), _ALONE + ahead)
    pool: Any = quietly(
        shadow(loader, config, _Indices(repeated), torch.Generator(), persistent=True)
    )
    try:
        for _ in range(ahead + 1):  # what was made while the workers were started
            next(pool)
        begun, taken = time.perf_counter(), 0
        while taken < _ALONE // 2 and time.perf_counter() - begun < seconds:
            next(pool)
            taken += 1
        return (time.perf_counter() - begun) / taken if taken else None
    except StopIteration:
        return None
    finally:
        pool._shutdown_workers()


class _Indices:
    """Index batches that are read once."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Any]:
        return self._indices
