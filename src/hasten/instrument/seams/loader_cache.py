"""Keeping items, seen from the process of the script: when to begin, and when to start anew.

The items belong to the dataset as it was when they were computed. In the script's process it may
change at any time; it is looked at before every batch in so far as that is quick, and as a whole
as often as that takes a hundredth of the time.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hasten.environment import MIB, free_memory
from hasten.instrument import cache_folder
from hasten.instrument.seams.cache_dataset import CachedDataset
from hasten.instrument.seams.cache_items import Counters, FolderStamp, Items, plain_stamp
from hasten.instrument.seams.cache_key import folder_of, key_of
from hasten.instrument.seams.cache_pipeline import layers
from hasten.instrument.seams.cache_probe import Option, Probed, choose, look
from hasten.instrument.seams.cache_region import Region
from hasten.instrument.seams.cache_store import Store, supported
from hasten.instrument.seams.loader_fingerprint import fingerprint
from hasten.instrument.seams.loader_fork import all_elsewhere, elsewhere
from hasten.records import ItemFacts

_SAMPLE = 8  # items that are looked at
_SHARE = 0.5  # of the memory that is free
_LOOKING = 0.01  # of the time goes to looking at the whole dataset
_CHANGES = 2  # of the dataset, after which keeping its items is given up


class ItemCache:
    """The kept items of one dataset.

    Attributes:
        dataset: the script's.
        trouble: why nothing is kept any more; empty: it is.
        counters: of all processes.
        persistent: the items outlive the process.
        probed: what a sample of items has shown; None: nobody has looked.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.trouble = ""
        self.persistent = False
        self.probed: Probed | None = None
        self.counters = Counters()
        self.option: Option | None = None
        self._items: Items | None = None
        self._mark: int | None = None
        self._quick: tuple[Any, ...] = ()
        self._looked = self._cost = 0.0
        self._changes = 0
        self._tried: set[int] = set()
        self._lock: int | None = None
        self._where, self._limit = "memory", 0

    # --- may it be? ------------------------------------------------------------------------

    def probe(self) -> Probed:
        """Look at some items, once; in a forked copy of this process."""
        if self.probed is None:
            self.probed = self._probe()
        return self.probed

    def _probe(self) -> Probed:
        if not supported():
            return Probed((), 0.0, "this system can't share memory between processes as needed")
        try:
            count = len(self.dataset)
            indices = random.Random(count).sample(range(count), min(_SAMPLE, count))
            if not indices:
                return Probed((), 0.0, "the dataset is empty")
            return elsewhere(lambda: _looked(self.dataset, indices))
        except Exception as error:
            return Probed((), 0.0, f"items can't be looked at: {error}")

    def facts(self) -> ItemFacts:
        """What keeping would take and give."""
        probed, count = self.probe(), len(self.dataset)
        if not probed.options:
            return ItemFacts(probed.reason)
        option = choose(probed.options, count, self.room)
        persistent = option.checked and bool(key_of(self.dataset, option.recipe)[0])
        return ItemFacts(
            refused="",
            keep=option.recipe.text,
            item_bytes=option.item_bytes,
            total_bytes=option.item_bytes * count,
            seconds=probed.seconds,
            kept_seconds=option.seconds,
            persistent=persistent,
            room=self.room,
        )

    @property
    def room(self) -> int:
        """Bytes of memory that items may take."""
        return int(_SHARE * free_memory())

    def begin(self, where: str, limit: int | None) -> str:
        """Keep items from now on.

        Args:
            where: "memory", or "file" to find them again in later runs, where that is safe.
            limit: bytes at most; None: a share of what is free.

        Returns:
            Why it can't be; empty: it can.
        """
        if self._items is not None or self.trouble:
            return self.trouble
        probed = self.probe()
        if not probed.options:
            self.trouble = probed.reason
            return self.trouble
        self._where = where
        self._limit = min(limit, self.room) if limit is not None else self.room
        self.option = self._kept_before(probed) or choose(
            probed.options, len(self.dataset), self._limit
        )
        try:
            self._start()
        except OSError as error:
            self.trouble = f"there is no room for items: {error}"
        return self.trouble

    def _kept_before(self, probed: Probed) -> Option | None:
        """The option under which an earlier run has kept items: times choose anew each time."""
        kept = {entry.key for entry in cache_folder.entries()} if self._where == "file" else set()
        count = len(self.dataset)
        for option in probed.options if kept else ():
            fits = option.checked and option.item_bytes * count <= self._limit
            if fits and key_of(self.dataset, option.recipe)[0] in kept:
                return option
        return None

    def _start(self) -> None:
        assert self.option is not None
        self._mark, why = fingerprint(self.dataset)
        if self._mark is None:
            self.trouble = f"whether the dataset changes can't be told: {why}"
            return
        self._quick, self._looked = quick(self.dataset), time.monotonic()
        self._tried = set()
        known = folder_of(self.dataset) is not None
        stamp = FolderStamp(self.dataset) if known else plain_stamp
        store = self._store()
        self._items = Items(self.dataset, self.option.recipe, store, self.counters, stamp)

    def _store(self) -> Store:
        assert self.option is not None
        count = len(self.dataset)
        # A little more than the sample says, and whole chunks for each process that writes.
        wanted = int(1.25 * self.option.item_bytes * count) + 64 * MIB
        if self._where == "file" and self.option.checked and not self._changes:
            key, _ = key_of(self.dataset, self.option.recipe)
            if key:
                with contextlib.suppress(OSError):
                    return self._file_store(key, count, wanted)
        size = Store.size_for(count, min(wanted, self._limit))
        return Store(Region.anonymous(size), count, memory=True)

    def _file_store(self, key: str, count: int, wanted: int) -> Store:
        folder = folder_of(self.dataset)
        assert folder is not None and self.option is not None
        what = f"{folder.root}: {count} items, {self.option.recipe.text}"
        path, room, self._lock = cache_folder.claim(key, what, wanted)
        size = max(Store.size_for(count, room), path.stat().st_size if path.exists() else 0)
        store = Store(Region.file(path, size), count, memory=False)
        self.persistent = True
        return store

    # --- in force --------------------------------------------------------------------------

    def dressed(self, workers: int) -> Any:
        """What a pool that starts now gets for its dataset."""
        items = self._fresh(whole=True)
        if items is None:
            return self.dataset
        return CachedDataset(self.dataset, items, None if workers else self._renew)

    def _renew(self) -> Items | None:
        return self._fresh(whole=False)

    def _fresh(self, whole: bool) -> Items | None:
        """The items of the dataset as it is now."""
        if self._items is None or self.trouble:
            return None
        if self._items.trouble:
            self.trouble = self._items.trouble
            return None
        now = time.monotonic()
        due = whole or now - self._looked > self._cost / _LOOKING
        seen = quick(self.dataset)
        if seen == self._quick and not due:
            return self._items
        mark, _ = fingerprint(self.dataset)
        self._looked = time.monotonic()
        self._cost, self._quick = self._looked - now, seen
        if mark != self._mark:
            self._changed()
        return self._items if not self.trouble else None

    def _changed(self) -> None:
        self._changes += 1
        if self._changes > _CHANGES:
            self.trouble = "the script changes its dataset as it goes"
            return
        try:
            self._start()  # workers of older pools go on with the older items, as in plain Python
        except OSError as error:
            self.trouble = f"there is no room for items: {error}"

    @property
    def items(self) -> Items | None:
        """Those that are kept now."""
        return self._items

    def fill(self, indices: Iterable[Any], processes: int) -> int:
        """Compute and keep items, in forked copies of this process.

        Args:
            indices: of the items; those that are kept already are passed over.
            processes: copies at a time.

        Returns:
            How many were missing; one that couldn't be kept is not tried again.
        """
        items = self._fresh(whole=False)
        if items is None:
            return 0
        new = [i for i in dict.fromkeys(indices) if type(i) is int and i not in self._tried]
        missing = [index for index in new if _lacks(items, index)]
        self._tried.update(new)
        parts = [missing[n::processes] for n in range(min(processes, len(missing)))]
        if parts and not all_elsewhere([_filling(items, part) for part in parts]):
            self.trouble = "items can't be kept ahead of their turn: a process failed or hung"
        return len(missing)

    def close(self) -> None:
        """Let go of what was kept; pools that live on keep their own hold of it."""
        self._items = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lacks(items: Items, index: int) -> bool:
    if not 0 <= index < items.store.items:
        return False
    stamp = items.stamp(index)
    return stamp is not None and not items.store.has(index, stamp)


def _filling(items: Items, indices: Sequence[int]) -> Any:
    def work() -> None:
        torch.set_num_threads(1)  # as in a worker; threads of the parent don't exist here
        for index in indices:
            items.fill(index)

    return work


def _looked(dataset: Any, indices: Sequence[int]) -> Probed:
    torch.set_num_threads(1)
    return look(dataset, indices)


def quick(dataset: Any) -> tuple[Any, ...]:
    """What can be compared in microseconds: which objects the attributes hold."""
    seen: list[Any] = []
    for layer in layers(dataset):
        for name, value in getattr(layer, "__dict__", {}).items():
            plain = isinstance(value, (int, float, str, bool))
            seen.append((name, value if plain else id(value)))
    return tuple(seen)
