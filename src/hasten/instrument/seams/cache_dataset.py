"""What torch's fetchers get in place of the script's dataset while items are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hasten.instrument.seams.cache_items import Items
from hasten.instrument.seams.stand_in import StandIn, several


class CachedDataset(StandIn):
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
        super().__init__(dataset, items, renew)

    def _items(self) -> Items | None:
        _, items, renew = self._all()
        found: Items | None = items if renew is None else renew()
        return found

    def __getitem__(self, index: Any) -> Any:
        items = self._items()
        return self._all()[0][index] if items is None else items.fetch(index)

    def __getitems__(self, indices: Any) -> Any:
        items = self._items()
        if items is None:
            return several(self._all()[0], indices)
        return items.fetch_all(indices)

    def __reduce_ex__(self, protocol: Any) -> Any:
        dataset, items, _ = self._all()
        return CachedDataset, (dataset, items)
