"""Items of one dataset, kept once they are computed: what every process that fetches does.

Where an item is there, the script gets a new object made of its bytes, and what is random in it
is drawn now, as ever. Where it isn't, it is computed exactly as the script would have, and kept
if computing the part that is kept has moved no random state.
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from hasten.instrument.seams.cache_codec import HOLE, Unstorable, decode, encode
from hasten.instrument.seams.cache_pipeline import (
    Hook,
    Recipe,
    Split,
    filled,
    holes,
    inner_index,
    twin,
)
from hasten.instrument.seams.cache_region import Region
from hasten.instrument.seams.cache_store import Store
from hasten.instrument.seams.loader_batches import Incomparable, difference, leaves
from hasten.instrument.seams.loader_random import random_states

#: The size and time of an item's file, in one number; None: it can't be told now.
Stamp = Callable[[int], "int | None"]

_LANES = 256  # of counters: a process adds to its own, so that nothing needs a lock
_COUNTERS = struct.Struct("<4Q")
_TWICE = 32  # whole items that a process fetches twice, and after those ...
_THEN = 16  # ... one in so many


class Counters:
    """What was counted by all processes together: hits, misses, kept, nanoseconds of keeping."""

    def __init__(self) -> None:
        self._region = Region.anonymous(_LANES * _COUNTERS.size)
        # Written once, so that there is memory behind it.
        self._region.write([bytes(self._region.size)], 0)

    def add(self, hits: int, misses: int, kept: int, nanoseconds: int) -> None:
        """Count in this process."""
        start = os.getpid() % _LANES * _COUNTERS.size
        now = _COUNTERS.unpack_from(self._region.view, start)
        more = (hits, misses, kept, nanoseconds)
        _COUNTERS.pack_into(
            self._region.view, start, *(a + b for a, b in zip(now, more, strict=True))
        )

    def read(self) -> tuple[int, int, int, int]:
        """The sums over all processes."""
        lanes = list(_COUNTERS.iter_unpack(self._region.view))
        hits, misses, kept, nanoseconds = (sum(column) for column in zip(*lanes, strict=True))
        return hits, misses, kept, nanoseconds

    def close(self) -> None:
        """Let go of them in this process."""
        self._region.close()


def plain_stamp(index: int) -> int | None:
    """Of items whose file isn't known."""
    return 1


