"""Replays that show how far rounding moves a model, and whether a candidate only rounds."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hasten.instrument.proof.bounds import (
    SCALE_ERRORS,
    Check,
    Deviations,
    check_lost,
    check_scale,
    left_out,
    lost_bound,
    scale,
    scale_bound,
    scale_spread,
    spread,
    weights,
)
from hasten.instrument.proof.calls import RecordedCall, Replay, replay
from hasten.instrument.proof.deviation import compare
from hasten.instrument.proof.rounding import Format, Noise, Rounding

DRAWS = 3
WANTED = 0.0065  # a bound below this shows a hundredth
_MOST_PAIRS, _MOST_SECONDS = 24, 6.0
_LEAST_PAIRS = 6  # in a reduced format, where the first replay may err by a whole unit


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

    Further replays are made in threes (reference, candidate, and a draw that rounds the reference
    at random) at weights and inputs moved by one rounding, and with each entry of the output
    gradient made up to 1.4 times longer or shorter for all three. Without that, an output gradient
    that is nearly one number (that of a mean over many places) is rounded the same way in each of
    its entries and in each replay, by up to a whole unit, which no averaging takes away; so
    scaled, entries take other places between two numbers of the format, and their errors average
    out, while a factor stays (subtractive dither: Schuchman 1964).

    Args:
        call: what is replayed.
        sensitivity: of this call.
        first: the candidate's gradients against the reference's.
        reference: puts the reference into force.
        candidate: puts the candidate into force.
        mode: makes a context for the candidate's replays.
    """
    fine = _Fine(sensitivity.unit, first, sensitivity.gradients)
    end = time.monotonic() + _MOST_SECONDS
    while len(fine.seen) <= _MOST_PAIRS and not fine.enough and time.monotonic() < end:
        seed = len(fine.seen)
        candidate()
        seen = _moved(call, fine.unit, seed, mode() if mode else None).gradients
        reference()
        base = _moved(call, fine.unit, seed).gradients
        with torch.compiler.set_stance("force_eager"):
            drawn = _moved(call, fine.unit, seed, Rounding(fine.unit, 5000 + seed)).gradients
        fine.add(compare(seen, base), compare(drawn, base))
    return fine.checks()


class _Fine:
    """Scale and holes of a gradient over replays of the candidate, and over draws."""

    def __init__(
        self,
        unit: Format,
        first: Deviations,
        draws: Sequence[Deviations],
    ) -> None:
        self.unit = unit
        self.seen, self._draws = [first], list(draws)
        self._as_recorded = len(self._draws)  # draws before those made beside the candidate
        self._weight = weights(self._draws)

    def add(self, seen: Deviations, drawn: Deviations) -> None:
        self.seen.append(seen)
        self._draws.append(drawn)
        # Of two elements, three draws may all be quiet by chance.
        self._weight = weights(self._draws)

    @property
    def _paired(self) -> tuple[list[Deviations], list[Deviations]]:
        """Candidate and draws with the output gradient varied; as recorded while there are none."""
        seen, draws = self.seen[1:], self._draws[self._as_recorded :]
        return (seen, draws) if seen else (self.seen, self._draws)

    def _scales(self) -> tuple[list[float], list[float]]:
        seen, draws = self._paired
        return [scale(d, self._weight) for d in seen], [scale(d, self._weight) for d in draws]

    @property
    def enough(self) -> bool:
        """Whether so many replays of the candidate would show a hundredth."""
        if self.unit.reduced and len(self.seen) <= _LEAST_PAIRS:
            return False
        seen, draws = self._scales()
        # Here the spread counts in full: a fault may scale each replay otherwise.
        noise = SCALE_ERRORS * scale_spread(seen, self.unit) / math.sqrt(len(seen))
        scaled = max(noise, scale_bound(draws, seen, self.unit))
        lost = lost_bound([left_out(d) for d in self._draws], len(self.seen))
        return scaled <= WANTED and lost <= WANTED

    def checks(self) -> list[Check]:
        seen, draws = self._paired
        usual = statistics.fmean(spread(d, self._weight) for d in draws)
        now = statistics.fmean(spread(d, self._weight) for d in seen)
        seen_scales, draw_scales = self._scales()
        lost = [left_out(d) for d in self.seen]
        return [
            check_scale(draw_scales, seen_scales, self.unit, now / usual if usual else 1.0),
            check_lost(self.seen[0], [left_out(d) for d in self._draws], lost),
        ]


def _moved(call: RecordedCall, unit: Format, seed: int, mode: Any = None) -> Replay:
    """A replay at moved weights, inputs and output gradients, the same for the same seed."""
    noise, dither = Noise(unit.unit, 2000 + seed), Noise(unit.unit, 3000 + seed)
    with moved_parameters(call, noise):
        return replay(call, move=noise.move, mode=mode, back=dither.dithered)


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
