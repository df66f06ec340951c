"""Programs: what a conductor does at the borders between iterations.

`serve` does what the parent says; `follow` applies a plan and leaves; `observe` only records.
"""

from __future__ import annotations

import math
import resource
import statistics
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch

from hasten.batching import MeasureMemory, SampleGradients
from hasten.errors import brief
from hasten.instrument import keeping, tracing
from hasten.instrument.channel import Channel, leave
from hasten.instrument.conductor import Conductor, Program
from hasten.instrument.courses import course
from hasten.instrument.fingerprint import fingerprint
from hasten.instrument.loop import Watched, optimizer_facts, root_facts
from hasten.instrument.recorder import Iteration
from hasten.optimisations import compiles, discover
from hasten.protocol import Message
from hasten.records import (
    PHASES,
    BlockDone,
    Examine,
    Failed,
    Note,
    Observe,
    Profile,
    Prove,
    RunBlock,
    Stop,
    Watch,
)
from hasten.verification import Follow

_WARMUP_LIMIT = 64  # uncounted iterations after a switch, at most

_RESIZED = "batch-size"  # in force, or not, since the loader was built
_NAMES = (*PHASES, "copy")  # of phases by their index; the last one in a diagnosis only

Steps = Generator[None, Iteration, Any]


def serve(conductor: Conductor, channel: Channel) -> Program:
    """Do what the parent says until it says stop."""
    yield
    while True:
        command = channel.receive()
        try:
            if isinstance(command, Stop):
                leave()
            answer = yield from obey(conductor, command)
        except Exception as error:  # ours, not the script's: the parent decides what follows
            answer = failure(conductor, error)
        for text in conductor.notes:
            channel.send(Note(text))
        conductor.notes.clear()
        channel.send(answer)


def obey(conductor: Conductor, command: Message) -> Generator[None, Iteration, Message]:
    """Carry out one command over as many iterations as it takes; returns the answer."""
    if isinstance(command, Watch):
        return (yield from _watch(conductor, command))
    if isinstance(command, RunBlock):
        if not command.reliefs:
            return (yield from _block(conductor, command))
        from hasten.instrument.observe.reliefs import relieved  # only a diagnosis needs it

        with relieved(command.reliefs):
            return (yield from _block(conductor, command))
    if isinstance(command, Prove):
        from hasten.instrument.proof import program as proving  # a plain run never needs it

        return (yield from proving.obey(conductor, command))
    if isinstance(command, (Observe, Examine)):
        from hasten.instrument.observe import program  # only a diagnosis needs it

        return (yield from program.obey(conductor, command))
    if isinstance(command, Follow):
        from hasten.instrument.verify import program as following  # only a verification needs it

        return (yield from following.obey(conductor, command))
    if isinstance(command, (MeasureMemory, SampleGradients)):
        from hasten.instrument.batching import program as batching  # only hasten batch needs it

        return (yield from batching.obey(conductor, command))
    raise TypeError(f"{type(command).__name__} is not a command")


def failure(conductor: Conductor, error: Exception) -> Failed:
    """What a parent is told when something of ours went wrong."""
    import traceback

    assert conductor.seams is not None
    words = " ".join(f"{type(error).__name__}: {error}".split())  # torch's are pages long
    return Failed(
        kind="internal",
        message=brief(words),
        traceback=traceback.format_exc(),
        setting=dict(conductor.seams.setting),
        iterations=conductor.iterations,
    )


# --- watching ------------------------------------------------------------------------------


def _watch(conductor: Conductor, command: Watch) -> Generator[None, Iteration, Profile]:
    seams = conductor.seams
    assert seams is not None
    seams.watch()
    for handle in seams.optimizers:
        handle.steps = 0
    conductor.losses.clear()
    before, tracer = conductor.recorder, tracing.start(conductor)
    seen: list[Iteration] = []
    passed, deadline = 0, time.monotonic() + command.seconds
    while len(seen) < command.iterations and (time.monotonic() < deadline or len(seen) < 3):
        iteration = yield
        passed += 1
        if not iteration.void:
            seen.append(iteration)
    seams.unwatch()
    tracing.stop(conductor, before)
    return replace(_profile(conductor, seen, passed), timeline=tracer.timeline(_NAMES))


