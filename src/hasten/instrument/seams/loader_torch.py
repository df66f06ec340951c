"""The private parts of torch's DataLoader that hasten relies on, and copies of a loader.

`missing` checks that this version of torch has them all; where it doesn't, loaders are watched
but not owned. Nothing outside the `loader_*` modules knows these names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, MapDataPipe, dataloader
from torch.utils.data.dataloader import _BaseDataLoaderIter

_OFFSET = 0x9E3779B97F4A7C15  # odd and without pattern, so that n * _OFFSET never repeats

#: Attributes of classes, and what their methods must mention in order to work as relied on.
_CLASSES: dict[str, tuple[str, ...]] = {
    "DataLoader": ("_get_iterator", "_index_sampler", "_auto_collation"),
    "_BaseDataLoaderIter": ("_reset", "_next_data", "_next_index"),
    "_SingleProcessDataLoaderIter": ("_next_data",),
    "_MultiProcessingDataLoaderIter": ("_reset", "_try_put_index", "_shutdown_workers"),
}
_MENTIONED: dict[tuple[str, str], tuple[str, ...]] = {
    ("_BaseDataLoaderIter", "__init__"): ("_sampler_iter", "_index_sampler", "random_"),
    ("_MultiProcessingDataLoaderIter", "__init__"): ("_data_queue", "_workers"),
    ("_MultiProcessingDataLoaderIter", "_reset"): ("_task_info", "_prefetch_factor"),
    ("_MultiProcessingDataLoaderIter", "_try_put_index"): ("_next_index", "StopIteration"),
}

#: What torch's iterators read from a loader. A subclass may compute some of them.
_READ = (
    "dataset", "sampler", "batch_sampler", "drop_last", "pin_memory", "pin_memory_device",
    "timeout", "collate_fn", "worker_init_fn", "generator", "in_order", "_dataset_kind",
    "_IterableDataset_len_called",
)  # fmt: skip

#: A subclass that overrides one of these makes its own iterators or its own index stream.
_OVERRIDES = ("_get_iterator", "_index_sampler", "_auto_collation")


#: Of a pool: worker processes, batches ahead for each, whether items are kept, and fetched at once.
Key = tuple[int, "int | None", bool, bool]


@dataclass(frozen=True)
class Config:
    """How a loader fetches: worker processes, batches ahead for each, pool kept over epochs.

    `cached`: items are kept once they are computed; `whole`: those of a batch are fetched at once.
    """

    workers: int
    prefetch: int | None
    persistent: bool
    cached: bool = False
    whole: bool = False

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> Config:
        """What the script asked for."""
        return cls.normal(loader.num_workers, loader.prefetch_factor, loader.persistent_workers)

    @classmethod
    def normal(cls, workers: int, prefetch: int | None, persistent: bool) -> Config:
        """Without meaningless differences: torch's default prefetch, none for no workers."""
        return cls(workers, prefetch or 2, persistent) if workers else cls(0, None, False)

    @property
    def key(self) -> Key:
        """What makes two pools interchangeable within an epoch."""
        return self.workers, self.prefetch, self.cached, self.whole

    @property
    def capacity(self) -> int:
        """Batches that are on their way at most."""
        return self.workers * (self.prefetch or 0)


@cache
def missing() -> str | None:
    """What this torch lacks of all that is relied on, in one line; None: nothing."""
    for name, attributes in _CLASSES.items():
        owner = getattr(dataloader, name, None)
        for attribute in attributes:
            if not hasattr(owner, attribute):
                return f"torch {torch.__version__} has no {name}.{attribute}"
    for (name, method), words in _MENTIONED.items():
        code = getattr(getattr(dataloader, name), method).__code__
        for word in words:
            if word not in code.co_names:
                return f"torch {torch.__version__} has no {word} in {name}.{method}"
    return None


def why_not_owned(loader: DataLoader[Any]) -> str | None:
    """Why the index stream of this loader cannot be ours, in one line; None: it can."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return "its dataset is an IterableDataset: there is no index stream to own"
    if isinstance(dataset, MapDataPipe):
        return "its dataset is a data pipe, which torch shards by the number of workers"
    if getattr(loader, "in_order", True) is False:
        return "in_order=False: its batches come in any order"
    for name in _OVERRIDES:
        if getattr(type(loader), name) is not getattr(DataLoader, name):
            return f"its class {type(loader).__name__} overrides {name}"
    return missing()


def shadow(
    loader: DataLoader[Any],
    config: Config,
    feed: Any,
    generator: torch.Generator | None,
    persistent: bool | None = None,
) -> DataLoader[Any]:
    """A loader like `loader` that takes its indices from `feed`.

    It is a plain DataLoader, whatever the script's class: a `__del__` or `__setattr__` of a
    subclass must not run for it.

    Args:
        loader: the script's.
        config: workers and prefetch factor to use instead.
        feed: an iterable of index batches (of indices, where the loader doesn't collate).
        generator: where the base seed of the workers is drawn.
        persistent: whether torch leaves the pool alive at the end; None: as in `config`.
    """
    copy: DataLoader[Any] = object.__new__(DataLoader)
    state = copy.__dict__
    state.update(vars(loader))
    state.update({name: getattr(loader, name) for name in _READ if hasattr(loader, name)})
    state.update(num_workers=config.workers, prefetch_factor=config.prefetch, _iterator=None)
    state["persistent_workers"] = config.persistent if persistent is None else persistent
    state["batch_sampler" if loader._auto_collation else "sampler"] = feed
    state["generator"] = generator
    if loader.num_workers and not config.workers:  # torch refuses a timeout without workers
        state["timeout"] = 0
    return copy


def remember(loader: DataLoader[Any], iterator: Any) -> None:
    """Put `iterator` where torch keeps that of persistent workers."""
    loader._iterator = iterator


def quietly(copy: DataLoader[Any]) -> _BaseDataLoaderIter:
    """The iterator of a shadow, without torch's advice on the number of workers."""
    kind: Callable[[DataLoader[Any]], _BaseDataLoaderIter] = (
        dataloader._MultiProcessingDataLoaderIter
        if copy.num_workers
        else dataloader._SingleProcessDataLoaderIter
    )
    return kind(copy)


class Seeds:
    """Base seeds for pools that hasten makes, which leave the script's random state alone.

    The first one is the very seed that the script's own pool would have had, so that a change of
    the prefetch factor alone keeps every bit; later ones are derived from it.

    Attributes:
        base: the seed that torch would have drawn.
    """

    def __init__(self, generator: torch.Generator | None) -> None:
        """Draw from `generator` (None: the global one) as a new iterator of torch would."""
        source = torch.default_generator if generator is None else generator
        self._state: torch.Tensor | None = source.get_state()
        self.base = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
        self._made = 0

    @classmethod
    def after(cls, base: int) -> Seeds:
        """Seeds for further pools, when torch itself has drawn `base` for the first one."""
        seeds = object.__new__(cls)
        seeds._state, seeds.base, seeds._made = None, base, 0
        return seeds

    def generator(self) -> torch.Generator:
        """A generator from which the next pool's base seed can be drawn."""
        generator = torch.Generator()
        if self._state is not None:
            generator.set_state(self._state)
            self._state = None
        else:
            self._made += 1
            generator.manual_seed((self.base + self._made * _OFFSET) % 2**63)
        return generator
