"""Items are the same with and without keeping them: values, random states, and what is refused."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset

pytest.importorskip("torchvision")
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from hasten.environment import MIB
from hasten.instrument.seams.cache_dataset import CachedDataset
from hasten.instrument.seams.cache_items import Counters, FolderStamp, Items, plain_stamp, same
from hasten.instrument.seams.cache_key import key_of
from hasten.instrument.seams.cache_pipeline import Recipe
from hasten.instrument.seams.cache_probe import Option, choose, look, seed
from hasten.instrument.seams.cache_region import Region
from hasten.instrument.seams.cache_store import Store
from hasten.instrument.seams.loader_cache import ItemCache
from hasten.instrument.seams.loader_random import random_states

COUNT = 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = numpy.random.default_rng(0)
    for index in range(COUNT):
        where = tmp_path / "pictures" / f"class{index % 2}"
        where.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 255, (40, 56, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).save(where / f"{index}.jpg")
    return tmp_path / "pictures"


@pytest.fixture(autouse=True)
def states() -> Iterator[None]:
    """The random states of the test run, as they were."""
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    yield
    torch.set_rng_state(before[0])
    random.setstate(before[1])
    numpy.random.set_state(before[2])


def kept(dataset: Any, recipe: Recipe, stamp: Any = plain_stamp) -> Items:
    count = len(dataset)
    store = Store(Region.anonymous(Store.size_for(count, 16 * MIB)), count, memory=False)
    return Items(dataset, recipe, store, Counters(), stamp)


def same_at_every_seed(dataset: Any, other: Any, rounds: int = 3) -> bool:
    """Whether items and the random states after them are equal, again and again."""
    for again in range(rounds):
        for index in range(len(dataset)):
            seed(100 * again + index)
            one, after = dataset[index], random_states()
            seed(100 * again + index)
            if not same(one, other[index]) or random_states() != after:
                return False
    return True


def cut(probed: Any) -> int:
    return max(option.recipe.steps for option in probed.options)


def half(value: Any) -> Any:
    """A transform of the script's own that is deterministic."""
    return value.resize((16, 12))


def jitter(value: Any) -> Any:
    """One that isn't."""
    return value.rotate(random.random())


PIPELINES: dict[str, tuple[Any, int]] = {
    "first version": (v1.Compose([v1.Resize(20), v1.RandomHorizontalFlip(), v1.ToTensor()]), 1),
    "second version": (
        v2.Compose([v2.ToImage(), v2.Resize(20), v2.RandomCrop(16), v2.ToDtype(torch.float32)]),
        2,
    ),
    "random from the start": (v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()]), 0),
    "nothing random": (v1.Compose([v1.Resize(20), v1.CenterCrop(16), v1.ToTensor()]), 3),
    "nested": (v1.Compose([v1.Compose([v1.Resize(20), v1.ToTensor()]), v1.RandomErasing(1.0)]), 2),
    "own, shown": (v1.Compose([half, v1.RandomHorizontalFlip(), v1.ToTensor()]), 1),
    "own, random": (v1.Compose([v1.Resize(20), jitter, v1.ToTensor()]), 1),
    "a function": (jitter, 0),
}


@pytest.mark.parametrize(("transform", "steps"), PIPELINES.values(), ids=PIPELINES.keys())
def test_the_deterministic_part_is_found_and_items_are_equal(
    folder: Path, transform: Any, steps: int
) -> None:
    dataset = ImageFolder(str(folder), transform)
    probed = look(dataset, range(4))
    assert cut(probed) == steps, probed
    for option in probed.options:
        items = kept(dataset, option.recipe)
        assert same_at_every_seed(dataset, CachedDataset(dataset, items)), option
        hits, misses, stored, _ = items.counters.read()
        assert (hits, misses, stored) == (2 * COUNT, COUNT, COUNT)


def test_only_known_transforms_are_kept_for_later_runs(folder: Path) -> None:
    def checked(transform: Any) -> bool:
        return look(ImageFolder(str(folder), transform), range(3)).options[-1].checked

    assert checked(v1.Compose([v1.Resize(20), v1.RandomHorizontalFlip()]))
    assert not checked(v1.Compose([half, v1.RandomHorizontalFlip()]))


