"""Replays that show how far rounding moves a model, and whether a candidate only rounds."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from hasten.instrument.proof.random_draws import DitheredMasks
from hasten.instrument.proof.rounding import Format, Noise, Rounding

DRAWS = 3
WANTED = 0.0065  # a bound below this shows a hundredth
_MOST_PAIRS, FINE_SECONDS = 24, 6.0
_LEAST_PAIRS = 6  # in a reduced format, where the first replay may err by a whole unit
_FIRST_LOOK = 3  # pairs after which a scale that is clearly no hundredth off needs no more


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

    @property
    def finite(self) -> bool:
        """Whether nothing became infinite or not a number that wasn't so before."""
        every = (self.outputs, self.gradients, self.updates)
        return all(d.bad <= d.reference_bad for part in every for d in part.values())


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


def measure(
    call: RecordedCall,
    unit: Format,
    count: int = DRAWS,
    start: int = 0,
    base: Replay | None = None,
) -> Sensitivity:
    """Replay a call with random roundings, under the setting that is in force.

    Args:
        call: what is replayed.
        unit: the format whose roundings are drawn.
        count: draws.
        start: number of the first; others round otherwise.
        base: an eager replay without such roundings, if there is one; recurrent layers need
            their own.
    """
    with _in_steps(call) as opened:
        if base is None or opened or call.root.compiled:
            base = replay(call)
        draws = [
            differences(_rounded(call, unit, k), base, unit) for k in range(start, start + count)
        ]
    # What isn't finite would count as no difference at all.
    return Sensitivity(unit, [draw for draw in draws if draw.finite])


@contextmanager
def _in_steps(call: RecordedCall) -> Iterator[bool]:
    """Eager code, and recurrent layers one step at a time, so that every step can round.

    Fused, a whole sequence is one operation: the draws would round it once, while a candidate in a
    reduced format rounds the state that it carries at every step. Compiled code can't be looked
    into either.

    Yields:
        Whether anything but compilation was taken apart.
    """
    recurrent = any(isinstance(m, torch.nn.RNNBase) for m in call.root.module.modules())
    libraries = [
        (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
        (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
    ]
    kept = [(put, get()) for get, put in libraries] if recurrent else []
    try:
        for put, _ in kept:
            put(False)
        with torch.compiler.set_stance("force_eager"):
            yield recurrent
    finally:
        for put, value in kept:
            put(value)


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
    seconds: float = FINE_SECONDS,
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
        seconds: after which no further replay begins.
    """
    fine = _Fine(sensitivity.unit, first, sensitivity.gradients)
    end = time.monotonic() + seconds
    while len(fine.seen) <= _MOST_PAIRS and not fine.enough and time.monotonic() < end:
        seed = len(fine.seen)
        candidate()
        seen = _moved(call, fine.unit, seed, _as_drawn(call, seed, mode)).gradients
        reference()
        base = _moved(call, fine.unit, seed).gradients
        fine.add(compare(seen, base), _drawn(call, fine.unit, seed, base))
    return fine.checks()


@contextmanager
def _as_drawn(call: RecordedCall, seed: int, mode: Callable[[], Any] | None) -> Iterator[None]:
    """What a candidate is replayed in: its mode, and masks whose one rounding is averaged out."""
    with ExitStack() as stack:
        if mode is not None:
            stack.enter_context(mode())
        if call.root.reduced is not None and not call.root.compiled:
            stack.enter_context(DitheredMasks(7000 + seed))
        yield


def _drawn(
    call: RecordedCall, unit: Format, seed: int, base: dict[str, torch.Tensor | None]
) -> Deviations:
    """What a draw does at the moved weights of this seed."""
    with _in_steps(call) as opened:
        drawn = _moved(call, unit, seed, Rounding(unit, 5000 + seed)).gradients
        return compare(drawn, _moved(call, unit, seed).gradients if opened else base)


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
        pairs = len(self.seen) - 1
        if self.unit.reduced and pairs < _FIRST_LOOK:
            return False
        seen, draws = self._scales()
        # Here the spread counts in full: a fault may scale each replay otherwise.
        noise = SCALE_ERRORS * scale_spread(seen, self.unit) / math.sqrt(len(seen))
        scaled = max(noise, scale_bound(draws, seen, self.unit))
        lost = lost_bound([left_out(d) for d in self._draws], len(self.seen))
        if self.unit.reduced and pairs < _LEAST_PAIRS:
            # An early end can only let pass, and only what is far from a hundredth.
            part = abs(statistics.fmean(left_out(d) for d in self.seen))
            return abs(statistics.fmean(seen)) + scaled <= WANTED and part <= lost <= WANTED
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
