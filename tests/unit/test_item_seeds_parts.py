"""Item seeds in one process: draws depend on seed, epoch and index, and on nothing else."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, WeightedRandomSampler

from hasten.errors import HastenError
from hasten.instrument.seams.loader import LoaderSeams
from hasten.instrument.seams.loader_random import preserved, random_states
from hasten.instrument.seams.loader_seeded import Key, SeededDataset, Tagged, may_repeat, seed_of
from hasten.plan import Plan, dump, load


class Silent:
    """Events that nobody listens to."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


class Draws(Dataset[Any]):
    """Draws from every global generator."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, torch.rand(1).item(), random.random(), np.random.rand()])


@pytest.fixture
def seams() -> Iterator[LoaderSeams]:
    made = LoaderSeams(Silent())  # type: ignore[arg-type]
    made.caches.seeds.on = True
    made.install()
    with preserved():
        yield made
    made.close()


def epoch(loader: DataLoader[Any]) -> dict[int, list[float]]:
    """Numbers by index."""
    return {int(row[0]): row[1:].tolist() for batch in loader for row in batch}


def test_epochs_differ_and_the_order_does_not_matter(seams: LoaderSeams) -> None:
    torch.manual_seed(3)
    first, second = (epoch(loader) for loader in [DataLoader(Draws(), 4)] for _ in range(2))
    assert len({tuple(v) for v in (*first.values(), *second.values())}) == 24
    seams.caches.seeds._epochs.clear()
    torch.manual_seed(3)
    assert epoch(DataLoader(Draws(), 5, shuffle=True)) == first
    seams.caches.seeds._epochs.clear()
    torch.manual_seed(4)
    assert epoch(DataLoader(Draws(), 4)) != first


def test_no_two_generators_draw_alike(seams: LoaderSeams) -> None:
    drawn = [number for row in epoch(DataLoader(Draws(), 4)).values() for number in row]
    assert len({round(number, 6) for number in drawn}) == 36


def test_the_scripts_own_random_state_stands_still(seams: LoaderSeams) -> None:
    iterator = iter(DataLoader(Draws(), 4))
    before = random_states()
    next(iterator)
    assert random_states() == before


def test_datasets_that_give_several_items_at_once(seams: LoaderSeams) -> None:
    torch.manual_seed(3)
    plain = epoch(DataLoader(Draws(), 4))
    seams.caches.seeds._epochs.clear()
    torch.manual_seed(3)
    part = Subset(Draws(), list(range(12)))
    seams.caches.seeds._epochs[("Subset", 12)] = 0
    assert epoch(DataLoader(part, 4)) == plain


def test_a_loader_that_does_not_collate(seams: LoaderSeams) -> None:
    torch.manual_seed(3)
    plain = epoch(DataLoader(Draws(), 4))
    seams.caches.seeds._epochs.clear()
    torch.manual_seed(3)
    rows = list(DataLoader(Draws(), batch_size=None))
    assert {int(row[0]): row[1:].tolist() for row in rows} == plain


def test_an_index_that_is_drawn_twice_is_not_augmented_twice_alike(seams: LoaderSeams) -> None:
    data = Draws()
    sampler = RandomSampler(data, replacement=True, num_samples=60)
    rows = [tuple(row.tolist()) for batch in DataLoader(data, 6, sampler=sampler) for row in batch]
    assert len(set(rows)) == 60


def test_samplers_that_may_repeat() -> None:
    data = Draws()
    assert not may_repeat(RandomSampler(data)) and may_repeat(RandomSampler(data, replacement=True))
    assert may_repeat(WeightedRandomSampler([1.0] * 12, 12))
    assert may_repeat(DataLoader(data, 2, sampler=RandomSampler(data, True)).batch_sampler)


def test_it_passes_for_the_dataset_also_elsewhere() -> None:
    seeded = SeededDataset(Draws())
    copy = pickle.loads(pickle.dumps(seeded))
    assert isinstance(copy, Draws) and len(copy) == 12
    key = Tagged(3, Key(1, 0, 0))
    assert torch.equal(copy[key], seeded[key])
    assert not torch.equal(seeded[3], seeded[3]), "an index without a key is fetched as ever"


def test_seeds_are_the_same_for_the_same_index() -> None:
    key = Key(1, 2, 0)
    assert seed_of(key, 3) == seed_of(key, np.int64(3)) == seed_of(key, torch.tensor(3))
    every = {seed_of(Key(s, e, 0), i) for s in range(5) for e in range(5) for i in range(50)}
    assert len(every) == 1250


def test_in_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "hasten.toml"
    dump(Plan("train.py", (), {"threads": 2}, item_seeds=True), path)
    assert load(path).item_seeds and load(path).setting == {"threads": 2}
    dump(Plan("train.py", (), {"threads": 2}), path)
    assert not load(path).item_seeds and "item_seeds" not in path.read_text()
    path.write_text('schema = 1\nitem_seeds = "yes"\n')
    with pytest.raises(HastenError, match="item_seeds should be true or false"):
        load(path)
