"""Whether a candidate differs by its random numbers only: dropout masks drawn in another order."""

from __future__ import annotations

import math
from functools import partial

import torch

from hasten.instrument.proof.calls import RecordedCall, replay
from hasten.instrument.proof.state import reseed

SEEDS = 8
#: Squared distance of two means over SEEDS, in parts of what chance gives: 1 on average.
_DISTANCE = 1.6
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


def moments(call: RecordedCall) -> _Moments:
    """Gradients over SEEDS random streams under the setting in force."""
    found = _Moments()
    for seed in range(SEEDS):
        found.add(replay(call, seed=partial(reseed, 7919 * (seed + 1))).gradients)
    return found


def other_stream(candidate: _Moments, reference: _Moments) -> bool:
    """Whether both have the same mean and spread over random streams, as far as can be seen."""
    if not reference.variance or candidate.mean.keys() != reference.mean.keys():
        return False
    distance = sum(
        float((candidate.mean[name] - mean).square().sum()) for name, mean in reference.mean.items()
    )
    expected = (candidate.variance + reference.variance) / SEEDS
    spread = math.sqrt(candidate.variance / reference.variance)
    return distance < _DISTANCE * expected and _SPREAD[0] < spread < _SPREAD[1]
