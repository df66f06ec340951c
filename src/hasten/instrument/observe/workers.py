"""Observes when workers make batches, for the lanes of a timeline, and what it takes them.

Workers are forked with the hook in force, and write begin and end of each batch into memory that
they share with the main process. Where they are not forked, this can't be seen.

Facts, inside the workers of the training loader: "batches" (made, by worker), and seconds a batch
on average: "fetch" (items and collating), "collate" and "processor" (of the worker, all threads;
less than "fetch" where it waits for a disk, or for a core).
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

from hasten.instrument import patching
from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log

_WORKERS = 32  # lanes at most
_KEPT = 512  # batches of each: what is shown may lie some epochs back
_ENTRY = struct.Struct("qq")  # begin and end
#: Id of a data set; batches; nanoseconds: fetching, collating, of the processor.
_SUMS = struct.Struct("qqqqq")
_SLOTS = 4  # data sets that workers of one number are seen with
_ENTRIES = _SLOTS * _SUMS.size  # where they begin in a lane
_LANE = _ENTRIES + _KEPT * _ENTRY.size
_FETCHERS = ("_MapDatasetFetcher", "_IterableDatasetFetcher")


class Workers(Observer):
    """When each worker was at work."""

    name: ClassVar[str] = "workers"

    def __init__(self) -> None:
        self._shared: mmap.mmap | None = None
        self._collating = 0
        self._hooked: Any = None  # the fetcher whose collating is timed

    def start(self, log: Log) -> None:
        """Hook what makes a batch, in workers and without them."""
        if os.name != "posix":
            return
        self._shared = mmap.mmap(-1, 1 + _WORKERS * _LANE)
        self._shared[0] = 1
        for name in _FETCHERS:
            owner = getattr(fetch, name, None)
            if owner is not None:
                log.replace(owner, "fetch", self._timed(owner.fetch, self._shared))

    def _timed(self, original: Any, shared: mmap.mmap) -> Any:
        def timed(fetcher: Any, indices: Any) -> Any:
            info = get_worker_info()
            if info is None or not shared[0] or info.id >= _WORKERS:
                return original(fetcher, indices)
            with self._written(shared, 1 + info.id * _LANE, id(fetcher.dataset)):
                self._hook_collating(fetcher)
                return original(fetcher, indices)

        return timed

    @contextmanager
    def _written(self, shared: mmap.mmap, lane: int, dataset: int) -> Iterator[None]:
        """Write one batch of this worker into its lane."""
        begun, used, collated = time.perf_counter_ns(), time.process_time_ns(), self._collating
        try:
            yield
        finally:
            now = time.perf_counter_ns()
            place = lane + _ENTRIES + _made(shared, lane) % _KEPT * _ENTRY.size
            _ENTRY.pack_into(shared, place, begun, now)
            used = time.process_time_ns() - used
            _add(shared, lane, dataset, (1, now - begun, self._collating - collated, used))

    def _hook_collating(self, fetcher: Any) -> None:
        """Time this worker's own copy of the collate function, as long as the worker lives."""
        if fetcher is self._hooked:
            return
        self._hooked, original = fetcher, fetcher.collate_fn

        def collating(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._collating += time.perf_counter_ns() - begun

        patching.replace(fetcher, "collate_fn", collating)

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """Hand the spans to the recorder, and let the workers stop writing."""
        facts = conductor.loader_facts()
        if self._shared is None or facts is None or not facts.workers:
            return {}
        self._shared[0] = 0
        spans = list(_spans(self._shared))
        conductor.recorder.others += spans
        if not spans:
            method = facts.start_method or "another method"
            conductor.recorder.missing["workers"] = f"started by {method}, they can't be seen"
            return {}
        loader = conductor.loop.loader if conductor.loop is not None else None
        return _means(self._shared, id(getattr(loader, "dataset", None)))


def _made(shared: mmap.mmap, lane: int) -> int:
    """Batches in a lane by now, also those of workers of earlier epochs."""
    return sum(_SUMS.unpack_from(shared, lane + slot * _SUMS.size)[1] for slot in range(_SLOTS))


def _add(shared: mmap.mmap, lane: int, dataset: int, new: tuple[int, ...]) -> None:
    """Add to the sums of a data set, which an earlier worker of this number may have begun."""
    for slot in range(_SLOTS):
        key, *sums = _SUMS.unpack_from(shared, lane + slot * _SUMS.size)
        if key in (0, dataset):
            total = (a + b for a, b in zip(sums, new, strict=True))
            _SUMS.pack_into(shared, lane + slot * _SUMS.size, dataset, *total)
            return


def _spans(shared: mmap.mmap) -> Iterator[tuple[str, str, int, int]]:
    for worker in range(_WORKERS):
        for place in range(_KEPT):
            at = 1 + worker * _LANE + _ENTRIES + place * _ENTRY.size
            begin, end = _ENTRY.unpack_from(shared, at)
            if end > begin:
                yield f"worker {worker}", "batch", begin, end


def _means(shared: mmap.mmap, dataset: int) -> dict[str, Any]:
    """What a batch of a data set takes a worker on average; nothing where none was seen."""
    places = [1 + w * _LANE + slot * _SUMS.size for w in range(_WORKERS) for slot in range(_SLOTS)]
    found = [_SUMS.unpack_from(shared, place) for place in places]
    sums = [entry[1:] for entry in found if entry[0] == dataset]
    batches = [entry[0] for entry in sums]
    if not batches:
        return {}
    names = ("fetch", "collate", "processor")
    means = [1e-9 * sum(entry[i] for entry in sums) / sum(batches) for i in (1, 2, 3)]
    return {"batches": batches, **dict(zip(names, means, strict=True))}