class Pairs(Dataset[Any]):
    """The common dataset of a script: a transform in an attribute, an item that is a dict."""

    def __init__(self, transform: Any) -> None:
        self.augment = transform
        self.pictures = [
            numpy.random.default_rng(i).integers(0, 9, (8, 8, 3), dtype=numpy.uint8)
            for i in range(COUNT)
        ]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return {"x": self.augment(Image.fromarray(self.pictures[index])), "y": [index, "a"]}


class Unpacked(Pairs):
    """Does more with what the transform returns than pass it on."""

    def __getitem__(self, index: int) -> Any:
        return self.augment(Image.fromarray(self.pictures[index])).float() * 2, index


class DrawsBefore(Pairs):
    """Chooses at random which picture it takes."""

    def __getitem__(self, index: int) -> Any:
        return self.augment(Image.fromarray(self.pictures[random.randrange(COUNT)])), index


class Counts(Pairs):
    """An item that depends on how many there were."""

    seen = 0

    def __getitem__(self, index: int) -> Any:
        self.seen += 1
        return self.augment(Image.fromarray(self.pictures[index])), self.seen


class OwnRandom(Pairs):
    """Draws from a generator of its own, which no global state shows."""

    def __init__(self, transform: Any) -> None:
        super().__init__(transform)
        self.draw = numpy.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return self.augment(Image.fromarray(self.pictures[index])), self.draw.integers(100)


FLIP = v1.Compose([v1.Resize(6), v1.RandomHorizontalFlip(), v1.ToTensor()])
STILL = v1.Compose([v1.Resize(6), v1.ToTensor()])


def test_a_dataset_of_the_scripts_own() -> None:
    dataset = Subset(Pairs(FLIP), [7, 3, 5])
    probed = look(dataset, range(3))
    assert str(probed.options[-1].recipe.place) == "dataset.augment"
    items = kept(dataset, probed.options[-1].recipe)
    assert same_at_every_seed(dataset, CachedDataset(dataset, items))


def test_whole_items_where_nothing_is_random() -> None:
    dataset = Unpacked(STILL)
    probed = look(dataset, range(4))
    assert probed.options[0].recipe == Recipe(None)
    items = kept(dataset, Recipe(None))
    assert same_at_every_seed(dataset, CachedDataset(dataset, items))


@pytest.mark.parametrize(
    "dataset", [Unpacked(FLIP), DrawsBefore(FLIP), Counts(FLIP)], ids=lambda d: type(d).__name__
)
def test_what_is_random_or_has_a_state_is_refused(dataset: Any) -> None:
    probed = look(dataset, range(4))
    assert not probed.options and probed.reason


def test_a_generator_of_its_own_is_refused() -> None:
    assert not look(OwnRandom(STILL), range(4)).options


def test_an_item_that_turns_out_random_is_never_kept() -> None:
    class Seldom(Pairs):
        def __getitem__(self, index: int) -> Any:
            noise = random.random() if index == 9 else 0.0
            return self.augment(Image.fromarray(self.pictures[index])), noise

    dataset = Seldom(FLIP)
    probed = look(dataset, range(4))  # item 9 isn't among them
    items = kept(dataset, probed.options[-1].recipe)
    assert same_at_every_seed(dataset, CachedDataset(dataset, items))
    assert items.counters.read()[2] == COUNT - 1


class Several(Dataset[Any]):
    """Fetches several items at once, and counts how often it is asked."""

    def __init__(self, noisy: bool = False) -> None:
        self.noisy, self.asked = noisy, []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)) + (torch.rand(1) if self.noisy else 0.0)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked.append(list(indices))
        return [self[index] for index in indices]


def test_what_is_missing_of_a_batch_is_fetched_at_once() -> None:
    dataset = Several()
    items = kept(dataset, Recipe(None))
    for batch in ([1, 2, 3], [3, 4, 1, 5], [5, 6], [1, 2]):
        assert all(map(same, items.fetch_all(batch), [dataset[i] for i in batch]))
    assert dataset.asked == [[1, 2, 3], [4, 5]]  # one that is missing alone is an item
    assert all(map(same, items.fetch_all([7, 7, 8]), [dataset[i] for i in (7, 7, 8)]))
    assert dataset.asked[-1] == [7, 8]


