"""What a child does for a diagnosis: observe plain iterations, then examine the loop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator, Sequence

from hasten.diagnosis import FINE_PHASES, Examined, Observed, Spread
from hasten.instrument.conductor import Conductor
from hasten.instrument.observe.conductor import ObservingConductor, fine
from hasten.instrument.observe.loaders import Loaders
from hasten.instrument.recorder import Iteration
from hasten.records import PHASES, Examine, Observe

_BORDERS = 3  # epoch borders that are waited for, where they come in time
_WORKERS_SECONDS = 5.0  # that workers are watched, while there is time
_GROWING_SECONDS = 20.0  # ... while their memory grows with every look
_BURST = 3.0  # times the median
_SERIES = 240  # values of a series at most


def obey(
    conductor: Conductor, command: Observe | Examine
) -> Generator[None, Iteration, Observed | Examined]:
    """Do one command of a diagnosis."""
    assert isinstance(conductor, ObservingConductor), "the child was not started to observe"
    if isinstance(command, Observe):
        return (yield from _observe(conductor, command))
    from hasten.instrument.observe.examine import examine

    return (yield from examine(conductor, command.seconds, command.arithmetic))


def _observe(
    conductor: ObservingConductor, command: Observe
) -> Generator[None, Iteration, Observed]:
    seen: list[Iteration] = []
    used: list[dict[str, float]] = []
    begun = time.monotonic()
    borders, passed, deadline = 0, 0, begun + command.seconds
    conductor.log.observing = True
    while time.monotonic() < deadline or len(seen) < command.least:
        if command.most and passed >= command.most:
            break
        if len(seen) >= command.iterations and _enough(conductor, seen, borders, begun, deadline):
            break
        iteration = yield
        conductor.tell_ended(iteration)
        passed += 1
        borders += iteration.void == "epoch border"
        if not iteration.void:
            seen.append(iteration)
            used.append(fine(conductor.recorder.used))
        conductor.losses.clear()
    observed = _observed(conductor, seen, used)
    conductor.stop_observing()
    return observed


def _enough(
    conductor: ObservingConductor,
    seen: list[Iteration],
    borders: int,
    begun: float,
    deadline: float,
) -> bool:
    """Whether nothing more can be learned: of epoch borders, and of the memory of workers."""
    facts = conductor.loader_facts()
    if facts is not None and facts.workers:
        grows = any(isinstance(o, Loaders) and o.grows for o in conductor.observers)
        if time.monotonic() - begun < (_GROWING_SECONDS if grows else _WORKERS_SECONDS):
            return False
    return borders >= _BORDERS or not _border_comes(conductor, seen, deadline)


def _border_comes(conductor: ObservingConductor, seen: list[Iteration], deadline: float) -> bool:
    """Whether an epoch is short enough to end before the deadline."""
    facts = conductor.loader_facts()
    if facts is None or facts.length is None or not seen:
        return False
    epoch = facts.length * statistics.fmean(iteration.seconds for iteration in seen)
    return time.monotonic() + epoch < deadline


def _observed(
    conductor: ObservingConductor, seen: list[Iteration], used: list[dict[str, float]]
) -> Observed:
    log = conductor.log
    log.observing = False
    facts = {o.name: o.finish(log, conductor) for o in conductor.observers}
    parts = [fine(iteration.phases) for iteration in seen]
    return Observed(
        iterations=len(seen),
        wall=spread([iteration.seconds for iteration in seen]),
        processor=spread([iteration.processor for iteration in seen]),
        phases={name: spread([part[name] for part in parts]) for name in FINE_PHASES},
        processor_phases={n: spread([part[n] for part in used]) for n in FINE_PHASES},
        events=log.events(),
        sequences=log.sequences(),
        opening=log.opening(),
        startup_seconds=conductor.startup_seconds,
        stretches=conductor.account(),
        plain_seconds=conductor.plain[1],
        plain_iterations=int(conductor.plain[0]),
        trained_iterations=conductor.trained,
        facts={name: found for name, found in facts.items() if found},
        timeline=conductor.recorder.timeline((*PHASES, "copy", "other")),
        series={
            "iteration": series([iteration.seconds for iteration in seen]),
            "processor": series([iteration.processor for iteration in seen]),
            **{name: series([part[name] for part in parts]) for name in FINE_PHASES},
        },
    )


def series(values: Sequence[float]) -> tuple[float, ...]:
    """The values in order, or means of neighbours, without a rest that is too short."""
    length = max(1, -(-len(values) // _SERIES))
    return tuple(
        statistics.fmean(values[at : at + length])
        for at in range(0, len(values) - length + 1, length)
    )


def spread(values: Sequence[float]) -> Spread:
    """How these times are spread; zeros when there are none."""
    if not values:
        return Spread(0.0, 0.0, 0.0, 0.0)
    ordered, median = sorted(values), statistics.median(values)
    low = ordered[int(0.05 * (len(ordered) - 1))]
    high = ordered[round(0.95 * (len(ordered) - 1))]
    total = sum(values)
    bursts = sum(value for value in values if value > _BURST * median)
    return Spread(median, statistics.fmean(values), low, high, bursts / total if total else 0.0)
