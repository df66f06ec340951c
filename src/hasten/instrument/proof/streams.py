"""Whether a candidate differs by its random numbers only: dropout masks drawn in another order."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from functools import partial

import torch

from hasten.instrument.proof.calls import RecordedCall, replay
from hasten.instrument.proof.deviation import compare, overall
from hasten.instrument.proof.state import reseed

SEEDS = 8
#: Squared distance of two means over SEEDS, in parts of what chance gives: 1 on average.
_DISTANCE = 1.6
#: Squared distance from the same seed, in parts of what two streams give: 1 on average.
_APART = 0.5
_FIXED = 1e-3  # variance over seeds, candidate over reference: no random numbers are left in it
_SPREAD = (0.6, 1.7)  # spread between streams, candidate over reference


class _Moments:
    """Mean and spread of a long vector over replays with different random streams."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: dict[str, torch.Tensor] = {}
        self.squares = 0.0  # summed over elements: squared deviations from the mean

    def add(self, gradients: dict[str, torch.Tensor | None]) -> None:
        self.count += 1
        for name, gradient in gradients.items():
            if gradient is None:
                continue
            dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
            mean = self.mean.setdefault(name, torch.zeros_like(dense))
            change = dense - mean
            mean += change / self.count
            self.squares += float((change * (dense - mean)).sum())

    @property
    def variance(self) -> float:
        return self.squares / max(1, self.count - 1)


class Stream(enum.Enum):
    """How a candidate's random numbers stand to the reference's."""

    OTHER = "another stream"
    FIXED = "the same numbers whatever the stream"
    NEITHER = "the difference is of another kind"


def compare_streams(
    call: RecordedCall, reference: Callable[[], None], candidate: Callable[[], None]
) -> Stream:
    """Whether both sides differ as two random streams do, and in nothing else that can be seen.

    From the same seed, the gradients of two streams differ by the spread of both; over seeds,
    they have the same mean and the same spread.
    """
    usual, seen, apart = _Moments(), _Moments(), 0.0
    for number in range(1, SEEDS + 1):
        seed = partial(reseed, 7919 * number)
        reference()
        a = replay(call, seed=seed).gradients
        candidate()
        b = replay(call, seed=seed).gradients
        usual.add(a)
        seen.add(b)
        apart += overall(compare(b, a)).difference / SEEDS
    if not usual.variance or seen.mean.keys() != usual.mean.keys():
        return Stream.NEITHER
    if seen.variance < _FIXED * usual.variance:
        return Stream.FIXED
    both = seen.variance + usual.variance
    distance = sum(
        float((seen.mean[name] - mean).square().sum()) for name, mean in usual.mean.items()
    )
    ratio = math.sqrt(seen.variance / usual.variance)
    other = (
        apart > _APART * both
        and distance < _DISTANCE * both / SEEDS
        and _SPREAD[0] < ratio < _SPREAD[1]
    )
    return Stream.OTHER if other else Stream.NEITHER
