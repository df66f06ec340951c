"""Observes when workers make batches, for the lanes of a timeline.

Workers are forked with the hook in force, and write begin and end of each batch into memory that
they share with the main process. Where they are not forked, this can't be seen. No facts.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from typing import Any, ClassVar

from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log

_WORKERS = 32  # lanes at most
_KEPT = 128  # batches of each
_ENTRY = struct.Struct("qq")
_FETCHERS = ("_MapDatasetFetcher", "_IterableDatasetFetcher")


class Workers(Observer):
    """When each worker was at work."""

    name: ClassVar[str] = "workers"

    def __init__(self) -> None:
        self._shared: mmap.mmap | None = None
        self._made = 0  # by this process, when it is a worker

    def start(self, log: Log) -> None:
        """Hook what makes a batch, in workers and without them."""
        if os.name != "posix":
            return
        self._shared = mmap.mmap(-1, 1 + _WORKERS * _KEPT * _ENTRY.size)
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
            begun = time.perf_counter_ns()
            try:
                return original(fetcher, indices)
            finally:
                place = info.id * _KEPT + self._made % _KEPT
                self._made += 1
                _ENTRY.pack_into(shared, 1 + place * _ENTRY.size, begun, time.perf_counter_ns())

        return timed

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


def _spans(shared: mmap.mmap) -> list[tuple[str, str, int, int]]:
    found = []
    for place in range(_WORKERS * _KEPT):
        begin, end = _ENTRY.unpack_from(shared, 1 + place * _ENTRY.size)
        if end > begin:
            found.append((f"worker {place // _KEPT}", "batch", begin, end))
    return found
