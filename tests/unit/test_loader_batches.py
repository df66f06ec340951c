"""Batches are compared by value whatever they are made of; a held batch cannot be spoilt."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch

from hasten.instrument.seams.loader_batches import Incomparable, Replay, difference, leaves

Pair = namedtuple("Pair", "x y")


@dataclass
class Custom:
    images: torch.Tensor
    names: list[str] = field(default_factory=lambda: ["a"])


class Odd:
    """Has no attributes that could be compared, and cannot be pickled."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        raise TypeError("no")


def batch() -> dict[str, Any]:
    return {
        "image": torch.arange(12.0).reshape(3, 4).t(),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "nan": torch.tensor([float("nan")]),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3),
        "sparse": torch.eye(3).to_sparse(),
        "array": numpy.arange(3),
        "objects": numpy.array(["x", None], dtype=object),
        "deep": [OrderedDict(a=(1, 2.5, "s", None, True, b"x")), {1, 2}],
        "pair": Pair(torch.zeros(2), numpy.float32(1)),
        "custom": Custom(torch.ones(2)),
    }


def test_equal_batches_have_equal_leaves() -> None:
    assert difference(list(leaves(batch())), list(leaves(batch()))) is None


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("image", torch.arange(12.0).reshape(4, 3), "['image']"),
        ("half", torch.ones(3), "['half']"),
        ("nan", torch.tensor([1.0]), "['nan']"),
        ("empty", torch.empty(0, 4), "['empty']"),
        ("array", numpy.arange(3, dtype=numpy.int32), "['array']"),
        ("objects", numpy.array(["x", 0], dtype=object), "['objects'][1]"),
        ("deep", [OrderedDict(a=(1, 2.5, "s", None, 1, b"x")), {1, 2}], "['deep'][0]['a'][4]"),
        ("pair", Pair(torch.zeros(2), numpy.float32(2)), "['pair'][1]"),
        ("custom", Custom(torch.ones(2), ["b"]), "['custom'].names[0]"),
        ("sparse", torch.zeros(3, 3).to_sparse(), "['sparse']"),
    ],
)
def test_a_difference_is_found_and_named(key: str, value: Any, path: str) -> None:
    assert difference(list(leaves(batch())), list(leaves({**batch(), key: value}))) == path


def test_what_cannot_be_compared_says_so() -> None:
    with pytest.raises(Incomparable, match=r"Odd at \['x'\]"):
        list(leaves({"x": Odd()}))
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(Incomparable, match="deeper"):
        list(leaves(circle))


def test_replay_is_never_spoilt() -> None:
    original = batch()
    pristine = list(leaves(original))
    replay = Replay(original)
    original["image"].zero_()
    for _ in range(3):
        given = replay()
        assert list(leaves(given)) == pristine
        given["image"].add_(1)
        given["half"].requires_grad_()
        given["deep"][0]["a"] = None
        given["array"][:] = 0
        given["custom"].images.zero_()
        given.pop("nan")


def test_replay_lends_untouched_tensors_without_a_copy() -> None:
    replay = Replay([torch.zeros(3), torch.zeros(3)])
    first = replay()
    first[1] += 1
    second = replay()
    assert second[0] is first[0]
    assert second[1] is not first[1]
