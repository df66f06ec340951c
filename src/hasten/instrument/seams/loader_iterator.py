"""What `iter(loader)` returns: the script's samples in its order, from changing pools.

The index stream belongs to this iterator and the configuration to the loader, so two live
iterators of one loader don't disturb each other. Nothing here refers to itself in a circle: when
the script drops the iterator, its workers end at once, as with torch's own.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from hasten.instrument.seams.loader_pool import Pool
from hasten.instrument.seams.loader_random import random_states
from hasten.instrument.seams.loader_stream import Feed, IndexStream, Order
from hasten.instrument.seams.loader_torch import Config, Key, Seeds, shadow

if TYPE_CHECKING:
    from hasten.instrument.seams.loader import OwnedLoader

_LIVING = 3  # pools of workers that an iterator keeps; an idle one costs memory, but no time
_RESTART = object()  # a configuration that is never in force


@dataclass
class Persisted:
    """What the script's own persistent workers carry from one epoch to the next.

    Attributes:
        script: their pool; None: another configuration was in force all the time.
        seeds: from which the base seed of their pool came.
        passes: epochs that have begun.
    """

    script: Pool | None
    seeds: Seeds | None
    passes: int


class OwnedIterator(_BaseDataLoaderIter):
    """One pass over the script's index stream (with persistent workers: one after another)."""

    def __init__(
        self, owned: OwnedLoader, loader: DataLoader[Any], persisted: Persisted | None = None
    ) -> None:
        # torch's __init__ isn't called: it would draw from the random state once more.
        self._owned = owned
        self._loader = loader
        self._index_sampler = loader._index_sampler
        self._stream = IndexStream(self._index_sampler)
        self._order: Order = deque()
        self._pools: dict[Key, Pool] = {}
        self._active: Pool | None = None
        self._starting: Pool | None = None
        before = persisted or Persisted(None, None, 0)
        self._script, self._seeds, self._passes = before.script, before.seeds, before.passes
        self.left = 0
        self.over = True
        self._open(loader)

    # --- what torch's iterators offer ---------------------------------------------------------

    def __next__(self) -> Any:
        loader = self._loader
        if self.over:
            raise StopIteration
        events = self._owned.events
        events.fetching(loader)
        batch = self._replay() if self._owned.held else self._take()
        batch = self._owned.delivery(batch)
        events.fetched(loader, batch)
        return batch

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __getattr__(self, name: str) -> Any:
        # Scripts that look into torch's iterator find that of the pool which is feeding.
        active = self.__dict__.get("_active")
        if active is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(active.inner, name)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin another epoch on the same iterator, as torch does with persistent workers."""
        self._open(loader)

    @property
    def persisted(self) -> Persisted:
        """What the next epoch needs of this one."""
        return Persisted(self._script, self._seeds, self._passes)

    def _shutdown_workers(self) -> None:
        for pool in self._pools.values():
            pool.shut()

    # --- an epoch begins ----------------------------------------------------------------------

    def _open(self, loader: DataLoader[Any]) -> None:
        self._drop(keep=self._script if loader.persistent_workers else None)
        self._loader = loader
        self._order.clear()
        self._epoch, self._baseline = object(), self._owned.baseline(loader)
        self._stream.key = self._owned.items.seeds.begin(loader)
        self._passes += 1
        self.left, self.over, self._active, self._starting = 0, False, None, None
        self._in_force: Any = self._owned.target
        wanted = self._in_force or self._baseline
        if wanted == self._baseline and (self._passes == 1 or self._script is not None):
            self._open_as_script(loader)
        else:
            self._open_as_configured(loader, wanted)
        self._owned.current(self)

    def _open_as_script(self, loader: DataLoader[Any]) -> None:
        """Let torch begin the epoch: all draws from the random state are its own."""
        pool = self._script
        if pool is None or self._passes == 1:
            feed = Feed(self._baseline.key, self._stream, self._order)
            copy = shadow(loader, self._baseline, feed, loader.generator)
            self._owned.dress(copy, self._baseline)
            self._script = pool = Pool(copy, feed, self._epoch, script=True)
            self._seeds = Seeds.after(pool.inner._base_seed)
            self._starting = pool if pool.workers else None
        else:
            pool.begin(self._epoch, self._stream, self._order, opening=True)
        self._use(pool)

    def _open_as_configured(self, loader: DataLoader[Any], wanted: Config) -> None:
        """Draw what the script's configuration would have drawn, in its order; then fetch."""
        baseline = self._baseline
        self._stream.restart()
        if self._passes == 1 or self._seeds is None:
            self._seeds = Seeds(loader.generator)
            if baseline.workers:  # torch calls iter on the sampler twice
                self._stream.restart()
        self._in_force = _RESTART
        if baseline.workers:
            self._stream.read_ahead(baseline.capacity)
            self._switch()
        # Without workers nothing is read before the first batch is asked for: so do we.

    # --- a batch ------------------------------------------------------------------------------

    def _replay(self) -> Any:
        replay = self._owned.replay
        return self._owned.record(self._take()) if replay is None else replay()

    def _take(self) -> Any:
        if self._in_force is not self._owned.target:
            self._switch()
        if self._starting is not None:
            self._watch_start()
        order, entry = self._order, None
        if order:
            entry = order.popleft()
            pool = self._pools[entry[0]]
        else:
            assert self._active is not None
            pool = self._active
        try:
            batch = next(pool.inner)
        except BaseException as error:
            self._failed(pool, entry, error)
            raise
        self._owned.delivered((entry or order.popleft())[1])
        if self.left:
            self.left -= 1
        if pool is self._starting:
            self._started(pool)
        return batch

    def _failed(self, pool: Pool, entry: Any, error: BaseException) -> None:
        """Is the epoch over, or is it the script's own exception, which costs one batch?"""
        pulled = entry
        if not pool.workers and self._order:
            pulled = self._order.popleft()
        elif entry is not None:
            owed = sum(key == pool.key for key, _ in self._order)
            if owed < pool.outstanding:  # nothing came: it is asked for again
                self._order.appendleft(entry)
        if isinstance(error, StopIteration):
            if pulled is None:
                self._finish()
            self._owned.events.epoch_ended(self._loader)

    def _finish(self) -> None:
        self.over = True
        self._watch_dataset(by_workers=False)
        self._drop(keep=self._script if self._baseline.persistent else None)

    def _watch_start(self) -> None:
        pool = self._starting
        if pool is not None and pool.ready:  # seen before leftovers let its batch have its turn
            self._started(pool)

    def _started(self, pool: Pool) -> None:
        self._owned.pool_seconds = time.perf_counter() - pool.created
        self._starting = None

    # --- pools --------------------------------------------------------------------------------

    def _switch(self) -> None:
        """Feed by the configuration that is wanted now; what is on its way comes first."""
        self._in_force = self._owned.target
        wanted: Config = self._in_force or self._baseline
        active = self._active
        if active is not None and active.key == wanted.key:
            return
        if active is not None:
            active.feed.open = False
        self._watch_dataset(wanted.workers > 0)
        self.left = len(self._order)
        pool = self._pools.get(wanted.key) or self._owned.kept_pool(wanted)
        if pool is not None and pool.epoch is not self._epoch and not wanted.persistent:
            pool = None  # the script's persistent workers, which aren't wanted now
        if pool is None or not (pool.alive or pool.outstanding):
            pool = self._start(wanted)
        else:
            pool.resume(self._epoch, self._stream, self._order)
        self._use(pool)
        self._limit()

    def _watch_dataset(self, by_workers: bool) -> None:
        """Workers begin or cease to stand in for this process."""
        if not self._baseline.workers:
            stale = self._owned.staleness
            stale.end(self._loader)
            if by_workers:
                stale.begin(self._loader)

    def _use(self, pool: Pool) -> None:
        pool.user = weakref.ref(self)
        self._pools[pool.key] = self._active = pool

    def _start(self, wanted: Config) -> Pool:
        loader = self._loader
        assert self._seeds is not None
        feed = Feed(wanted.key, self._stream, self._order)
        # torch never ends a pool of ours by itself: it may be idle and wanted again.
        keep = wanted.workers > 0
        copy = shadow(loader, wanted, feed, self._seeds.generator(), persistent=keep)
        self._owned.dress(copy, wanted)
        script = self._baseline.persistent and wanted == self._baseline
        mark = None if script else self._owned.fingerprint(loader, wanted)
        pool = Pool(copy, feed, self._epoch, script=False)
        if mark is not None:
            self._owned.keep(pool, mark)
        self._starting = pool if pool.workers else None
        if script:
            self._script, self._owned.persisted = pool, self.persisted
        return pool

    def _limit(self) -> None:
        """End the pools that have been idle for longest."""
        owing = {key for key, _ in self._order}
        idle = [p for p in self._pools.values() if p.workers and p.key not in owing]
        idle = [p for p in idle if p is not self._active and not self._stays(p)]
        living = sum(p.workers > 0 for p in self._pools.values())
        for pool in sorted(idle, key=lambda p: p.used)[: max(0, living - _LIVING)]:
            pool.shut()
            del self._pools[pool.key]

    def _stays(self, pool: Pool) -> bool:
        return (pool is self._script and self._baseline.persistent) or self._owned.keeps(pool)

    def _drop(self, keep: Pool | None) -> None:
        """End what belongs to the epoch alone."""
        self._owned.prune()
        for pool in list(self._pools.values()):
            if pool is not keep and not self._owned.keeps(pool):
                pool.shut()
        self._pools = {} if keep is None else {keep.key: keep}

    def upcoming(self, count: int) -> tuple[list[Any], bool]:
        """The next index batches, which are delivered later as if nobody had looked.

        Returns:
            The index batches, and whether the sampler drew from the random state for one batch.
        """
        before = random_states()
        begun = self._stream.begun  # the first pull may draw the sampler's seed
        self._stream.peek(1)
        drew = begun and random_states() != before
        waiting = [index for _, index in self._order]
        if len(waiting) < count:
            waiting += self._stream.peek(count - len(waiting))
        return waiting[:count], drew

    def uses(self, pool: Pool) -> bool:
        """Whether this pool works for an epoch that goes on."""
        return not self.over and pool.epoch is self._epoch

    @property
    def workers(self) -> int | None:
        """Worker processes that are feeding; None: nothing has been started yet."""
        return None if self.over or self._active is None else self._active.workers

    @property
    def leftovers(self) -> int:
        """Batches of earlier configurations that come first."""
        if self._in_force is self._owned.target or self._active is None:
            return self.left
        wanted: Config = self._owned.target or self._baseline
        return self.left if wanted.key == self._active.key else len(self._order)

    def close(self) -> None:
        """End every pool; what they owed is fetched anew if the script goes on."""
        self._stream.give_back([index for _, index in self._order])
        self._order.clear()
        self._shutdown_workers()
        self._script = None
        if not self.over:
            self._pools.clear()
            self._active, self._starting = None, None
            self.left, self._in_force = 0, _RESTART


class Placeholder(_BaseDataLoaderIter):
    """Stands in `loader._iterator` for persistent workers of which there are none."""

    def __init__(self) -> None:
        """Holds nothing; torch's __init__ would draw from the random state."""

    def _shutdown_workers(self) -> None: ...


class WatchedIterator(_BaseDataLoaderIter):
    """An iterator that isn't ours: everything is torch's own, but events come."""

    def __init__(self, owned: OwnedLoader, loader: DataLoader[Any], inner: Any) -> None:
        self._owned, self._loader, self._inner = owned, loader, inner

    def __next__(self) -> Any:
        events = self._owned.events
        events.fetching(self._loader)
        replay = self._owned.replay if self._owned.held else None
        try:
            batch = next(self._inner) if replay is None else replay()
        except StopIteration:
            events.epoch_ended(self._loader)
            raise
        if self._owned.held and replay is None:
            self._owned.record(batch)
        batch = self._owned.delivery(batch)
        events.fetched(self._loader, batch)
        return batch

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._inner, name)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        self._inner._reset(loader, first_iter)
