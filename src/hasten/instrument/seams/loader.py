"""The loader seam: every map-style DataLoader's index stream is ours, its fetching torch's.

`DataLoader.__iter__` is the only thing that is replaced. Each iterator delegates to torch's own
iterators, one pool of workers for each worker count and prefetch factor, all fed from the one
index stream of the epoch. So the worker count changes between two batches of a running epoch and
the script sees its samples in the order that it would have seen anyway. As long as nothing is
configured, torch itself does everything, and every draw from a random state is its own.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Sized
from typing import Any

from torch.utils.data import DataLoader

from hasten.errors import HastenError
from hasten.instrument import patching
from hasten.instrument.seams import loader_fingerprint, loader_probe
from hasten.instrument.seams.delivery import Delivery
from hasten.instrument.seams.loader_batches import Replay
from hasten.instrument.seams.loader_events import LoaderEvents, Silence
from hasten.instrument.seams.loader_facts import describe
from hasten.instrument.seams.loader_iterator import (
    OwnedIterator,
    Persisted,
    Placeholder,
    WatchedIterator,
)
from hasten.instrument.seams.loader_keeping import Caches, Keeping
from hasten.instrument.seams.loader_pool import Pool
from hasten.instrument.seams.loader_probe import LoaderProbe
from hasten.instrument.seams.loader_stale import Staleness
from hasten.instrument.seams.loader_torch import (
    Config,
    Key,
    Seeds,
    missing,
    remember,
    why_not_owned,
)
from hasten.instrument.seams.loader_whole import WholeBatches
from hasten.records import LoaderFacts


class OwnedLoader:
    """One loader of the script. It satisfies `optimisations.base.LoaderSeam`.

    Attributes:
        reason: why its index stream isn't ours; None: it is.
        target: the configuration from the next batch on; None: as the script has it.
        held: the recorded batch is yielded again and again.
        replay: the recorded batch.
        pool_seconds: what the last start of a pool took, from its creation to its first batch.
        batches: that were delivered so far; held ones aren't counted.
        samples: likewise.
        recent: index batches that were delivered last, the latest at the end.
        not_persistent_because: why the last pool doesn't outlive its epoch although configured.
        events: whom to tell.
        staleness: whether the script was caught changing its dataset under our workers.
        persisted: what the script's own persistent workers carry over the epochs.
        items: of its dataset, kept once they are computed.
        whole: its batches, whose items are fetched at once.
    """

    def __init__(self, loader: DataLoader[Any], events: LoaderEvents, caches: Caches) -> None:
        self._loader = weakref.ref(loader)
        self.events = events
        self.reason = why_not_owned(loader)
        self.target: Config | None = None
        self.delivery = Delivery()
        self.held = False
        self.replay: Replay | None = None
        self.pool_seconds: float | None = None
        self.batches = self.samples = 0
        self.not_persistent_because = ""
        self.staleness = Staleness()
        self.items = Keeping(self, caches, self._aim)
        self.whole = WholeBatches(self, self._aim)
        self._asked: Config | None = None
        self._unmarkable: Config | None = None
        self._collates = loader._auto_collation
        self.recent: deque[Any] = deque(maxlen=8)
        self._kept: dict[Key, Pool] = {}
        self._iterators: weakref.WeakSet[OwnedIterator] = weakref.WeakSet()
        self._current: weakref.ref[OwnedIterator] | None = None
        self.persisted: Persisted | None = None
        self._last: weakref.ref[OwnedIterator] | None = None  # of the persistent workers

    # --- for the conductor and the optimisations ----------------------------------------------

    @property
    def loader(self) -> DataLoader[Any]:
        """The script's loader.

        Raises:
            HastenError: the script has dropped it.
        """
        loader = self._loader()
        if loader is None:
            raise HastenError("the loader is gone", 3)
        return loader

    def facts(self) -> LoaderFacts:
        """The loader as the script built it."""
        return describe(self.loader, self.reason, self.samples)

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None where it is given whole batches."""
        return self.facts().batch_size

    def configure(self, workers: int, prefetch: int | None, persistent: bool) -> None:
        """Fetch with this many workers from the next batch on.

        Args:
            workers: processes; 0: fetch in this process.
            prefetch: batches ahead for each worker; None: torch's default.
            persistent: keep the workers over the epochs, while the dataset doesn't change.

        Raises:
            HastenError: the loader isn't ours, or a number is negative.
        """
        if self.reason is not None:
            raise HastenError(f"this loader cannot be configured: {self.reason}", 3)
        if workers < 0 or (prefetch or 0) < 0:
            raise HastenError(f"not a number of workers or of batches: {workers}, {prefetch}", 3)
        self._asked = Config.normal(workers, prefetch, persistent)
        self._aim()

    def reset(self) -> None:
        """Fetch as the script has it from the next batch on."""
        self._asked = None
        self._aim()

    def _aim(self) -> None:
        target = self.whole.target(self.items.target(self._asked))
        if target != self.target:  # iterators compare by identity, which is quicker
            self.target = target

    def dress(self, copy: DataLoader[Any], config: Config) -> None:
        """Give a copy of the loader, from which a pool starts now, items as they are wanted."""
        self.whole.dress(copy, config)
        self.items.dress(copy, config)

    def baseline(self, loader: DataLoader[Any]) -> Config:
        """How it fetches while nothing is configured."""
        return self.items.baseline(loader)

    @property
    def workers(self) -> int:
        """Worker processes that are feeding the loop now."""
        iterator = self._iterator()
        feeding = None if iterator is None else iterator.workers
        return self._config().workers if feeding is None else feeding

    @property
    def leftovers(self) -> int:
        """Batches from an earlier configuration that are still to be delivered; they come first."""
        iterator = self._iterator()
        return 0 if iterator is None else iterator.leftovers

    @property
    def in_flight(self) -> int:
        """Batches that are on their way at most, from the next batch on."""
        return self._config().capacity

    def hold(self, on: bool) -> None:
        """Yield the next batch again and again; the stream stands still until this is off."""
        self.held = on
        if not on:
            self.replay = None

    def upcoming(self, batches: int) -> tuple[list[Any], bool]:
        """The next index batches of the epoch, and whether the sampler drew for one of them."""
        iterator = self._iterator()
        return ([], False) if iterator is None else iterator.upcoming(batches)

    def probe(self, workers: int, prefetch: int | None, batches: int = 2) -> LoaderProbe:
        """Whether the script's next batches are the same with `workers` as without.

        They are delivered later as if nobody had looked. Random states are left as they were.

        Args:
            workers: the worker count in question.
            prefetch: of its pool.
            batches: how many are compared.
        """
        if self.reason is not None:
            return LoaderProbe(False, False, self.reason, "", 0.0)
        indices, drew = self.upcoming(batches)
        if len(indices) < batches:  # the end of the epoch: take what has been
            indices = [*list(self.recent)[len(indices) - batches :], *indices]
        seeds = self.items.seeds
        return loader_probe.probe(self.loader, indices, drew, workers, prefetch, seeds)

    def close(self) -> None:
        """End every pool of ours. An epoch that goes on begins a new one."""
        self.hold(False)
        for pool in self._kept.values():
            pool.shut()
        self._kept.clear()
        for iterator in list(self._iterators):
            iterator.close()
        loader, persisted = self._loader(), self.persisted
        if persisted is not None and loader is not None:
            if persisted.script is not None:
                persisted.script.shut()
            # The epochs go on counting: torch draws a base seed only for the first one.
            self.persisted = Persisted(None, persisted.seeds, persisted.passes)
            remember(loader, Placeholder())

    def forget(self) -> None:
        """Let go of the script's persistent workers; an epoch under way keeps them to its end."""
        loader, persisted = self._loader(), self.persisted
        if persisted is not None and loader is not None:
            remember(loader, None)
            if persisted.script is not None and not _busy(persisted.script):
                persisted.script.shut()
        self.persisted = self._last = None

    def _config(self) -> Config:
        return self.target or self.baseline(self.loader)

    def _iterator(self) -> OwnedIterator | None:
        iterator = None if self._current is None else self._current()
        return None if iterator is None or iterator.over else iterator

    # --- for its iterators --------------------------------------------------------------------

    def iterate(self, loader: DataLoader[Any]) -> OwnedIterator:
        """What `iter(loader)` gives; with persistent workers the same iterator each time."""
        if not (loader.persistent_workers and loader.num_workers > 0):
            return OwnedIterator(self, loader)
        if loader._iterator is None:  # also when the script has thrown it away
            self.persisted = self._last = None
        elif self.persisted is None:  # torch's own, from before hasten came
            self.persisted = Persisted(None, Seeds.after(int(loader._iterator._base_seed)), 1)
        iterator = None if self._last is None else self._last()
        if iterator is None:
            iterator = OwnedIterator(self, loader, self.persisted)
        else:
            iterator._reset(loader)
        self.persisted, self._last = iterator.persisted, weakref.ref(iterator)
        script = self.persisted.script
        remember(loader, Placeholder() if script is None else script.inner)
        return iterator

    def current(self, iterator: OwnedIterator) -> None:
        """`iterator` has begun an epoch."""
        self._iterators.add(iterator)
        self._current = weakref.ref(iterator)

    def delivered(self, index: Any) -> None:
        """The batch of this index batch goes to the script."""
        self.batches += 1
        self.samples += len(index) if self._collates and isinstance(index, Sized) else 1
        self.recent.append(index)

    def record(self, batch: Any) -> Any:
        """Take this batch for the one that is yielded again; the script gets the original."""
        self.replay = Replay(batch)
        return batch

    def fingerprint(self, loader: DataLoader[Any], wanted: Config) -> int | None:
        """Of what workers get a copy of; None: the pool must not outlive its epoch."""
        if not wanted.persistent or self._unmarkable is wanted:
            return None  # walking through a large dataset in vain takes seconds: only once
        copied = (loader.dataset, loader.collate_fn, loader.worker_init_fn)
        mark, self.not_persistent_because = loader_fingerprint.fingerprint(*copied)
        self._unmarkable = wanted if mark is None else None
        return mark

    def keep(self, pool: Pool, mark: int) -> None:
        """Let a pool outlive its epoch, as long as the dataset has this fingerprint."""
        pool.fingerprint = mark
        self._let_go(pool.key)
        self._kept[pool.key] = pool

    def keeps(self, pool: Pool) -> bool:
        """Whether it outlives its epoch."""
        return self._kept.get(pool.key) is pool

    def kept_pool(self, wanted: Config) -> Pool | None:
        """A living pool of an earlier epoch whose workers hold the dataset as it is now."""
        pool = self._kept.get(wanted.key)
        if pool is None or not wanted.persistent or _busy(pool):
            return None
        mark = self.fingerprint(self.loader, wanted)
        if mark is None or mark != pool.fingerprint or not pool.alive:
            self.not_persistent_because = self.not_persistent_because or "the dataset has changed"
            self._let_go(pool.key)
            return None
        return pool

    def prune(self) -> None:
        """Let pools go that the configuration doesn't keep any more."""
        target = self.target
        for key in list(self._kept):
            if target is None or not target.persistent or target.key != key:
                self._let_go(key)

    def _let_go(self, key: Key) -> None:
        pool = self._kept.pop(key, None)
        if pool is not None and not _busy(pool):  # a busy one ends with its epoch
            pool.shut()


