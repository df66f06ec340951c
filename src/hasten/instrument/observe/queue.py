"""Observes how many batches of the loader's workers were ready when the script asked for one.

Facts, of the training loader: "ready" (batches, for each of the last requests), "asked" (requests)
and "empty" (requests that found none ready).
"""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

from torch.utils.data import dataloader

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log

_KEPT = 512  # requests
_LOOKED = "_next_data"  # of torch's iterator with workers; torch 2.6 to 2.14 have it


class Queue(Observer):
    """How deep the queue of finished batches is."""

    name: ClassVar[str] = "queue"

    def __init__(self) -> None:
        self._seen: dict[int, deque[int]] = {}  # by data set
        self._asked: dict[int, int] = {}
        self._empty: dict[int, int] = {}

    def start(self, log: Log) -> None:
        """Hook the request."""
        owner = dataloader._MultiProcessingDataLoaderIter
        original = getattr(owner, _LOOKED, None)
        if original is None:
            return

        def asked(iterator: Any) -> Any:
            self._look(iterator)
            return original(iterator)

        log.replace(owner, _LOOKED, asked)

    def _look(self, iterator: Any) -> None:
        ready = _ready(iterator)
        if ready is None:
            return
        key = id(iterator._dataset)
        self._seen.setdefault(key, deque(maxlen=_KEPT)).append(ready)
        self._asked[key] = self._asked.get(key, 0) + 1
        self._empty[key] = self._empty.get(key, 0) + (ready == 0)

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """What was seen of the training loader."""
        loader = conductor.loop.loader if conductor.loop is not None else None
        key = id(getattr(loader, "dataset", None))
        if key not in self._seen:
            return {}
        return {
            "ready": list(self._seen[key]),
            "asked": self._asked[key],
            "empty": self._empty[key],
        }


def _ready(iterator: Any) -> int | None:
    """Batches that are made and not yet handed out; None where it can't be told."""
    try:
        ahead = sum(len(info) == 2 for info in iterator._task_info.values())
        return ahead + int(iterator._data_queue.qsize())
    except (AttributeError, NotImplementedError, OSError):  # macOS has no qsize
        return None
