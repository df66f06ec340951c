"""Any change of a dataset that can be made is seen, or there is no fingerprint at all."""

from __future__ import annotations

import functools
import io
import multiprocessing
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from hasten.instrument.seams.loader_fingerprint import fingerprint


class Mapping(dict[str, int]):
    """A dict with attributes."""


LEVEL = {"value": 0}


class Inner:
    def __init__(self) -> None:
        self.probability = 0.5


class Data(torch.utils.data.Dataset[Any]):
    stage = 0

    def __init__(self) -> None:
        self.samples = [(f"image {i}.jpg", i % 10) for i in range(50_000)]
        self.order = list(range(1000))
        self.transforms = [Inner(), torch.nn.Dropout(0.1)]
        self.options = {"a": {"b": [1, 2]}, 3: {"x", "y"}}
        self.array = numpy.zeros((4, 4))
        self.tensor = torch.zeros(6)
        self.view = self.array[1:, ::2]
        self.names = numpy.array(["a", None], dtype=object)
        self.own = random.Random(0)
        self.generator = numpy.random.default_rng(0)
        self.torch_generator = torch.Generator()
        self.pick = functools.partial(max, 3)
        self.shared = torch.zeros(3).share_memory_()
        self.counter = multiprocessing.Value("i", 0)
        self.mapping = Mapping(a=1)
        self.mapping.extra = 1  # type: ignore[attr-defined]
        self.epoch: Any = 0

    def __getitem__(self, index: int) -> Any:
        return LEVEL["value"] + index


def test_unchanged_is_equal_and_quick_for_long_lists() -> None:
    data = Data()
    first, reason = fingerprint(data, len)
    assert first is not None, reason
    assert fingerprint(data, len) == (first, "")
    data.shared += 1  # workers see it anyway
    data.counter.value += 1
    assert fingerprint(data, len) == (first, "")


CHANGES: dict[str, Callable[[Data], Any]] = {
    "epoch": lambda d: setattr(d, "epoch", 1),
    "epoch as float": lambda d: setattr(d, "epoch", 0.0),
    "new attribute": lambda d: setattr(d, "other", None),
    "list in place": lambda d: d.order.reverse(),
    "long list": lambda d: d.samples.__setitem__(40_000, ("x", 1)),
    "deep dict": lambda d: d.options["a"]["b"].append(3),
    "set": lambda d: d.options[3].add("z"),
    "transform": lambda d: setattr(d.transforms[0], "probability", 0.6),
    "module": lambda d: setattr(d.transforms[1], "p", 0.2),
    "array": lambda d: d.array.__setitem__((0, 0), 1),
    "tensor": lambda d: d.tensor.add_(1),
    "tensor behind torch": lambda d: d.tensor.numpy().__setitem__(2, 1),
    "objects": lambda d: d.names.__setitem__(1, "b"),
    "random": lambda d: d.own.random(),
    "numpy generator": lambda d: d.generator.random(),
    "torch generator": lambda d: torch.rand(1, generator=d.torch_generator),
    "partial": lambda d: setattr(d, "pick", functools.partial(max, 4)),
    "attribute of a dict": lambda d: setattr(d.mapping, "extra", 2),
    "class": lambda d: setattr(Data, "stage", Data.stage + 1),
    "global": lambda d: LEVEL.__setitem__("value", LEVEL["value"] + 1),
    "method": lambda d: setattr(d, "draw", d.own.random),
    "lambda": lambda d: setattr(d, "draw", lambda x: x + d.epoch),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen(change: str) -> None:
    data = Data()
    before, reason = fingerprint(data)
    assert before is not None, reason
    CHANGES[change](data)
    after, reason = fingerprint(data)
    assert after is not None, reason
    assert after != before


def test_a_closure_is_looked_into() -> None:
    state = {"strength": 1}
    data = Data()
    data.epoch = lambda x: x * state["strength"]
    before, _ = fingerprint(data)
    state["strength"] = 2
    assert before is not None and fingerprint(data)[0] != before


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (threading.Lock(), "lock"),
        (io.BytesIO(), "BytesIO"),
        (numpy.empty(2**28 + 1, dtype=numpy.uint8), "MiB"),
        ([Inner() for _ in range(30_000)], "objects"),
    ],
)
def test_what_cannot_be_told_has_no_fingerprint(value: Any, reason: str) -> None:
    data = Data()
    data.epoch = value
    mark, why = fingerprint(data)
    assert mark is None
    assert reason in why and "epoch" in why


def test_circles_end() -> None:
    data = Data()
    data.epoch = [data, {"data": data}]
    assert fingerprint(data)[0] is not None
