"""Are items equal to the bit with and without keeping them, and is what follows them?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hasten.environment import MIB
from hasten.instrument.seams.cache_items import Counters, Items, plain_stamp
from hasten.instrument.seams.cache_pipeline import Recipe
from hasten.instrument.seams.cache_probe import seed
from hasten.instrument.seams.cache_region import Region
from hasten.instrument.seams.cache_store import Store
from hasten.instrument.seams.loader_batches import difference, leaves
from hasten.instrument.seams.loader_random import random_states

_ITEMS = 64  # are compared at most


@dataclass(frozen=True)
class Compared:
    """What comparing items has shown.

    Attributes:
        worst: the first item and value that differs; empty: none.
        items: that were compared.
        hits: of them that came from what was kept.
    """

    worst: str
    items: int
    hits: int


def compare(dataset: Any, recipe: Recipe, indices: Sequence[int]) -> Compared:
    """Fetch items plainly, while they are kept, and from what was kept; all at the same seeds.

    Runs in a process that is thrown away afterwards.
    """
    count = len(dataset)
    store = Store(Region.anonymous(Store.size_for(count, 1024 * MIB)), count, memory=True)
    items = Items(dataset, recipe, store, Counters(), plain_stamp)
    chosen = list(dict.fromkeys(i for i in indices if type(i) is int))[:_ITEMS]
    for index in chosen:
        plain = _fetched(lambda i: dataset[i], index)
        for how in ("while it is kept", "from what was kept"):
            if (path := _difference(plain, _fetched(items.fetch, index))) is not None:
                return Compared(f"item {index} {how}: {path}", len(chosen), 0)
    return Compared("", len(chosen), items.counters.read()[0])


def _fetched(fetch: Any, index: int) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    seed(index + 1)
    return list(leaves(fetch(index))), random_states()


def _difference(one: Any, other: Any) -> str | None:
    path = difference(one[0], other[0])
    if path is None and one[1] != other[1]:
        return "the random state after it"
    return path
