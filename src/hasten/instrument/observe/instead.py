"""Times operations of a model against others that would do the same, in turns.

Both are run on leaves of the recorded shapes, forward and backward. As many of them as the model
has are in flight at once, so that memory is asked for as it is in the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hasten.instrument.observe.arithmetic import timed
from hasten.instrument.observe.functions import tensors

_LEAST = 6  # pairs, and one before that counts for nothing
_MOST = 15
_TOGETHER = 6  # copies of the same operations that are run at once
_LONGEST = 12.0  # seconds; what would take longer is not timed
_HOPELESS = 3  # pairs after which what isn't faster is given up


@dataclass(frozen=True)
class Instead:
    """Some operations, and others in their place.

    Attributes:
        as_is, instead: make the result from the leaves.
        leaves: their inputs, with gradients where the training has them.
    """

    as_is: Callable[[], Any]
    instead: Callable[[], Any]
    leaves: Sequence[torch.Tensor]


def in_turns(
    make: Callable[[], Instead], count: int, device: str, seconds: float
) -> tuple[list[float], list[float]]:
    """Seconds of one call of the model that go to `count` such operations: as they are, instead.

    Args:
        make: new leaves and what is done with them.
        count: how often the model has these operations.
        device: type of device on which they run.
        seconds: that may be spent, about; up to _LONGEST where pairs are that slow.

    Returns:
        Both in pairs; nothing where that would take too long.
    """
    several = [make() for _ in range(min(count, _TOGETHER))]
    ways = [_way([(one.as_is, one.leaves) for one in several])]
    ways += [_way([(one.instead, one.leaves) for one in several])]
    found: tuple[list[float], list[float]] = ([], [])
    begun = time.perf_counter()
    for turn in range(_MOST + 1):
        for which in (0, 1) if turn % 2 else (1, 0):
            spent = _spent(ways[which], device) * count / len(several)
            if turn:
                found[which].append(spent)
        passed = time.perf_counter() - begun
        if not turn and passed * _LEAST > max(seconds, _LONGEST):
            break
        hopeless = turn >= _HOPELESS and sum(found[0]) <= sum(found[1])
        if hopeless or (turn >= _LEAST and passed > seconds):
            break
    return found


def _spent(work: Callable[[], None], device: str) -> float:
    """Processor seconds, of all threads, where the processor does it."""
    if device != "cpu":
        return timed(work, device)
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _way(several: Sequence[tuple[Callable[[], Any], Sequence[torch.Tensor]]]) -> Callable[[], None]:
    """Forward and then backward of all of them."""
    gradients = [torch.randn_like(out) for work, _ in several for out in _outputs(work())]
    wanted = [leaf for _, leaves in several for leaf in leaves if leaf.requires_grad]

    def run() -> None:
        outputs = [out for work, _ in several for out in _outputs(work())]
        if wanted:
            torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)

    return run


def _outputs(result: Any) -> list[torch.Tensor]:
    found = tensors(result)
    return [one for one in found if one.requires_grad] or found
