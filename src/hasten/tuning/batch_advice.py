"""Which batch size reaches a loss soonest, and what becomes of the learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from hasten.optimisations.memory.batch_size import sized
from hasten.records import OptimizerFacts, Setting
from hasten.tuning.batch_records import Measured, Point
from hasten.tuning.noise_scale import relative_time

_KNEE = 0.9  # of the best throughput
_WORTH = 1.05  # a change of batch size that gains less isn't advised

#: Optimizers whose steps are as long whatever the gradient's length is.
_ADAPTIVE = ("adam", "adagrad", "adadelta", "rmsprop", "lamb", "lion", "adafactor")


@dataclass(frozen=True)
class Advice:
    """What the figures come to.

    Attributes:
        knee: the smallest size with nine tenths of the best throughput; None: nothing is known.
        best: the size with the shortest time to a loss; None where the noise scale isn't known.
        gain: how many times sooner than the script's own size.
        low, high: the best size at the ends of the noise scale's interval.
        times: time to a loss by size, relative to the script's own.
        rule: what becomes of the learning rate, in a sentence.
        factor: by which to multiply it for `best`.
        factors: the same for each optimizer, by its class.
    """

    knee: int | None
    best: int | None
    gain: float
    low: int | None
    high: int | None
    times: dict[int, float]
    rule: str
    factor: float
    factors: dict[str, float]


def advise(found: Measured) -> Advice:
    """Weigh throughput against what each sample is worth."""
    points = [p for p in found.good() if p.samples_per_second > 0]
    if found.model is not None:
        points = [p for p in points if found.model.total(p.size) <= found.limit]
    top = max((p.samples_per_second for p in points), default=0.0)
    knee = next((p.size for p in points if p.samples_per_second >= _KNEE * top), None)
    noise = found.noise
    if noise is None or noise.samples is None or not any(p.size == found.own for p in points):
        rule, factor = learning_rate(found.profile.optimizers, 1.0)
        return Advice(knee, None, 1.0, None, None, {}, rule, factor, {})
    times = times_to_loss(points, found, noise.samples)
    best = _soonest(times, found.own)
    rule, factor = learning_rate(found.profile.optimizers, best / found.own)
    return Advice(
        knee=knee,
        best=best,
        gain=1.0 / times[best],
        low=_soonest(times_to_loss(points, found, noise.low), found.own),
        high=_soonest(times_to_loss(points, found, noise.high), found.own),
        times=times,
        rule=rule,
        factor=factor,
        factors=learning_rates(found.profile.optimizers, best / found.own),
    )


def changing(found: Measured) -> Setting:
    """What a plan holds for the advised batch size, and learning rates by the rule; or nothing."""
    advice, loader = advise(found), found.profile.loader
    if advice.best is None or advice.best == found.own or loader is None:
        return {}
    return {"batch-size": {**sized(loader, advice.best), "lr": dict(advice.factors)}}


def times_to_loss(points: list[Point], found: Measured, noise: float | None) -> dict[int, float]:
    """Time to a loss by batch size, relative to the script's own size."""
    window = found.window
    times = {p.size: relative_time(p.samples_per_second, p.size * window, noise) for p in points}
    return {size: seconds / times[found.own] for size, seconds in times.items()}


def _soonest(times: dict[int, float], own: int) -> int:
    """The best size; the script's own where another one gains next to nothing."""
    best = min(times, key=lambda size: times[size])
    return best if times[best] * _WORTH < times[own] else own


def learning_rate(optimizers: tuple[OptimizerFacts, ...], ratio: float) -> tuple[str, float]:
    """The rule for a batch `ratio` times as large, and the factor that it gives.

    Source: Goyal et al. (2017) for SGD; Malladi et al., "On the SDEs and Scaling Rules for
    Adaptive Gradient Algorithms" (2022).
    """
    name = optimizers[0].name if optimizers else ""
    factor = _factor(name, ratio)
    if _adaptive(name):
        return f"with the square root of the batch size, as {name} is adaptive", factor
    return f"in proportion to the batch size{f', as it is {name}' if name else ''}", factor


def learning_rates(optimizers: tuple[OptimizerFacts, ...], ratio: float) -> dict[str, float]:
    """The factor of each optimizer, by its class, for a batch `ratio` times as large."""
    return {facts.name: round(_factor(facts.name, ratio), 6) for facts in optimizers}


def _factor(name: str, ratio: float) -> float:
    return float(ratio**0.5 if _adaptive(name) else ratio)


def _adaptive(name: str) -> bool:
    return any(known in name.lower() for known in _ADAPTIVE)