def _profile(conductor: Conductor, seen: list[Iteration], passed: int) -> Profile:
    seams, loop = conductor.seams, conductor.loop
    assert seams is not None and loop is not None
    loader = keeping.with_items(seams, conductor.loader_facts(), seen)
    handles = [handle for handle in seams.optimizers if handle.steps] or seams.optimizers
    steps = max((h.steps for h in handles if h.optimizer is loop.stepper), default=passed)
    return Profile(
        torch=torch.__version__,
        device=seams.device,
        border="loader" if loop.loader is not None else "step",
        iteration_seconds=tuple(i.seconds for i in seen),
        phases=_mean_phases(seen),
        loader=loader,
        roots=tuple(
            root_facts(r, seams.watched.get(id(r), Watched()), passed) for r in seams.roots
        ),
        optimizers=tuple(optimizer_facts(h, passed) for h in handles),
        threads=seams.own_threads,
        own_scaler=conductor.own_scaler,
        zero_fills=seams.clearing.filled / max(1, passed),
        untouched=seams.clearing.untouched[0] if seams.clearing.untouched else "",
        debug=tuple(sorted(conductor.debugging.seen)),
        denormals=seams.denormals,
        float32_precision=seams.flags.float32_precision,
        cudnn_benchmark=seams.flags.cudnn_benchmark,
        own_compile=loop.own_compile,
        other_loaders=len(loop.others),
        iterations_per_step=max(1.0, passed / max(1, steps)),
        iterations_per_epoch=loader.length if loader is not None else None,
        loss=_last_loss(conductor),
    )


def _mean_phases(seen: list[Iteration]) -> dict[str, float]:
    if not seen:
        return dict.fromkeys(PHASES, 0.0)
    return {
        name: statistics.fmean(i.phases[index] for i in seen) for index, name in enumerate(PHASES)
    }


def _last_loss(conductor: Conductor) -> float | None:
    return float(conductor.losses[-1]) if conductor.losses else None


# --- blocks --------------------------------------------------------------------------------


def _block(conductor: Conductor, command: RunBlock) -> Generator[None, Iteration, BlockDone]:
    seams = conductor.seams
    assert seams is not None
    conductor.before_block()
    seams.apply(command.setting)
    if seams.loader is not None:
        seams.loader.hold(command.hold_data)
    keeping.fill(seams, command.warmup + command.iterations)
    warm = yield from _warm_up(conductor, command.warmup)
    conductor.losses.clear()
    counted: list[Iteration] = []
    passed: list[tuple[int, int]] = []
    void, skip, begun = 0, 0, time.monotonic()
    while len(counted) < command.iterations:
        if _too_slow(command, counted, time.monotonic() - begun):
            break
        skip = keeping.fill(seams, command.iterations - len(counted)) or skip  # a new epoch
        iteration = yield
        passed.append((conductor.iterations, len(conductor.losses)))
        if iteration.void:
            void += 1
        elif skip:
            skip -= 1
        else:
            counted.append(iteration)
    typical = statistics.median(i.seconds for i in counted)
    losses = _numbers(conductor)
    done = _block_done(conductor, command, counted, void, [w - typical for w in warm], losses)
    return replace(done, losses=course(passed, losses))


def _numbers(conductor: Conductor) -> list[float | None]:
    real = torch.Tensor.is_floating_point
    return [float(loss) if real(loss) else None for loss in conductor.losses]


def _too_slow(command: RunBlock, counted: list[Iteration], seconds: float) -> bool:
    """Whether to cut a block short: not below two iterations, or one that took all the time."""
    limit = command.seconds
    if limit is None or seconds <= limit or not counted:
        return False
    return len(counted) >= 2 or counted[0].seconds > limit


