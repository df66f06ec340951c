"""What a loader is, in plain data."""

from __future__ import annotations

import multiprocessing
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from hasten.instrument.seams.loader_whole import why_not
from hasten.records import LoaderFacts


def describe(loader: DataLoader[Any], not_owned_because: str | None, samples: int) -> LoaderFacts:
    """The facts of a loader as the script built it."""
    custom = loader.batch_sampler if loader.batch_size is None else None
    sampler = getattr(custom, "sampler", None) or (custom if custom is not None else loader.sampler)
    iterable = isinstance(loader.dataset, IterableDataset)
    return LoaderFacts(
        kind="iterable" if iterable else "map",
        dataset=type(loader.dataset).__name__,
        batch_size=loader.batch_size or getattr(custom, "batch_size", None),
        # len() of a loader over an IterableDataset makes torch warn at later batches
        length=None if iterable else length_of(loader),
        workers=loader.num_workers,
        prefetch=loader.prefetch_factor,
        persistent=loader.persistent_workers,
        shuffled=not iterable and not isinstance(sampler, SequentialSampler),
        collate=_name(loader.collate_fn),
        sampler=_sampler(sampler, custom),
        start_method=start_method(loader),
        owned=not_owned_because is None,
        not_owned_because=not_owned_because,
        dataset_items=None if iterable else length_of(loader.dataset),
        samples_seen=samples,
        pinned=bool(loader.pin_memory),
        one_by_one="an IterableDataset has no indices" if iterable else why_not(loader),
    )


def start_method(loader: DataLoader[Any]) -> str | None:
    """How its workers would be started: fork, spawn or forkserver."""
    context = loader.multiprocessing_context or multiprocessing
    method: str | None = context.get_start_method(allow_none=True)
    # Asking for the default would fix it, and a later set_start_method would fail.
    return method or multiprocessing.get_all_start_methods()[0]


def length_of(thing: Any) -> int | None:
    """Its length; None where it has none, or can't tell."""
    try:
        return len(thing)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _sampler(sampler: Any, custom: Any) -> str:
    """The class that decides on the order, told apart where it also puts batches together."""
    if custom is None or type(custom) is BatchSampler:
        return type(sampler if custom is None else custom).__name__
    return f"{type(custom).__name__} (batch sampler)"


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
