"""Item seeds: what is random in an item comes from seed, epoch and index, whoever fetches it.

In plain PyTorch an item draws from the random state of the process that happens to fetch it, so
another number of workers makes other augmentations. Here each index travels with a key, and
before an item is fetched the states of Python, numpy and torch are set from the key and the index.
Before a batch is put together they are set once more, for a collate function that draws. Where
items are fetched in the script's own process its states are put back afterwards: so the model's
dropout doesn't depend on the number of workers either.

What can't be reached: generators that a dataset holds for itself, and those of accelerators.
"""

from __future__ import annotations

import hashlib
import operator
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch.utils.data import DataLoader

from hasten.instrument import patching
from hasten.instrument.seams.loader_facts import length_of
from hasten.instrument.seams.loader_random import preserved
from hasten.instrument.seams.stand_in import StandIn, several

_COLLATE = "collate"


class Key(NamedTuple):
    """What the random states of one batch's items come from, besides their indices.

    `draw` tells batches apart where a sampler may draw an index twice in an epoch; else it is 0.
    """

    seed: int
    epoch: int
    draw: int


class Tagged(NamedTuple):
    """An index batch (one index, where the loader doesn't collate) with its key."""

    index: Any
    key: Key


class SeededItems(list[Any]):
    """The items of one batch, and the seed for putting them together."""

    seed = 0


class SeededDataset(StandIn):
    """Items of a dataset at random states of their own."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)

    def __getitem__(self, index: Any) -> Any:
        dataset = self._all()[0]
        if type(index) is not Tagged:
            return dataset[index]
        with preserved():
            put(seed_of(index.key, index.index, 0))
            return dataset[index.index]

    def __getitems__(self, indices: Any) -> Any:
        dataset = self._all()[0]
        if type(indices) is not Tagged:
            return several(dataset, indices)
        items, key = SeededItems(), indices.key
        with preserved():
            for place, index in enumerate(indices.index):
                put(seed_of(key, index, place if key.draw else 0))
                items += several(dataset, [index])
        items.seed = seed_of(key, _COLLATE, *indices.index)
        return items

    def __reduce_ex__(self, protocol: Any) -> Any:
        return SeededDataset, (self._all()[0],)


class SeededCollate:
    """Puts items together at a random state of the batch's own."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, items: Any) -> Any:
        if type(items) is not SeededItems:
            return self._collate(items)
        with preserved():
            put(items.seed)
            return self._collate(list(items))


class ItemSeeds:
    """Whether items are seeded in this process, and the epochs that were begun.

    Attributes:
        on: they are, from the next epoch of each loader on.
    """

    def __init__(self) -> None:
        self.on = False
        self._epochs: Counter[Any] = Counter()

    def begin(self, loader: DataLoader[Any]) -> Key | None:
        """The key of an epoch that begins now; None: items are fetched as ever.

        Nothing is drawn: the seed is the one that the generator was last given. A script may
        build its loader and dataset anew for each epoch, so these are counted by what they are.
        """
        if not self.on:
            return None
        generator = torch.default_generator if loader.generator is None else loader.generator
        epoch = self._epochs[what := _kind(loader)]
        self._epochs[what] += 1
        return Key(generator.initial_seed(), epoch, 0)

    def sample(self, loader: DataLoader[Any]) -> Key | None:
        """A key for items that are only looked at."""
        return Key(1, self._epochs[_kind(loader)], 0) if self.on else None

    def dress(self, copy: DataLoader[Any]) -> None:
        """Give a copy of a loader, from which a pool starts now, items that are seeded."""
        if self.on:
            copy.__dict__["dataset"] = SeededDataset(copy.dataset)
            copy.__dict__["collate_fn"] = SeededCollate(copy.collate_fn)


def _kind(loader: DataLoader[Any]) -> tuple[str, int | None]:
    return type(loader.dataset).__qualname__, length_of(loader.dataset)


def may_repeat(sampler: Any) -> bool:
    """Whether a sampler, or the one in a batch sampler, may give an index twice in an epoch."""
    inner = getattr(sampler, "sampler", None)
    return bool(getattr(sampler, "replacement", False) or getattr(inner, "replacement", False))


def seed_of(key: Key, *what: Any) -> int:
    """A seed of 64 bits from a key, indices and whatever else tells items apart."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (*key, *what):
        digest.update(_plain(part).encode("utf-8", "surrogateescape") + b"\0")
    return int.from_bytes(digest.digest(), "little")


def _plain(part: Any) -> str:
    """The same for the same index, whatever type of whole number it is."""
    try:
        return str(operator.index(part))
    except TypeError:
        return repr(part)


def put(seed: int) -> None:
    """Set the global random states of Python, numpy and torch (of the CPU)."""
    # Python and numpy have the same generator: the third word keeps their streams apart.
    words: Sequence[int] = (seed & 0xFFFFFFFF, seed >> 32, 1)
    # Not what a verification has put in their place: spawned workers don't have it.
    patching.original(random, "seed")(seed)
    patching.original(numpy.random, "seed")(words)
    torch.default_generator.manual_seed(seed)
