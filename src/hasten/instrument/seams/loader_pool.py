"""One of torch's own iterators (a pool of workers, or none), fed through a gate of ours."""

from __future__ import annotations

import time
import weakref
from typing import Any

from torch.utils.data import DataLoader

from hasten.instrument.seams.loader_fingerprint import Fingerprint
from hasten.instrument.seams.loader_stream import Feed, IndexStream, Order
from hasten.instrument.seams.loader_torch import Config, quietly


class Pool:
    """An iterator of torch's with its feed.

    Attributes:
        key: worker count and prefetch factor.
        inner: torch's iterator.
        feed: where it takes its indices.
        script: it is the script's own, begun by torch in the script's configuration.
        epoch: the epoch that it was last fed for; a token that compares by identity.
        used: when it was last switched to, by `time.perf_counter`.
        created: when its start began.
        user: the iterator that it works for.
        fingerprint: of the dataset that its workers hold, where it may outlive the epoch.
    """

    def __init__(self, copy: DataLoader[Any], feed: Feed, epoch: object, script: bool) -> None:
        """Start it; `copy` is a shadow whose sampler is `feed`."""
        self.created = self.used = time.perf_counter()
        self.config = Config.of(copy)
        self.key = feed.key
        self.feed = feed
        self.script = script
        self.epoch = epoch
        self.user: weakref.ref[Any] | None = None
        self.fingerprint: Fingerprint | None = None
        self._copy = copy
        feed.opening = script
        try:
            self.inner: Any = copy._get_iterator() if script else quietly(copy)
        finally:
            feed.opening = False

    @property
    def workers(self) -> int:
        """Worker processes; 0: it fetches in this process."""
        return self.key[0]

    @property
    def alive(self) -> bool:
        """Whether it can fetch: nothing shut it down and no worker has died."""
        if not self.workers:
            return True
        return not self.inner._shutdown and all(w.is_alive() for w in self.inner._workers)

    @property
    def outstanding(self) -> int:
        """Batches that its workers owe."""
        return len(self.inner._task_info) if self.workers else 0

    @property
    def ready(self) -> bool:
        """Whether a batch lies in its queue."""
        return bool(self.workers) and not self.inner._data_queue.empty()

    def begin(self, epoch: object, stream: IndexStream, order: Order, opening: bool) -> None:
        """Feed it for a new epoch, as torch does with persistent workers.

        Args:
            epoch: token of the epoch.
            stream: of the epoch.
            order: of the epoch.
            opening: it is the script's pool and begins the script's epoch.
        """
        self._bind(stream, order)
        self.epoch = epoch
        self.feed.opening = opening
        try:
            self.inner._reset(self._copy)  # also throws away what an abandoned epoch left
        finally:
            self.feed.opening = False

    def resume(self, epoch: object, stream: IndexStream, order: Order) -> None:
        """Feed it again, after another pool had its turn."""
        self.used = time.perf_counter()
        if self.epoch is not epoch:
            self.begin(epoch, stream, order, opening=False)
            return
        self._bind(stream, order)
        # torch puts one index in for each batch it hands out; with nothing on its way nobody
        # would put the first.
        for _ in range(self.config.capacity - self.outstanding):
            self.inner._try_put_index()

    def _bind(self, stream: IndexStream, order: Order) -> None:
        self.feed.stream, self.feed.order, self.feed.open = stream, order, True

    def shut(self) -> None:
        """End its workers."""
        self.feed.open = False
        if self.workers:
            self.inner._shutdown_workers()