class FolderStamp:
    """Of items of torchvision's folders: path, size, time of change and class of each file."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(self, index: int) -> int | None:
        """The stamp of an item now."""
        found = inner_index(self._dataset, index)
        if found is None:
            return None
        path, target = found[0].samples[found[1]]
        try:
            status = os.stat(path)
        except OSError:
            return None
        text = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{target}"
        digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return int.from_bytes(digest, "little")


class Items:
    """The items of one dataset, in its present state.

    Attributes:
        dataset: the script's.
        recipe: what is kept of an item.
        store: where.
        counters: of all processes.
        stamp: tells whether an item's file has changed.
        trouble: why this process keeps nothing any more; empty: it does.
    """

    def __init__(
        self, dataset: Any, recipe: Recipe, store: Store, counters: Counters, stamp: Stamp
    ) -> None:
        self.dataset, self.recipe, self.store = dataset, recipe, store
        self.counters, self.stamp, self.trouble = counters, stamp, ""
        self._split = None if recipe.place is None else Split(dataset, recipe)
        self._hook = Hook()
        self._twin = None if recipe.place is None else twin(dataset, recipe.place.path, self._hook)
        self._fetched = 0

    def fetch(self, index: Any) -> Any:
        """What `dataset[index]` would have given."""
        # Only plain numbers: what else a dataset may take for an index is for itself to say.
        if type(index) is not int or not 0 <= index < self.store.items or self.trouble:
            return self.dataset[index]
        stamp = self.stamp(index)
        if stamp is None:
            return self.dataset[index]
        data = self.store.read(index, stamp)
        if data is None:
            return self._miss(index, stamp)
        try:
            value = decode(data)
        except (Unstorable, ValueError, struct.error) as error:
            self.trouble = f"a kept item can't be read: {error}"
            return self.dataset[index]
        self.counters.add(1, 0, 0, 0)
        return self._whole(value)

    def fetch_all(self, indices: Sequence[Any]) -> list[Any]:
        """The items of a batch; what is missing at once, where the dataset fetches several."""
        made: dict[int, Any] = {}
        if self._split is None and getattr(self.dataset, "__getitems__", None):
            made = self._miss_several([i for i in dict.fromkeys(indices) if self._lacks(i)])
        return [made.pop(i) if i in made else self.fetch(i) for i in indices]

    def _lacks(self, index: Any) -> bool:
        if type(index) is not int or not 0 <= index < self.store.items or self.trouble:
            return False
        stamp = self.stamp(index)
        return stamp is not None and not self.store.has(index, stamp)

    def fill(self, index: int) -> None:
        """Keep an item that nobody asks for yet; for a process that is thrown away afterwards."""
        stamp = self.stamp(index) if 0 <= index < self.store.items else None
        if stamp is not None and not self.store.has(index, stamp):
            self._miss(index, stamp, finish=False)

    def _whole(self, value: Any) -> Any:
        if self._split is None:
            return value
        shape, kept = value
        return filled(shape, self._split.finish(kept))

    # --- an item that isn't there ----------------------------------------------------------

    def _miss(self, index: int, stamp: int, finish: bool = True) -> Any:
        before = random_states()
        if self._split is None:
            item = self.dataset[index]
            if random_states() == before and self._steady(index, item):
                self._keep(index, stamp, item)
            return item
        made = self._made(index, before)
        if made is None:
            return self.dataset[index] if finish else None
        shape, kept = made
        if random_states() == before:
            self._keep(index, stamp, made)
        else:
            self.counters.add(0, 1, 0, 0)
        return filled(shape, self._split.finish(kept)) if finish else None

    def _miss_several(self, indices: list[int]) -> dict[int, Any]:
        if len(indices) < 2:
            return {}
        before, items = random_states(), self.dataset.__getitems__(indices)
        if type(items) is not list or len(items) != len(indices):
            self.trouble = "its __getitems__ gives no list of items"
            return {}
        still = random_states() == before
        for index, item in zip(indices, items, strict=True):
            stamp = self.stamp(index)
            if still and stamp is not None and not self.trouble and self._steady(index, item):
                self._keep(index, stamp, item)
        return dict(zip(indices, items, strict=True))

    def _made(self, index: int, before: dict[str, Any]) -> tuple[Any, Any] | None:
        """An item with a hole, and what goes into it; None: it isn't made like that."""
        assert self._split is not None and self._twin is not None
        self._hook.calls.clear()
        try:
            shape = self._twin[index]
            calls = list(self._hook.calls)
        except Exception:  # the dataset itself will say what is wrong with it
            calls = []
        moved = random_states() != before
        if not moved and len(calls) == 1 and holes(shape) == 1 and self._takes(calls[0]):
            return shape, self._split.keep(calls[0])
        put_back(before)
        self.counters.add(0, 1, 0, 0)
        return None

    def _takes(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
        assert self._split is not None
        return self._split.whole or (len(call[0]) == 1 and not call[1])

    def _keep(self, index: int, stamp: int, value: Any) -> None:
        begun = time.perf_counter_ns()
        try:
            kept = self.store.write(index, stamp, encode(value))
        except Unstorable:
            kept = False
        self.counters.add(0, 1, kept, time.perf_counter_ns() - begun)

    def _steady(self, index: int, item: Any) -> bool:
        """Whether a whole item is the same when it is fetched again: tried on many, not on all."""
        self._fetched += 1
        if self._fetched > _TWICE and self._fetched % _THEN:
            return True
        if same(item, self.dataset[index]):
            return True
        self.trouble = "an item fetched twice differs"
        return False


def same(one: Any, other: Any) -> bool:
    """Whether two items are equal to the bit."""
    try:
        return difference(list(leaves(one)), list(leaves(other))) is None
    except Incomparable:
        return False


def put_back(states: dict[str, Any]) -> None:
    """Put the global random states back to what `random_states` gave."""
    torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))
    random.setstate(states["random"])
    kind, keys, *rest = states["numpy"]
    numpy.random.set_state((kind, numpy.frombuffer(keys, numpy.uint32), *rest))


__all__ = ["HOLE", "Counters", "FolderStamp", "Items", "plain_stamp", "put_back", "same"]
