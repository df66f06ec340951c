"""What torch's fetchers get in place of the script's dataset while items are kept.

It passes for the dataset: attributes are read from it and written to it, and `isinstance` says
what it says of the dataset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hasten.instrument.seams.cache_items import Items

_OWN = "_hasten_items"


class CachedDataset:
    """Items of a dataset, kept once they are computed."""

    def __init__(
        self, dataset: Any, items: Items, renew: Callable[[], Items | None] | None = None
    ) -> None:
        """Stand in for `dataset`.

        Args:
            dataset: the script's.
            items: those kept.
            renew: asked before every batch in the process of the script, which may change its
                dataset at any time: the items of its present state, or None when nothing is kept
                any more. Workers have a copy of the dataset that nobody changes.
        """
        object.__setattr__(self, _OWN, (dataset, items, renew))

    def _items(self) -> Items | None:
        _, items, renew = object.__getattribute__(self, _OWN)
        found: Items | None = items if renew is None else renew()
        return found

    def __getitem__(self, index: Any) -> Any:
        items = self._items()
        dataset = object.__getattribute__(self, _OWN)[0]
        return dataset[index] if items is None else items.fetch(index)

    def __getitems__(self, indices: Any) -> Any:
        items = self._items()
        if items is None:
            dataset = object.__getattribute__(self, _OWN)[0]
            if getattr(dataset, "__getitems__", None):
                return dataset.__getitems__(indices)
            return [dataset[index] for index in indices]
        return [items.fetch(index) for index in indices]

    def __len__(self) -> int:
        return len(object.__getattribute__(self, _OWN)[0])

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, _OWN)[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, _OWN)[0], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, _OWN)[0], name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(object.__getattribute__(self, _OWN)[0])

    def __reduce_ex__(self, protocol: Any) -> Any:
        dataset, items, _ = object.__getattribute__(self, _OWN)
        return CachedDataset, (dataset, items)
