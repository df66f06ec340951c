"""Batches that are fetched at once equal those of single items, or nobody tries."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)

from hasten.instrument.seams.loader_batches import difference, leaves
from hasten.instrument.seams.loader_whole import Fetched, WholeCollate, WholeDataset, why_not
from hasten.instrument.seams.rows import NotRows, recognise

N = 20
TENSOR = torch.arange(N * 6, dtype=torch.float32).reshape(N, 2, 3) / 7
LABELS = torch.arange(N) % 3


class Base(Dataset[Any]):
    """Columns of all kinds."""

    def __init__(self) -> None:
        self.x, self.y = TENSOR, LABELS
        self.permuted = TENSOR.permute(0, 2, 1)
        self.array = TENSOR.numpy().astype(numpy.float64)
        self.small = numpy.arange(N, dtype=numpy.float32)
        self.whole = numpy.arange(N, dtype=numpy.int16)
        self.floats = [index / 3 for index in range(N)]
        self.numbers = list(range(N))
        self.words = [f"word {index}" for index in range(N)]
        self.mixed = [1 if index % 2 else 0.5 for index in range(N)]
        self.nested = [[1, 2]] * N

    def __len__(self) -> int:
        return N


class Pair(Base):
    def __getitem__(self, index: int) -> Any:
        """Two columns."""
        return self.x[index], self.y[index]


class Named(Base):
    def __getitem__(self, i: int) -> Any:
        image = self.permuted[i].double()
        label, number = self.y[i], self.numbers[i]
        return {"image": image, "label": label, "rest": (number, [self.floats[i]])}


class Arrays(Base):
    def __getitem__(self, index: int) -> Any:
        return self.array[index], self.small[index], self.whole[index]


class Made(Base):
    def __getitem__(self, index: int) -> Any:
        x = torch.from_numpy(self.array[index]).float()
        return (
            x,
            torch.tensor(self.small[index]),
            torch.tensor(self.floats[index]),
            torch.tensor(self.whole[index], dtype=torch.long),
            torch.as_tensor(self.floats[index], dtype=torch.float64),
        )


class One(Base):
    def __getitem__(self, index: int) -> Any:
        return self.x[index]


DATASETS: dict[str, Callable[[], Any]] = {
    "tensors": lambda: TensorDataset(TENSOR, LABELS),
    "pair": Pair,
    "named": Named,
    "arrays": Arrays,
    "made": Made,
    "one": One,
    "subset": lambda: Subset(Pair(), [3, 5, 7, 2, 11, 0, 1, 8]),
    "split": lambda: random_split(TensorDataset(TENSOR, LABELS), [12, 8])[0],
    "tensor of indices": lambda: Subset(Arrays(), torch.tensor([4, 4, 1, 9, 3, 2])),
}
BATCHES = ([0], [3, 1, 2], [5, 0, 5])


@pytest.mark.parametrize("name", DATASETS)
def test_whole_batches_are_equal_to_the_bit(name: str) -> None:
    dataset = DATASETS[name]()
    recipe = pickle.loads(pickle.dumps(recognise(dataset)))
    for indices in BATCHES:
        plain = default_collate([dataset[index] for index in indices])
        whole = recipe.batch(dataset, indices)
        assert difference(list(leaves(plain)), list(leaves(whole))) is None, (plain, whole)
        for one, other in zip(tensors(plain), tensors(whole), strict=True):
            assert one.stride() == other.stride()


def tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    inner = batch.values() if isinstance(batch, dict) else batch
    return [] if isinstance(batch, str) else [t for part in inner for t in tensors(part)]


class Conditional(Base):
    def __getitem__(self, index: int) -> Any:
        return self.x[index] if index else self.x[1]


class Mean(Base):
    def __getitem__(self, index: int) -> Any:
        return self.x[index] - self.x[index].mean()


class Random(Base):
    def __getitem__(self, index: int) -> Any:
        x = self.x[index] + torch.rand(1)
        return x


class Next(Base):
    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.x[index + 1]


class Counting(Base):
    def __getitem__(self, index: int) -> Any:
        self.seen = index
        return self.x[index]


class Text(Base):
    def __getitem__(self, index: int) -> Any:
        return self.words[index].upper()


class Reduced(Base):
    def __getitem__(self, index: int) -> Any:
        return self.x[index].sum()


class Own(Base):
    def __getitem__(self, index: int) -> Any:
        return self.x[index]

    def __getitems__(self, indices: list[int]) -> Any:
        return [self.x[index] for index in indices]


@pytest.mark.parametrize(
    "kind",
    [Conditional, Mean, Random, Next, Counting, Text, Reduced, Own],
    ids=lambda k: k.__name__,
)
def test_what_does_more_than_take_rows_is_left_alone(kind: Any) -> None:
    with pytest.raises(NotRows, match=r"__getitem__|whole batches"):
        recognise(kind())


class Computed(Base):
    @property
    def late(self) -> torch.Tensor:
        return self.x

    def __getitem__(self, index: int) -> Any:
        return self.late[index]


class Words(Base):
    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.words[index]


class Mixed(Base):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.mixed[index])


class Nested(Base):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.nested[index])


@pytest.mark.parametrize("kind", [Computed, Words, Mixed, Nested], ids=lambda k: k.__name__)
def test_columns_that_only_look_like_rows(kind: Any) -> None:
    with pytest.raises(NotRows):
        recognise(kind()).batch(kind(), [1, 2])


@pytest.mark.parametrize("indices", [[-1, 2], [N], [], ["a"], [numpy.int64(1)], [True]])
def test_other_indices_go_the_scripts_own_way(indices: list[Any]) -> None:
    dataset = TensorDataset(TENSOR, LABELS)
    with pytest.raises(NotRows):
        recognise(dataset).batch(dataset, indices)


def test_a_dataset_that_changes_is_read_as_it_is() -> None:
    dataset = Pair()
    recipe = recognise(dataset)
    dataset.x = TENSOR * 2
    assert torch.equal(recipe.batch(dataset, [1, 3])[0], TENSOR[[1, 3]] * 2)
    dataset.x = TENSOR.clone().requires_grad_()
    with pytest.raises(NotRows, match="not a plain tensor"):
        recipe.batch(dataset, [1])


def test_a_method_that_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Pair()
    recipe = recognise(dataset)
    monkeypatch.setattr(Pair, "__getitem__", lambda self, index: index)
    with pytest.raises(NotRows, match="was replaced"):
        recipe.batch(dataset, [1])


def test_the_stand_in_falls_back_on_items() -> None:
    dataset = TensorDataset(TENSOR, LABELS)
    stand_in = pickle.loads(pickle.dumps(WholeDataset(dataset, recognise(dataset))))
    collate = WholeCollate(default_collate)
    assert isinstance(stand_in.__getitems__([1, 2]), Fetched)
    batch = collate(stand_in.__getitems__([-1, 2]))
    assert torch.equal(batch[0], TENSOR[[-1, 2]]) and torch.equal(batch[1], LABELS[[-1, 2]])
    assert torch.equal(stand_in[3][0], TENSOR[3])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batch_size": 4}, ""),
        ({"batch_size": None}, "aren't put together by torch"),
        ({"batch_size": 4, "collate_fn": list}, "a collate function of its own"),
    ],
)
def test_loaders(options: dict[str, Any], reason: str) -> None:
    found = why_not(DataLoader(Pair(), **options))
    assert reason in found and bool(reason) == bool(found)
