"""The index stream and its gates; and what of torch is relied on."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
import torch
from torch.utils.data import dataloader

from hasten.instrument.seams import loader_torch
from hasten.instrument.seams.loader_stream import Feed, IndexStream
from hasten.instrument.seams.loader_torch import Config, Seeds, missing


def test_peeked_and_returned_indices_come_again_in_order() -> None:
    stream = IndexStream(range(6))
    stream.restart()
    assert next(stream) == 0
    assert stream.peek(2) == [1, 2]
    assert stream.peek(1) == [1]
    assert next(stream) == 1
    stream.give_back([0, 1])
    stream.read_ahead(9)
    assert list(stream) == [0, 1, 2, 3, 4, 5]
    stream.restart()
    assert next(stream) == 0


def test_a_shut_gate_looks_like_the_end() -> None:
    stream = IndexStream(range(3))
    stream.restart()
    order: deque[tuple[tuple[int, int | None], int]] = deque()
    feed = Feed((1, 2), stream, order)
    assert next(feed) == 0 and len(feed) == 3
    feed.open = False
    with pytest.raises(StopIteration):
        next(feed)
    feed.open = True
    assert iter(feed) is feed and list(feed) == [1, 2]
    assert list(order) == [((1, 2), 0), ((1, 2), 1), ((1, 2), 2)]
    feed.opening = True
    assert next(iter(feed)) == 0


def test_first_seed_is_torchs_and_no_other_collides() -> None:
    torch.manual_seed(4)
    expected = torch.empty((), dtype=torch.int64).random_().item()
    after = torch.get_rng_state()
    torch.manual_seed(4)
    seeds = Seeds(None)
    assert torch.equal(torch.get_rng_state(), after)
    drawn = [
        torch.empty((), dtype=torch.int64).random_(generator=seeds.generator()).item()
        for _ in range(200)
    ]
    assert drawn[0] == seeds.base == expected
    assert len(set(drawn)) == 200
    close = sorted(drawn)
    assert min(b - a for a, b in itertools.pairwise(close)) > 1000
    assert torch.equal(torch.get_rng_state(), after)


def test_configurations_without_meaningless_differences() -> None:
    assert Config.normal(0, 4, True) == Config(0, None, False)
    assert Config.normal(2, None, True) == Config(2, 2, True)
    assert Config.normal(3, 2, False).capacity == 6 and Config.normal(0, None, False).capacity == 0


def test_a_torch_without_what_is_relied_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing() is None
    monkeypatch.delattr(dataloader._MultiProcessingDataLoaderIter, "_try_put_index")
    missing.cache_clear()
    try:
        reason = loader_torch.missing()
        assert reason is not None and "_try_put_index" in reason
    finally:
        missing.cache_clear()