def _warm_up(conductor: Conductor, least: int) -> Generator[None, Iteration, list[float]]:
    """Iterations that belong to the switch: leftovers, pool start, compilation.

    Returns:
        The seconds of each.
    """
    seams = conductor.seams
    assert seams is not None
    warm: list[float] = []
    quiet, frames = 0, _frames(conductor)
    while len(warm) < _WARMUP_LIMIT:
        leftovers = seams.loader.leftovers if seams.loader is not None else 0
        compiling = compiles(seams.setting) and quiet < 2
        if len(warm) >= least and not leftovers and not compiling:
            break
        iteration = yield
        warm.append(iteration.seconds)
        now = _frames(conductor)
        quiet, frames = (quiet + 1, now) if now == frames else (0, now)
    return warm


def _frames(conductor: Conductor) -> int:
    """Graphs that dynamo has compiled so far; a change means that compilation goes on."""
    if "torch._dynamo.utils" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"]) + int(counters["frames"]["total"])


def _block_done(
    conductor: Conductor,
    command: RunBlock,
    counted: list[Iteration],
    void: int,
    excess: list[float],
    losses: list[float | None],
) -> BlockDone:
    seams = conductor.seams
    assert seams is not None
    setup = max(0.0, sum(excess))
    told = [loss for loss in losses if loss is not None]
    return BlockDone(
        setting=command.setting,
        iterations=len(counted),
        seconds=sum(i.seconds for i in counted),
        processor_seconds=sum(i.processor for i in counted),
        void=void,
        phases=_mean_phases(counted),
        setup_seconds=setup,
        compile_seconds=setup if compiles(command.setting) else 0.0,
        pool_seconds=seams.loader.pool_seconds if seams.loader is not None else None,
        losses_finite=all(math.isfinite(loss) for loss in told),
        loss=told[-1] if told else None,
        no_effect=seams.no_effect(),
        total_iterations=conductor.iterations,
        peak_memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **keeping.cost(seams, command.setting),
    )


# --- alone ---------------------------------------------------------------------------------


def follow(conductor: Conductor, setting: dict[str, Any], expected: dict[str, str]) -> Program:
    """Apply a plan at the first border, say what differs from what it was made on, and leave."""
    yield
    seams = conductor.seams
    assert seams is not None
    units = discover()
    usable = {n: v for n, v in setting.items() if n in units and _can(conductor, units[n].needs)}
    seams.apply(usable)
    for name in sorted(set(setting) - set(usable)):
        _say(f"{name} from the plan can't be applied here: its seam was not found")
    if keeping.UNIT in usable and seams.loader is not None and seams.loader.items.trouble:
        _say(f"{keeping.UNIT} does nothing here: {seams.loader.items.trouble}")
    if _RESIZED in usable and (idle := units[_RESIZED].took_effect(seams, usable[_RESIZED])):
        _say(f"{_RESIZED} does nothing here: {idle}")
    now = fingerprint(_profile(conductor, [], 1))
    for key in ("loader", "model", "optimizer"):
        if expected.get(key, now[key]) != now[key]:
            _say(
                f"the plan was made for another {key} ({expected[key]}, now {now[key]}); "
                "its gain and its proof may not hold: hasten tune makes a new one"
            )
    keep = {units[n].needs for n in usable}
    if conductor.caches.seeds.on:
        keep.add("loader")
        if seams.loader is None or seams.loader.reason is not None:
            _say("items can't be seeded: the training loader isn't one that hasten can take over")
    conductor.end_program(keep)


def _can(conductor: Conductor, needs: str) -> bool:
    seams = conductor.seams
    assert seams is not None
    return bool(getattr(seams, needs)) if needs else True


def _say(text: str) -> None:
    print(f"hasten: {text}", file=sys.stderr, flush=True)


def observe(conductor: Conductor) -> Program:
    """Record every iteration, change nothing."""
    while True:
        yield
        conductor.losses.clear()
