"""One loader's side of fetching all items of a batch at once, where a dataset's items are rows."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import DataLoader, default_collate

from hasten.errors import HastenError
from hasten.instrument.seams.loader_batches import difference, leaves
from hasten.instrument.seams.loader_fork import elsewhere
from hasten.instrument.seams.loader_random import random_states
from hasten.instrument.seams.loader_torch import Config
from hasten.instrument.seams.rows import NotRows, Recipe, recognise
from hasten.instrument.seams.stand_in import StandIn, several

if TYPE_CHECKING:
    from hasten.instrument.seams.loader import OwnedLoader

_PROVEN = 3  # batches that are compared


class Fetched(NamedTuple):
    """A batch that is put together already."""

    batch: Any


class WholeDataset(StandIn):
    """A dataset that gives whole batches where that works, and its items where it doesn't."""

    def __init__(self, dataset: Any, recipe: Recipe) -> None:
        super().__init__(dataset, recipe)

    def __getitem__(self, index: Any) -> Any:
        return self._all()[0][index]

    def __getitems__(self, indices: Any) -> Any:
        dataset, recipe = self._all()
        try:
            return Fetched(recipe.batch(dataset, indices))
        except NotRows:  # nothing has been drawn or changed: the script's own way comes next
            return several(dataset, indices)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return WholeDataset, self._all()


class WholeCollate:
    """Leaves alone what is put together already."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, items: Any) -> Any:
        return items.batch if type(items) is Fetched else self._collate(items)


def why_not(loader: DataLoader[Any]) -> str:
    """Why batches of a loader can't be fetched at once; empty: they can."""
    try:
        _recipe(loader)
    except NotRows as reason:
        return str(reason)
    return ""


def _recipe(loader: DataLoader[Any]) -> Recipe:
    if not loader._auto_collation:
        raise NotRows("its batches aren't put together by torch")
    if loader.collate_fn is not default_collate:
        raise NotRows("it has a collate function of its own")
    return recognise(loader.dataset)


class WholeBatches:
    """Fetching whole batches. It satisfies `optimisations.base.WholeSeam`."""

    def __init__(self, owned: OwnedLoader, changed: Callable[[], None]) -> None:
        self._owned = weakref.ref(owned)
        self._changed = weakref.WeakMethod(changed)
        self._recipe: Recipe | None = None

    # --- for the optimisation ----------------------------------------------------------------

    def set(self, on: bool) -> None:
        """Fetch whole batches from the next one on; False: as the script has it.

        Raises:
            HastenError: the index stream of this loader isn't ours, or its items aren't rows.
        """
        own = self._own
        if on and own.reason is not None:
            raise HastenError(f"batches of this loader can't be fetched: {own.reason}", 3)
        try:
            self._recipe = _recipe(own.loader) if on else None
        except NotRows as reason:
            raise HastenError(f"batches can't be fetched at once: {reason}", 3) from None
        changed = self._changed()
        if changed is not None:
            changed()

    @property
    def trouble(self) -> str:
        """Why items are fetched one by one; empty: they aren't."""
        own = self._own
        if self._recipe is None:
            return "items are fetched one by one"
        if own.items.seeds.on:
            return "items are seeded one by one"
        try:
            if own.recent:
                self._recipe.batch(own.loader.dataset, own.recent[-1])
        except NotRows as reason:
            return str(reason)
        return ""

    # --- for the conductor -------------------------------------------------------------------

    def prove(self) -> str:
        """Compare the next batches with those of items, in a forked copy.

        Returns:
            What differs, or why nothing could be compared; empty: they are equal to the bit.
        """
        loader = self._own.loader
        try:
            recipe = _recipe(loader)
        except NotRows as reason:
            return str(reason)
        upcoming, _ = self._own.upcoming(_PROVEN)
        batches = [list(batch) for batch in upcoming or list(self._own.recent)]
        if not batches:
            return "no batch to compare"
        try:
            return elsewhere(lambda: compare(loader, recipe, batches))
        except RuntimeError as error:
            return str(error)

    # --- for the loader ----------------------------------------------------------------------

    def target(self, wanted: Config | None) -> Config | None:
        """How to fetch, when `wanted` is what else is wanted; None: as the baseline."""
        if self._recipe is None or self._own.items.seeds.on:
            return wanted
        return replace(wanted or self._own.baseline(self._own.loader), whole=True)

    def dress(self, copy: DataLoader[Any], config: Config) -> None:
        """Give a copy of the loader, from which a pool starts now, a dataset of whole batches."""
        if config.whole and self._recipe is not None:
            copy.__dict__["dataset"] = WholeDataset(copy.dataset, self._recipe)
            copy.__dict__["collate_fn"] = WholeCollate(copy.collate_fn)

    @property
    def _own(self) -> OwnedLoader:
        owned = self._owned()
        assert owned is not None
        return owned


def compare(loader: DataLoader[Any], recipe: Recipe, batches: list[list[Any]]) -> str:
    """What differs between batches of items and whole ones; empty: nothing."""
    for place, indices in enumerate(batches):
        before = random_states()
        plain = list(leaves(loader.collate_fn(several(loader.dataset, indices))))
        if random_states() != before:
            return "items draw from the random state"
        try:
            whole = list(leaves(recipe.batch(loader.dataset, indices)))
        except NotRows as reason:
            return str(reason)
        if (path := difference(plain, whole)) is not None:
            return f"batch {place}: {path} differs"
    return ""
