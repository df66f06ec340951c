"""One loader's side of keeping items, and what all loaders of a process share of it."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from hasten.environment import MIB
from hasten.errors import HastenError
from hasten.instrument.seams.cache_proof import Compared, compare
from hasten.instrument.seams.loader_cache import ItemCache
from hasten.instrument.seams.loader_facts import describe
from hasten.instrument.seams.loader_fork import elsewhere
from hasten.instrument.seams.loader_seeded import ItemSeeds
from hasten.instrument.seams.loader_torch import Config
from hasten.records import ItemFacts, LoaderFacts

if TYPE_CHECKING:
    from hasten.instrument.seams.loader import OwnedLoader

#: What to keep: "store" ("memory" or "file") and "mib" (None: a share of what is free).
Wanted = dict[str, Any]

_PROVEN = 2  # batches whose items are compared


class Caches:
    """The item caches of a process, one a dataset.

    Attributes:
        files: whether items may be kept in files; never in a trial, which writes nothing.
        early: what to keep of loaders that `matches` from their first batch on.
        matches: tells the training loader by its facts.
        seeds: whether items draw from random states of their own.
    """

    def __init__(self) -> None:
        self.files = False
        self.early: Wanted | None = None
        self.matches: Callable[[LoaderFacts], bool] = lambda facts: False
        self.seeds = ItemSeeds()
        self._known: weakref.WeakValueDictionary[int, ItemCache] = weakref.WeakValueDictionary()
        self._last: ItemCache | None = None  # survives a loader that is built anew each epoch

    def of(self, dataset: Any) -> ItemCache:
        """The cache of this dataset, which it keeps alive."""
        cache = self._known.get(id(dataset))
        if cache is None or cache.dataset is not dataset:
            cache = self._known[id(dataset)] = ItemCache(dataset)
        self._last = cache
        return cache

    def born(self, owned: OwnedLoader) -> None:
        """A loader is about to be iterated for the first time; nothing is started for it yet."""
        if self.early is not None and self.matches(describe(owned.loader, None, 0)):
            owned.items.begin(self.early, early=True)

    def close(self) -> None:
        """Let go of everything that was kept."""
        for cache in list(self._known.values()):
            cache.close()
        self._last = None


class Keeping:
    """Keeping the items of one loader. It satisfies `optimisations.base.ItemsSeam`."""

    def __init__(self, owned: OwnedLoader, caches: Caches, changed: Callable[[], None]) -> None:
        self._owned = weakref.ref(owned)
        self._caches = caches
        self._changed = weakref.WeakMethod(changed)
        self._on = False
        self._from_birth = False
        self._hits = 0
        self._drew = False
        self.cache: ItemCache | None = None

    # --- for the optimisation ----------------------------------------------------------------

    def begin(self, wanted: Wanted, early: bool = False) -> None:
        """Keep items from the next batch on.

        Args:
            wanted: what to keep.
            early: nothing has been started for this loader yet, so that the script's own workers
                can keep items, too.

        Raises:
            HastenError: the index stream of this loader isn't ours.
        """
        loader = self._loader
        if self._own.reason is not None:
            raise HastenError(f"items of this loader can't be kept: {self._own.reason}", 3)
        self.cache = self._caches.of(loader.dataset)
        mib = wanted.get("mib")
        where = wanted.get("store", "memory") if self._caches.files else "memory"
        refused = self.cache.begin(where, None if mib is None else int(mib) * MIB)
        self._on = not refused
        self._from_birth = self._from_birth or (early and self._on)
        self._hits = self.cache.counters.read()[0]
        self._tell()

    def end(self) -> None:
        """Compute every item anew from the next batch on."""
        self._on = False
        self._tell()

    @property
    def trouble(self) -> str:
        """Why nothing is kept; empty: items are."""
        return self.cache.trouble if self.cache is not None else "nothing was begun"

    @property
    def hits(self) -> int:
        """Items that came from what was kept, since `begin`; of all processes."""
        return 0 if self.cache is None else self.cache.counters.read()[0] - self._hits

    # --- for the conductor -------------------------------------------------------------------

    def facts(self) -> ItemFacts:
        """What keeping the items would take and give; looks at a sample of them once."""
        if self._own.reason is not None:
            return ItemFacts(self._own.reason)
        return self._caches.of(self._loader.dataset).facts()

    def prove(self) -> Compared | str:
        """Compare the items of the next batches with and without, in a forked copy.

        Returns:
            What was seen, or why nothing could be.
        """
        cache = self._caches.of(self._loader.dataset)
        if refused := cache.begin("memory", None):
            return refused
        upcoming, _ = self._own.upcoming(_PROVEN)
        nested = upcoming if self._loader._auto_collation else [upcoming]
        indices = list(itertools.chain.from_iterable(nested)) or list(range(_PROVEN))
        option = cache.option
        assert option is not None
        try:
            return elsewhere(lambda: compare(cache.dataset, option.recipe, indices))
        except RuntimeError as error:
            return str(error)

    def filling(self) -> tuple[float, int]:
        """Seconds that keeping adds to an epoch, by what was kept so far, and items kept."""
        if self.cache is None:
            return 0.0, 0
        _, _, kept, nanoseconds = self.cache.counters.read()
        return nanoseconds / 1e9 / max(1, kept) * len(self.cache.dataset), kept

    # --- for the loader ----------------------------------------------------------------------

    def baseline(self, loader: DataLoader[Any]) -> Config:
        """How the loader fetches while nothing is configured."""
        return replace(Config.of(loader), cached=self._from_birth)

    def target(self, asked: Config | None) -> Config | None:
        """How to fetch, when `asked` is what is wanted of the workers; None: as the baseline."""
        if asked is None and self._on == self._from_birth:
            return None
        return replace(asked or Config.of(self._loader), cached=self._on)

    @property
    def seeds(self) -> ItemSeeds:
        """Whether items draw from random states of their own; shared by all loaders."""
        return self._caches.seeds

    def dress(self, copy: DataLoader[Any], config: Config) -> None:
        """Give a copy of the loader, from which a pool starts now, items as they are wanted."""
        if config.cached and self.cache is not None:
            copy.__dict__["dataset"] = self.cache.dressed(config.workers)
        self.seeds.dress(copy)

    def fill(self, batches: int, processes: int) -> int:
        """Compute and keep the items of the next batches, which are delivered later.

        Returns:
            How many items were missing.
        """
        if not self._on or self.cache is None or self.trouble or self._drew:
            return 0
        # A sampler that draws for every batch must not be asked ahead: draws would change places.
        upcoming, self._drew = self._own.upcoming(batches)
        indices: Iterable[Any] = upcoming
        if self._loader._auto_collation:
            indices = itertools.chain.from_iterable(upcoming)
        return self.cache.fill(indices, processes)

    def _tell(self) -> None:
        changed = self._changed()
        if changed is not None:
            changed()

    @property
    def _own(self) -> OwnedLoader:
        owned = self._owned()
        assert owned is not None
        return owned

    @property
    def _loader(self) -> DataLoader[Any]:
        return self._own.loader
