"""Observes DataLoaders: where they are made and iterated, how epochs begin, what workers hold.

Events: "loader_made", "loader_iterated". Facts, about the training loader: "made" and "iterated"
(places), "first_waits" (seconds from `iter` to the first batch, an epoch each), "last_waits"
(seconds in which the loop learns that there is no further batch: workers end then), "worker_memory"
(bytes private to the workers and not shared with anybody, as epochs go on), "batch_bytes" (of the
tensors in a batch).
"""

from __future__ import annotations

import dataclasses
import itertools
import time
import weakref
from typing import Any, ClassVar

from torch.utils.data import DataLoader

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.loader_times import batch_bytes
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import place, users_frame

_SETTLED = 3  # batches of an epoch after which workers have begun in earnest
_EVERY = 1.0  # seconds between two looks at the memory of workers
_RISE = 1.02  # from one look to the next that is no chance
_Frame = tuple[str, int, str]


class Loaders(Observer):
    """Where loaders come from and how their epochs begin."""

    name: ClassVar[str] = "loaders"

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[Any, _Frame] = weakref.WeakKeyDictionary()
        self._iterated: weakref.WeakKeyDictionary[Any, _Frame] = weakref.WeakKeyDictionary()
        self._training: Any = None
        self._begun = self._looked = self._asked = 0.0
        self._batches = self._bytes = 0
        self._waits: list[float] = []
        self._ends: list[float] = []
        self._memory: list[list[int]] = []

    def start(self, log: Log) -> None:
        """Hook their construction."""
        log.wrap(DataLoader, "__init__", "loader_made", self._remember)

    def _remember(self, loader: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        frame = users_frame(2)
        if frame is not None:
            self._made[loader] = frame
        return {}

    def epoch_started(self, log: Log, loader: Any, training: bool) -> None:
        """Remember when and where."""
        at, self._begun = users_frame(2), time.perf_counter()
        log.event("loader_iterated", at=at, training=training)
        self._batches = 0
        if at is not None:  # the first epoch begins before it is known what is trained on
            self._iterated[loader] = at
        if training:
            self._training = weakref.ref(loader)
            self._memory.append([])

    def fetching(self, log: Log, loader: Any, training: bool) -> None:
        """Remember when a batch was asked for: there may be none."""
        self._asked = time.perf_counter() if training else 0.0

    def epoch_ended(self, log: Log, loader: Any, training: bool) -> None:
        """Take the time of its end."""
        if training and self._asked:
            self._ends.append(time.perf_counter() - self._asked)

    def fetched(self, log: Log, loader: Any, batch: Any, training: bool) -> None:
        """Take the time of the first batch, and now and then the memory of workers."""
        if not training:
            return
        now = time.perf_counter()
        self._batches += 1
        if self._training is None:
            self._training = weakref.ref(loader)
        if self._batches == 1 and self._begun and self._memory:
            self._waits.append(now - self._begun)
        self._bytes = self._bytes or batch_bytes(batch)
        if self._batches > _SETTLED and now - self._looked > _EVERY:
            self._looked = now
            self._look_at_workers()

    def _look_at_workers(self) -> None:
        import psutil

        private = 0
        for child in psutil.Process().children():
            try:
                with open(f"/proc/{child.pid}/smaps_rollup", encoding="ascii") as file:
                    lines = file.read().splitlines()
                if "python" in " ".join(child.cmdline()[:1]):
                    private += _private(lines)
            except (OSError, psutil.Error):
                continue
        if private:
            if not self._memory:
                self._memory.append([])
            self._memory[-1].append(private)

    @property
    def grows(self) -> bool:
        """Whether the workers held more at each look of this epoch: it is worth looking on."""
        looks = self._memory[-1] if self._memory else []
        return len(looks) > 1 and all(b > _RISE * a for a, b in itertools.pairwise(looks))

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """The places of the training loader, and what was measured of it."""
        loader = self._training() if self._training is not None else None
        made = self._made.get(loader) if loader is not None else None
        iterated = self._iterated.get(loader) if loader is not None else None
        return {
            "made": _plain(made),
            "iterated": _plain(iterated),
            "first_waits": self._waits,
            "last_waits": self._ends,
            "batch_bytes": self._bytes,
            "worker_memory": [looks for looks in self._memory if looks],
        }


def _private(lines: list[str]) -> int:
    """Bytes that nobody shares; batches that wait in shared memory aren't the worker's own."""
    dirty = sum(_bytes(line) for line in lines if line.startswith("Private_Dirty"))
    shared = sum(_bytes(line) for line in lines if line.startswith("Pss_Shmem"))
    return max(0, dirty - shared)


def _bytes(line: str) -> int:
    return int(line.split()[1]) * 1024


def _plain(frame: _Frame | None) -> dict[str, Any] | None:
    return dataclasses.asdict(place(*frame)) if frame is not None else None
