"""Load batches in worker processes, in the number that is fastest here.

What it does
    Fetches batches in another number of worker processes, with another prefetch factor, and
    keeps workers over epochs (persistent) where starting them costs more than one percent of an
    epoch and the data set does not change between epochs.

Why it is faster
    Workers prepare the next batches while the model computes. Too many take cores from
    the model and memory from the machine; for data that is in memory already, passing batches
    between processes costs more than it saves.

When it helps
    Whenever the loop waits for data.

Numerics
    Class `exact` where items hold no randomness: the same batches in the same order. Where
    items draw random numbers, another worker count gives other draws: class `statistics`, which
    needs `--allow statistics`. With `--item-seeds` what is random in an item comes from seed, epoch
    and index instead, and the class is `exact` again.

Example
    DataLoader(dataset, batch_size=64, num_workers=4, persistent_workers=True)

Source
    PyTorch, "torch.utils.data", multi-process data loading; PyTorch performance tuning guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import BlockDone, Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment

_POOL_SHARE = 0.01  # of an epoch's time; a pool start above it is worth avoiding


class LoaderWorkers(Optimisation):
    """Worker count, prefetch factor and persistence of the training loader."""

    name: ClassVar[str] = "loader-workers"
    numerics: ClassVar[Numerics] = Numerics.EXACT
    fixes: ClassVar[tuple[str, ...]] = (
        "data-bound",
        "no-workers",
        "too-many-workers",
        "workers-recreated",
    )
    order: ClassVar[int] = 15
    warmup: ClassVar[int] = 2
    data_path: ClassVar[bool] = True
    needs: ClassVar[str] = "loader"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Other worker counts up to the cores that may be used."""
        loader = profile.loader
        if loader is None:
            return Applies(reason="the script trains without a DataLoader")
        if loader.kind == "iterable":
            return Applies(
                reason="an IterableDataset gives every item once a worker unless it is sharded"
            )
        if not loader.owned:
            return Applies(reason=loader.not_owned_because or "the loader can't be taken over")
        cores = environment.cores
        counts = [n for n in (cores, cores // 2, 1, 0) if 0 <= n != loader.workers]
        if cores > 4:
            counts.insert(1, cores // 4)
        values = [_value(n) for n in dict.fromkeys(counts)]
        return Applies(values=tuple(values))

    def refine(self, value: Value, block: BlockDone, profile: Profile) -> Value:
        """Keep the pool over epochs when its measured start is a large part of one."""
        epoch = profile.iterations_per_epoch
        if not value["workers"] or block.pool_seconds is None or not epoch:
            return value
        share = block.pool_seconds / (epoch * block.seconds / block.iterations)
        return {**value, "persistent": share > _POOL_SHARE}

    def enable(self, seams: Seams, value: Value) -> None:
        """Fetch in this way from the next batch on."""
        if seams.loader is not None:
            prefetch = value.get("prefetch") if value["workers"] else None
            seams.loader.configure(value["workers"], prefetch, bool(value.get("persistent")))

    def disable(self, seams: Seams) -> None:
        """Fetch as the script has it."""
        if seams.loader is not None:
            seams.loader.reset()

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """That many workers feed the loop."""
        if seams.loader is None:
            return "there is no loader of ours"
        now = seams.loader.workers
        return None if now == value["workers"] else f"{now} workers feed the loop"

    def check(self, value: Value) -> None:
        """A table with workers, and with prefetch and persistent where there are any."""
        expected = "a table such as { workers = 4, prefetch = 2, persistent = true }"
        if not isinstance(value, dict) or set(value) - {"workers", "prefetch", "persistent"}:
            raise ValueError(expected)
        if not _whole(value.get("workers"), 0) or not _whole(value.get("prefetch", 1), 1):
            raise ValueError(expected)
        if not isinstance(value.get("persistent", False), bool):
            raise ValueError(expected)


def _value(workers: int) -> Value:
    return {"workers": workers, "prefetch": 2, "persistent": False} if workers else {"workers": 0}


def _whole(value: Value, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= 1024
