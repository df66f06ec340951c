"""As long as nothing is configured, the script cannot tell hasten from plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from test_loader_kit import (
    Events,
    Noise,
    Numbers,
    assert_nothing_left,
    owned,
    same,
    seams,
    seed,
    states,
)
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter


class Eager(Sampler[int]):
    """Draws when `iter` is called, and not at the first `next`."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.size).tolist())

    def __len__(self) -> int:
        return self.size


class Drawing(Eager):
    """Draws for each index from the global random state."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.size):
            yield int(torch.randint(self.size, ()))


KINDS: dict[str, Any] = {
    "plain": lambda g: {},
    "shuffled": lambda g: {"shuffle": True},
    "generator": lambda g: {"shuffle": True, "generator": g},
    "drop_last": lambda g: {"shuffle": True, "drop_last": True},
    "no batches": lambda g: {"batch_size": None, "shuffle": True},
    "batch sampler": lambda g: {
        "batch_sampler": BatchSampler(RandomSampler(range(13)), 4, True),
        "batch_size": 1,
    },
    "weighted": lambda g: {"sampler": WeightedRandomSampler([1.0 + i for i in range(13)], 11)},
    "replacement": lambda g: {"sampler": RandomSampler(range(13), True, 40, generator=g)},
    "eager": lambda g: {"sampler": Eager(13)},
    "drawing": lambda g: {"sampler": Drawing(13)},
}


def training(loader: DataLoader[Any], generator: torch.Generator | None) -> list[Any]:
    """Epochs with a break, an abandoned iterator, `next`, and a full one; and all states."""
    seen: list[Any] = []
    for batch in loader:
        seen.append((same(batch), float(torch.rand(()))))
        if len(seen) == 2:
            break
    seen.append(states(generator))
    iterator = iter(loader)
    seen.append(states(generator))
    seen.append(same(next(iterator)))
    seen.append(states(generator))
    del iterator
    seen.extend((same(batch), float(torch.rand(()))) for batch in loader)
    seen.append(states(generator))
    return seen


@pytest.mark.parametrize(
    ("kind", "workers"),
    [(kind, 0) for kind in KINDS]
    + [(kind, 2) for kind in ("shuffled", "generator", "no batches", "eager", "drawing")],
)
def test_same_to_the_bit(kind: str, workers: int) -> None:
    def run() -> list[Any]:
        seed(3)
        generator = torch.Generator().manual_seed(5)
        options = {"batch_size": 3, "num_workers": workers, **KINDS[kind](generator)}
        loader: DataLoader[Any] = DataLoader(Noise(13, "torch random numpy"), **options)
        return training(loader, generator)

    plain = run()
    events = Events()
    with seams(events):
        assert run() == plain
    assert events.counts["fetching"] >= events.counts["fetched"] > 0
    assert events.counts["started"] == 3
    assert events.counts["ended"] == 1


def test_same_to_the_bit_with_persistent_workers() -> None:
    def run() -> list[Any]:
        seed(3)
        options = {"num_workers": 2, "persistent_workers": True, "shuffle": True}
        loader: DataLoader[Any] = DataLoader(Noise(13, "torch random numpy"), 3, **options)
        seen = training(loader, None)
        assert iter(loader) is iter(loader)
        seen.extend(same(b) for b in loader)
        loader._iterator = None  # as Lightning does
        seen.extend(same(b) for b in loader)
        return seen

    plain = run()
    with seams():
        assert run() == plain


def test_sampler_epochs() -> None:
    def run(workers: int) -> list[Any]:
        sampler: DistributedSampler[Any] = DistributedSampler(Numbers(12), 2, 0, seed=4)
        loader: DataLoader[Any] = DataLoader(Numbers(12), 2, sampler=sampler, num_workers=workers)
        seen = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            seen.append([same(b) for b in loader])
        assert seen[0] != seen[1] != seen[2]
        return seen

    plain = [run(0), run(2)]
    with seams():
        assert [run(0), run(2)] == plain


def test_length_class_and_attributes_of_the_iterator() -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(10), 4, num_workers=1)
    with seams() as seam:
        iterator = iter(loader)
        assert isinstance(iterator, _BaseDataLoaderIter)
        assert iter(iterator) is iterator
        assert len(iterator) == len(loader) == 3
        assert len(iterator._workers) == 1
        with pytest.raises(AttributeError):
            iterator.nothing_like_it  # noqa: B018
        assert len(list(iterator)) == 3
        with pytest.raises(StopIteration):
            next(iterator)
        facts = owned(seam, loader).facts()
        assert (facts.owned, facts.length, facts.samples_seen, facts.workers) == (True, 3, 10, 1)
        assert (facts.sampler, facts.shuffled) == ("SequentialSampler", False)


def test_abandoned_iterators_end_their_workers() -> None:
    with seams():
        iterator = iter(DataLoader(Numbers(40), 2, num_workers=2))
        next(iterator)
        del iterator
        assert_nothing_left()
        for _ in DataLoader(Numbers(40), 2, num_workers=2, persistent_workers=True):
            break
        assert_nothing_left()


@pytest.mark.parametrize("workers", [0, 2])
def test_two_iterators_at_once(workers: int) -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(12), 2, shuffle=True, num_workers=workers)

    def run() -> list[Any]:
        seed()
        return [(same(a), same(b)) for a, b in zip(loader, loader, strict=True)]

    plain = run()
    with seams():
        assert run() == plain


class Failing(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise ValueError("item five")
        if index == 9:
            raise StopIteration
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_exceptions_reach_the_script(workers: int) -> None:
    def run() -> list[Any]:
        iterator = iter(DataLoader(Failing(14), 2, num_workers=workers))
        seen: list[Any] = []
        for _ in range(9):
            try:
                seen.append(same(next(iterator)))
            except (ValueError, StopIteration) as error:
                seen.append(type(error).__name__)
        return seen

    plain = run()
    assert "ValueError" in plain and "StopIteration" in plain
    with seams():
        assert run() == plain


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


class OwnGetter(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return super()._get_iterator()


class OwnIter(DataLoader[Any]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch * 2


def test_loaders_that_cannot_be_owned_are_watched() -> None:
    loaders = [
        DataLoader(Stream(), 2),
        OwnGetter(Numbers(7), 2),
        DataLoader(Numbers(7), 2, num_workers=1, in_order=False),
    ]
    plain = [[same(b) for b in loader] for loader in loaders]
    events = Events()
    with seams(events) as seam:
        for loader, batches in zip(loaders, plain, strict=True):
            assert [same(b) for b in loader] == batches
            facts = owned(seam, loader).facts()
            assert not facts.owned and facts.not_owned_because
            assert not owned(seam, loader).probe(2, 2).equal
            with pytest.raises(Exception, match="cannot be configured"):
                owned(seam, loader).configure(2, 2, False)
    assert events.counts == {"fetching": 15, "fetched": 12, "started": 3, "ended": 3}


def test_subclass_that_wraps_iter_is_owned() -> None:
    loader = OwnIter(Numbers(7), 2)
    plain = [same(b) for b in loader]
    with seams() as seam:
        assert [same(b) for b in loader] == plain
        assert owned(seam, loader).facts().owned


@pytest.mark.parametrize("workers", [0, 1])
def test_uninstall_in_the_middle_of_an_epoch(workers: int) -> None:
    loader: DataLoader[Any] = DataLoader(Noise(12, "torch"), 2, shuffle=True, num_workers=workers)

    def run(installed: bool) -> list[Any]:
        seed()
        with seams() if installed else nullcontext() as seam:
            iterator = iter(loader)
            seen = [same(next(iterator)) for _ in range(2)]
            if installed:
                seam.uninstall()
            return seen + [same(b) for b in iterator]

    assert run(True) == run(False)