def _busy(pool: Pool) -> bool:
    user = None if pool.user is None else pool.user()
    return isinstance(user, OwnedIterator) and user.uses(pool)


class LoaderSeams:
    """The seam itself: puts itself between the script and every DataLoader."""

    def __init__(self, events: LoaderEvents) -> None:
        self._events = events
        self._loaders: dict[int, tuple[weakref.ref[DataLoader[Any]], OwnedLoader]] = {}
        self._patch: patching.Patch | None = None
        self._process = os.getpid()
        self.caches = Caches()

    @property
    def problem(self) -> str | None:
        """What this version of torch lacks, so that no loader can be owned; None: nothing."""
        return missing()

    def install(self) -> None:
        """From now on every loader that is iterated for the first time is ours."""
        if self._patch is not None:
            return
        original, seams = DataLoader.__iter__, self

        def __iter__(self: DataLoader[Any]) -> Any:
            if os.getpid() != seams._process:  # a loader inside a worker of the script
                return original(self)
            return seams._iterate(self, original)

        self._patch = patching.replace(DataLoader, "__iter__", __iter__)

    def uninstall(self) -> None:
        """Leave the script alone. Epochs that are under way end as the script has them."""
        if self._patch is not None:
            patching.restore(self._patch)
            self._patch = None
        for _, owned in list(self._loaders.values()):
            owned.events = Silence()
            owned.hold(False)
            owned.items.end()
            owned.whole.set(False)
            owned.reset()
            owned.prune()
            owned.forget()

    def close(self) -> None:
        """Uninstall, and end every pool of ours."""
        self.uninstall()
        for _, owned in list(self._loaders.values()):
            owned.close()
        self._loaders.clear()
        self.caches.close()

    def owned(self, loader: DataLoader[Any]) -> OwnedLoader | None:
        """What is known of a loader; None: it has not been iterated."""
        entry = self._loaders.get(id(loader))
        return entry[1] if entry is not None and entry[0]() is loader else None

    def _iterate(self, loader: DataLoader[Any], original: Any) -> Any:
        owned = self.owned(loader) or self._own(loader)
        owned.events.epoch_started(loader)  # first: it may configure the pool that starts now
        if owned.reason is None:
            return owned.iterate(loader)
        return WatchedIterator(owned, loader, original(loader))

    def _own(self, loader: DataLoader[Any]) -> OwnedLoader:
        key, loaders = id(loader), self._loaders

        def forget(_: Any) -> None:
            loaders.pop(key, None)

        owned = OwnedLoader(loader, self._events, self.caches)
        loaders[key] = weakref.ref(loader, forget), owned
        if owned.reason is None:
            self.caches.born(owned)
        return owned