def test_what_several_items_draw_is_theirs() -> None:
    dataset, plain = Several(noisy=True), Several(noisy=True)
    items = kept(dataset, Recipe(None))
    for batch in ([1, 2, 3], [1, 2]):
        seed(5)
        expected, after = plain.__getitems__(batch), random_states()
        seed(5)
        assert all(map(same, items.fetch_all(batch), expected)) and random_states() == after
    assert items.counters.read()[2] == 0


def test_a_changed_file_is_read_anew(folder: Path) -> None:
    dataset = ImageFolder(str(folder), FLIP)
    items = kept(dataset, look(dataset, range(3)).options[-1].recipe, FolderStamp(dataset))
    cached = CachedDataset(dataset, items)
    assert same_at_every_seed(dataset, cached)
    path = dataset.samples[2][0]
    Image.new("RGB", (40, 40), "red").save(path)
    assert same_at_every_seed(dataset, cached)
    os.utime(path, (1, 1))  # of the same size, and changed all the same
    before = items.counters.read()[1]
    items.fetch(2)
    assert items.counters.read()[1] == before + 1


def test_it_passes_for_the_dataset(folder: Path) -> None:
    dataset = ImageFolder(str(folder), FLIP)
    cached = CachedDataset(dataset, kept(dataset, look(dataset, range(3)).options[-1].recipe))
    assert isinstance(cached, ImageFolder) and len(cached) == COUNT
    cached.epoch = 3  # type: ignore[attr-defined]
    assert dataset.epoch == 3 and cached.classes == dataset.classes
    again = pickle.loads(pickle.dumps(cached))
    seed(1)
    one = again[1]
    seed(1)
    assert same(one, dataset[1])
    with pytest.raises(IndexError):
        cached[COUNT + 5]
    assert same(cached[-1][1], dataset[-1][1])


def test_a_change_of_the_dataset_is_heard() -> None:
    dataset = Pairs(STILL)
    cache = ItemCache(dataset)
    assert cache.begin("memory", 64 * MIB) == ""
    dressed = cache.dressed(0)
    assert same_at_every_seed(dataset, dressed)
    dataset.augment = v1.Compose([v1.Resize(5), v1.ToTensor()])
    assert same_at_every_seed(dataset, dressed)
    dataset.pictures[0] = dataset.pictures[0] + 1
    dressed = cache.dressed(0)  # a new epoch looks at everything
    assert same_at_every_seed(dataset, dressed) and cache.trouble == ""
    dataset.epoch = 1  # type: ignore[attr-defined]
    assert same_at_every_seed(dataset, dressed)
    assert "changes its dataset" in cache.trouble
    cache.close()


def test_a_key_is_of_all_that_makes_the_items(folder: Path) -> None:
    def key(transform: Any, size: int = COUNT) -> str:
        dataset = Subset(ImageFolder(str(folder), transform), range(size))
        return key_of(dataset, look(dataset, range(3)).options[-1].recipe)[0]

    assert key(FLIP) and key(FLIP) == key(FLIP)
    assert len({key(FLIP), key(FLIP, 5), key(v1.Compose([v1.Resize(7)])), key(STILL)}) == 4
    dataset = ImageFolder(str(folder), FLIP, loader=lambda path: Image.open(path).convert("L"))
    found, why = key_of(dataset, look(dataset, range(3)).options[-1].recipe)
    assert not found and "function of the script's own" in why
    assert not key_of(Pairs(FLIP), Recipe(None))[0]


def test_what_fits_is_chosen() -> None:
    large, small = (
        Option(Recipe(None, n), size, 1 / size, True) for n, size in ((1, 100), (0, 10))
    )
    assert choose([large, small], 10, 1e6) is large
    assert choose([large, small], 10, 500) is small
    assert choose([large, small], 10, 5) is small
