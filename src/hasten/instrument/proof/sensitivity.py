"""Replays that show how far rounding moves a model, and whether a candidate only rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hasten.instrument.proof.bounds import (
    Check,
    Deviations,
    check_lost,
    check_scale,
    left_out,
    lost_bound,
    scale,
    scale_bound,
    spread,
    weights,
)
from hasten.instrument.proof.calls import RecordedCall, Replay, replay
from hasten.instrument.proof.deviation import compare
from hasten.instrument.proof.rounding import Format, Noise, Rounding

DRAWS = 3
WANTED = 0.0065  # a bound below this shows a hundredth
_MOST_DRAWS, _MOST_SECONDS = 16, 6.0


@dataclass(frozen=True)
class Differences:
    """One replay against another."""

    outputs: Deviations
    gradients: Deviations
    updates: Deviations

    @property
    def equal(self) -> bool:
        """Whether everything is the same to the bit."""
        every = (self.outputs, self.gradients, self.updates)
        return all(d.equal for part in every for d in part.values())


def differences(a: Replay, b: Replay, unit: Format) -> Differences:
    """How `a` differs from its reference `b`."""
    floors = {
        name: (unit.unit * float(torch.linalg.vector_norm(buffer.double()))) ** 2
        for name, buffer in b.buffers.items()
        if buffer.is_floating_point() and buffer.device.type != "mps"
    }
    return Differences(
        outputs=compare(a.outputs, b.outputs),
        gradients=compare(a.gradients, b.gradients),
        updates=compare(a.updates, b.updates, floors),
    )


@dataclass
class Sensitivity:
    """What replays with random roundings gave, against one without."""

    unit: Format
    draws: list[Differences]

    @property
    def gradients(self) -> list[Deviations]:
        """Of the gradients only."""
        return [draw.gradients for draw in self.draws]


def measure(call: RecordedCall, unit: Format, count: int = DRAWS, start: int = 0) -> Sensitivity:
    """Replay a call with random roundings, under the setting that is in force."""
    with torch.compiler.set_stance("force_eager"):  # compiled code can't be looked into
        base = replay(call)
        draws = [
            differences(_rounded(call, unit, k), base, unit) for k in range(start, start + count)
        ]
    return Sensitivity(unit, draws)


def _rounded(call: RecordedCall, unit: Format, seed: int) -> Replay:
    noise = Noise(unit.unit, seed + 1000)
    return replay(call, mode=Rounding(unit, seed), back=noise.moved)


def fine_checks(
    call: RecordedCall,
    sensitivity: Sensitivity,
    first: Deviations,
    reference: Callable[[], None],
    candidate: Callable[[], None],
    mode: Callable[[], Any] | None = None,
) -> list[Check]:
    """Whether the gradient is scaled or has holes, with the replays it takes to see 1 %.

    Further replays are made in pairs at weights and inputs moved by one rounding, where the
    candidate rounds independently.

    Args:
        call: what is replayed.
        sensitivity: of this call; draws are added to it.
        first: the candidate's gradients against the reference's.
        reference: puts the reference into force.
        candidate: puts the candidate into force.
        mode: makes a context for the candidate's replays.
    """
    unit, seen = sensitivity.unit, [first]
    end = time.monotonic() + _MOST_SECONDS
    weight = weights(sensitivity.gradients[:DRAWS])
    while len(seen) < _MOST_DRAWS and not _seen_enough(sensitivity, weight, len(seen)):
        if time.monotonic() > end:
            break
        seed = len(seen)
        candidate()
        moved = _moved(call, unit, seed, mode() if mode else None)
        reference()
        seen.append(compare(moved.gradients, _moved(call, unit, seed).gradients))
        if len(sensitivity.draws) < len(seen):
            sensitivity.draws += measure(call, unit, 1, len(sensitivity.draws)).draws
    draws = sensitivity.gradients
    usual = statistics.fmean(spread(d, weight) for d in draws)
    now = statistics.fmean(spread(d, weight) for d in seen)
    scales = [scale(d, weight) for d in seen]
    noise = now / usual if usual else 1.0
    return [
        check_scale([scale(d, weight) for d in draws], scales, unit, noise),
        check_lost(first, [left_out(d) for d in draws], [left_out(d) for d in seen]),
    ]


def _seen_enough(sensitivity: Sensitivity, weight: dict[str, float], count: int) -> bool:
    """Whether so many replays of the candidate would show a hundredth."""
    draws = sensitivity.gradients
    scaled = scale_bound([scale(d, weight) for d in draws], count, sensitivity.unit)
    lost = lost_bound([left_out(d) for d in draws], count)
    return scaled <= WANTED and lost <= WANTED


def _moved(call: RecordedCall, unit: Format, seed: int, mode: Any = None) -> Replay:
    """A replay at weights and inputs moved by one rounding, the same for the same seed."""
    noise = Noise(unit.unit, 2000 + seed)
    with moved_parameters(call, noise):
        return replay(call, move=noise.move, mode=mode)


@contextmanager
def moved_parameters(call: RecordedCall, noise: Noise) -> Iterator[None]:
    """Move every parameter of a root by one rounding; afterwards they hold the bits from before."""
    parameters = [p for p in call.parameters.values() if p.layout == torch.strided]
    kept = [p.detach().clone() for p in parameters]
    try:
        for parameter in parameters:
            # Through `.data`, so that graphs of the script that saved the weight stay valid.
            noise.move(parameter.data)
        yield
    finally:
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.data.copy_(value)
        torch.clear_autocast_cache()
