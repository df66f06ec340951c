"""Whole batches in a running epoch: the same samples in the same order, whoever fetches them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_loader_kit import owned, seams
from torch.utils.data import DataLoader, TensorDataset

from hasten.errors import HastenError

X, Y = torch.arange(240.0).reshape(60, 4), torch.arange(60)


def loader(workers: int = 0, **options: Any) -> DataLoader[Any]:
    torch.manual_seed(3)
    return DataLoader(TensorDataset(X, Y), 7, shuffle=True, num_workers=workers, **options)


def plain(workers: int = 0, **options: Any) -> list[Any]:
    made = loader(workers, **options)
    return [batch for _ in range(2) for batch in made]


@pytest.mark.parametrize("workers", [0, 2])
def test_switched_on_and_off_in_an_epoch(workers: int) -> None:
    expected = plain(workers)
    with seams() as seam:
        made, seen = loader(workers), []
        for epoch in range(2):
            for place, batch in enumerate(made):
                seen.append(batch)
                own = owned(seam, made)
                if place in (1, 6):
                    own.whole.set(place == 1)
                    assert bool(own.whole.trouble) == (place != 1)
                if place == 3 and not epoch:
                    own.configure(2 - workers, 2, False)
        assert own.whole.prove() == ""
    assert len(seen) == len(expected)
    for one, other in zip(seen, expected, strict=True):
        assert type(one) is type(other)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_what_can_not_be_read_is_refused() -> None:
    class Own(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)

    with seams() as seam:
        made = DataLoader(Own(X, Y), 7)
        next(iter(made))
        assert "__getitem__" in owned(seam, made).whole.prove()
        with pytest.raises(HastenError, match="can't be fetched at once"):
            owned(seam, made).whole.set(True)
