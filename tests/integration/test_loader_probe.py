"""The probe tells whether another worker count keeps the batches, and disturbs nothing."""

from __future__ import annotations

import random
import tempfile
from typing import Any

import numpy
import pytest
import torch
from test_loader_baseline import Drawing
from test_loader_kit import Noise, Numbers, Point, owned, same, seams, seed, states
from torch.utils.data import DataLoader, get_worker_info

from hasten.instrument.seams.loader_probe import LoaderProbe


def probed(loader: DataLoader[Any], workers: int = 2, prefetch: int | None = 2) -> LoaderProbe:
    """Probe in the middle of an epoch; the epoch must go on as if nobody had looked."""
    seed()
    plain = [same(batch) for batch in loader]
    end = states()
    seed()
    with seams() as seam:
        seen = []
        for place, batch in enumerate(loader):
            seen.append(same(batch))
            if place == 1:
                before = states()
                found = owned(seam, loader).probe(workers, prefetch)
                assert states() == before
        assert seen == plain
        assert states() == end
    return found


@pytest.mark.parametrize("shape", ["tensor", "dict", "tuple", "namedtuple"])
@pytest.mark.parametrize(("baseline", "workers"), [(0, 2), (1, 0)])
def test_deterministic_items_are_equal(shape: str, baseline: int, workers: int) -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(20, shape), 2, shuffle=True, num_workers=baseline)
    found = probed(loader, workers)
    assert (found.equal, found.random_items, found.reason, found.worst) == (True, False, "", "")
    assert found.seconds > 0


@pytest.mark.parametrize("source", ["torch", "random", "numpy"])
def test_random_items_are_detected(source: str) -> None:
    found = probed(DataLoader(Noise(20, source), 2))
    assert not found.equal and found.random_items
    assert source in found.reason and found.worst == "batch 0 (the batch)"


def test_random_items_of_workers_are_detected() -> None:
    found = probed(DataLoader(Noise(20, "numpy"), 2, num_workers=1), 0)
    assert not found.equal and found.random_items and "numpy" in found.reason


class OwnGenerator(Numbers):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.generator = numpy.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.generator.random())


class Seeded(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(random.Random(index).random())


class Reseeding(Numbers):
    def __getitem__(self, index: int) -> Any:
        torch.manual_seed(index)
        return torch.rand(2)


class Placed(Numbers):
    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return {"item": index, "where": -1 if info is None else info.id}


class Local(Numbers):
    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            raise OSError("cannot be read in a worker")
        return Point(index, index)


class Files(Numbers):
    """Opens its file when the first item is read, and keeps it open."""

    file: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115
            self.file.write(bytes(range(40)))
        self.file.seek(index)
        return self.file.read(1)[0]


def test_an_own_generator_is_a_state() -> None:
    found = probed_again(OwnGenerator(20))
    assert found.random_items and "twice" in found.reason


def test_seeds_of_ones_own_are_fine_but_resetting_the_global_one_is_not() -> None:
    assert probed(DataLoader(Seeded(20), 2)).equal
    found = probed(DataLoader(Reseeding(20), 2))
    assert found.equal and found.random_items and "torch" in found.reason


def test_items_that_ask_where_they_are_differ() -> None:
    found = probed(DataLoader(Placed(20), 2))
    assert not found.equal and not found.random_items
    assert found.worst == "batch 0['where']"


def test_items_that_fail_in_workers() -> None:
    found = probed(DataLoader(Local(20), 2))
    assert not found.equal and "cannot be read in a worker" in found.reason


@pytest.mark.parametrize(("baseline", "workers"), [(0, 2), (1, 0)])
def test_open_files_are_not_shared(baseline: int, workers: int) -> None:
    data = Files(20)
    found = probed(DataLoader(data, 2, num_workers=baseline), workers)
    assert not found.equal and "open" in found.reason and "file" in found.reason
    if data.file is not None:
        data.file.close()


def test_a_sampler_that_draws_for_each_batch() -> None:
    found = probed_again(Numbers(20), sampler=Drawing(20))
    assert found.random_items and "sampler" in found.reason


def probed_again(data: Any, **options: Any) -> LoaderProbe:
    """Probe a loader whose epoch cannot be repeated."""
    loader: DataLoader[Any] = DataLoader(data, 2, **options)
    with seams() as seam:
        iterator = iter(loader)
        next(iterator)
        return owned(seam, loader).probe(2, 2)


def test_before_the_first_and_after_the_last_batch() -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(6), 2, shuffle=True)
    with seams() as seam:
        iterator = iter(loader)
        assert owned(seam, loader).probe(1, 1).equal
        assert sorted(int(i) for b in iterator for i in b) == list(range(6))
        assert owned(seam, loader).probe(1, 1).equal
