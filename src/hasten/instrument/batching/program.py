"""Answers of a child to what `hasten batch` asks, over as many iterations as they take."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hasten.batching import GradientsSampled, MeasureMemory, MemoryUsed, SampleGradients
from hasten.instrument import patching
from hasten.instrument.batching import gauge
from hasten.instrument.batching.gradients import Gradients
from hasten.instrument.conductor import Conductor
from hasten.instrument.recorder import Iteration
from hasten.instrument.seams.optimizer import parameters

_SETTLED = 2  # iterations before memory is as it will be: gradients and optimizer state are there
_POINTS = 10_000  # of a curve, at most
_MOST_VOID = 64  # iterations without a valid one among them

Steps = Generator[None, Iteration, Any]


def obey(
    conductor: Conductor, command: MeasureMemory | SampleGradients
) -> Generator[None, Iteration, MemoryUsed | GradientsSampled]:
    """Carry out one command; returns the answer."""
    if isinstance(command, MeasureMemory):
        return (yield from _memory(conductor, command))
    return (yield from _gradients(conductor, command))


# --- memory --------------------------------------------------------------------------------------


def _memory(conductor: Conductor, command: MeasureMemory) -> Generator[None, Iteration, MemoryUsed]:
    seams = conductor.seams
    assert seams is not None
    seams.apply(command.setting)
    yield from _valid(conductor, _SETTLED)
    gauge.forget_peak()
    plain = yield from _valid(conductor, command.iterations)
    resident, workers = gauge.resident_peak(), gauge.workers_memory()
    no_effect = seams.no_effect()
    parts, trouble = yield from _parts(conductor, command.gauged)
    return MemoryUsed(
        batch_size=_batch_size(conductor),
        device=seams.device,
        peak=max((part.peak for part in parts), default=0),
        resident=resident,
        kinds=tuple(part.kind for part in parts),
        counts=tuple(len(part.curve) for part in parts),
        curves=tuple(_shortened(part) for part in parts),
        workers=workers,
        reserved=_reserved(seams.device),
        room=_room(seams.device),
        seconds=statistics.fmean(i.seconds for i in plain),
        error=_error([i.seconds for i in plain]),
        no_effect=no_effect,
        trouble=trouble,
    )


def _valid(conductor: Conductor, count: int) -> Generator[None, Iteration, list[Iteration]]:
    """Let so many valid iterations pass."""
    seen: list[Iteration] = []
    void = 0
    while len(seen) < count and void < _MOST_VOID:
        iteration = yield
        if iteration.void:
            void += 1
        else:
            seen.append(iteration)
    return seen or [iteration]


def _parts(
    conductor: Conductor, count: int
) -> Generator[None, Iteration, tuple[list[gauge.Part], str]]:
    """The parts of the iteration, of `count`, that took most; and why there are none."""
    seams = conductor.seams
    assert seams is not None
    owned = [p for handle in seams.optimizers for p in parameters(handle.optimizer)]
    meter = gauge.Gauge(seams.device, owned)
    try:
        meter.start()
    except RuntimeError as error:  # a profiler of the script's own is running
        return [], f"tensors could not be counted ({error})"
    voids: list[bool] = []
    with _marks(conductor, meter):
        for _ in range(count + 1):
            meter.border()
            iteration = yield
            voids.append(bool(iteration.void))
    found = meter.stop()
    valid = [parts for parts, void in zip(found, voids[1:], strict=False) if not void] or found
    return max(valid, key=lambda parts: max(part.peak for part in parts)), ""


@contextmanager
def _marks(conductor: Conductor, meter: gauge.Gauge) -> Iterator[None]:
    """Mark where forward, backward and step begin."""
    seams = conductor.seams
    assert seams is not None
    backward: Any = torch.autograd.backward

    def called(root: Any, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        meter.mark("forward")
        return run(*args, **kwargs)

    def differentiated(*args: Any, **kwargs: Any) -> Any:
        meter.mark("backward")
        result = backward(*args, **kwargs)
        meter.mark("after")
        return result

    patch = patching.replace(torch.autograd, "backward", differentiated)
    conductor.step_observer = lambda optimizer: meter.mark("step")
    for root in seams.roots:
        root.observer = called
    try:
        yield
    finally:
        patching.restore(patch)
        conductor.step_observer = None
        for root in seams.roots:
            root.observer = None


def _shortened(part: gauge.Part) -> tuple[int, ...]:
    """A curve of moderate length that has the same peak."""
    if part.kind == gauge.BORDER:  # items are made here, one after the other
        return (part.peak,)
    step = -(-len(part.curve) // _POINTS)
    return tuple(max(part.curve[i : i + step]) for i in range(0, len(part.curve), step))


def _reserved(device: str) -> int:
    """Bytes that the accelerator's allocator holds beyond the most that tensors took."""
    module: Any = getattr(torch, device, None)
    if device == "cpu" or not hasattr(module, "max_memory_reserved"):
        return 0
    return int(module.max_memory_reserved() - module.max_memory_allocated())


def _room(device: str) -> int:
    """Bytes that the accelerator could give to this process in all; 0 where that isn't known."""
    module: Any = getattr(torch, device, None)
    if device == "cpu" or not hasattr(module, "mem_get_info"):
        return 0
    return int(module.mem_get_info()[0] + module.memory_reserved())


def _error(seconds: list[float]) -> float:
    """Standard error of the mean."""
    if len(seconds) < 2:
        return 0.0
    return statistics.stdev(seconds) / math.sqrt(len(seconds))


def _batch_size(conductor: Conductor) -> int | None:
    """Batch size of the training loader as it is now."""
    facts = conductor.loader_facts()
    return facts.batch_size if facts is not None else None


# --- gradients -----------------------------------------------------------------------------------


def _gradients(
    conductor: Conductor, command: SampleGradients
) -> Generator[None, Iteration, GradientsSampled]:
    loop = conductor.loop
    assert loop is not None
    if loop.stepper is None:
        return GradientsSampled(None, (), (), (), "the script trains without an optimizer")
    taken = Gradients(list(parameters(loop.stepper)), command.groups)
    if taken.trouble:
        return GradientsSampled(None, (), (), (), taken.trouble)
    taken.install()
    deadline, steps = time.monotonic() + command.seconds, 0
    try:
        passed = 0
        while sum(taken.counts) < command.iterations and time.monotonic() < deadline:
            iteration = yield
            passed += 1
            steps += iteration.steps > 0
            taken.border(valid=not iteration.void and iteration.steps > 0)
    finally:
        taken.uninstall()
    size = _batch_size(conductor)
    window = max(1, round(passed / max(1, steps)))
    return GradientsSampled(
        batch_size=None if size is None else size * window,
        counts=tuple(taken.counts),
        squares=tuple(taken.squares),
        sums=taken.products(),
        trouble="" if min(taken.counts) else "too few gradients were seen",
    )
