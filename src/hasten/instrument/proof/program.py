"""What a child does to prove a candidate: record an iteration, or fetch batches both ways."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from dataclasses import replace

from hasten.instrument import keeping
from hasten.instrument.conductor import Conductor
from hasten.instrument.proof.judge import judge
from hasten.instrument.proof.recording import Recording
from hasten.instrument.recorder import Iteration
from hasten.optimisations import Numerics, discover
from hasten.records import Proof, Prove

#: What dynamo calls the compilation of a frame, and of the backward that follows it later.
_COMPILING = ("_compile.compile_inner", "backward._backward_impl")
_RECORD_TRIES = 4  # iterations in which a recording may come out complete


def obey(conductor: Conductor, command: Prove) -> Generator[None, Iteration, Proof]:
    """Compare a setting with its reference where the unit's seam lies, and judge it."""
    begun, compiled = time.monotonic(), _compiled()
    unit = discover()[command.name]
    seams = conductor.seams
    assert seams is not None
    seams.apply(command.reference)
    if unit.touches == "items":
        proof = _equal(command.name, *keeping.prove(seams))
    elif unit.touches == "batches":
        assert seams.loader is not None
        reason = seams.loader.whole.prove()
        proof = _equal(command.name, reason, reason)
    elif unit.data_path:
        proof = _prove_loader(conductor, command)
    else:
        kind = unit.touches or ("optimizer" if unit.needs == "optimizers" else "model")
        recording = yield from _record(conductor, kind)
        proof = judge(
            command.name,
            unit.numerics.value,
            recording,
            seams.apply,
            command.reference,
            command.setting,
            kind,
            command.seconds,
        )
        seams.apply(command.reference)
    took = time.monotonic() - begun
    return replace(proof, seconds=took, compile_seconds=min(took, _compiled() - compiled))


def _compiled() -> float:
    """Seconds that this process has compiled for, by dynamo's own account."""
    utils = sys.modules.get("torch._dynamo.utils")
    known = getattr(utils, "compilation_time_metrics", {})
    return float(sum(sum(known.get(name, ())) for name in _COMPILING))


def _record(conductor: Conductor, kind: str) -> Generator[None, Iteration, Recording]:
    """Record one iteration; an epoch border or an accumulating one may leave it incomplete."""
    seams = conductor.seams
    assert seams is not None
    for _ in range(_RECORD_TRIES):
        recording = Recording(seams.roots, seams.optimizers)
        recording.start()
        conductor.step_observer = recording.before_step
        yield
        if recording.waits:
            recording.hold()
            yield
        conductor.step_observer = None
        recording.finish()
        if not recording.lacks(kind):
            break
    return recording


def _equal(name: str, reason: str, worst: str) -> Proof:
    """What promises the same bits: proven, unless there is a reason against it."""
    return Proof(
        name=name,
        numerics=Numerics.EXACT.value,
        passed=not reason,
        figure=1.0 if reason else 0.0,
        bound=0.0,
        worst=worst,
        reason=reason,
    )


def _prove_loader(conductor: Conductor, command: Prove) -> Proof:
    """Batches fetched with workers equal those fetched without, to the bit."""
    seams = conductor.seams
    assert seams is not None and seams.loader is not None
    value = command.setting[command.name]
    probe = seams.loader.probe(value["workers"], value.get("prefetch"))
    numerics = Numerics.STATISTICS if probe.random_items else Numerics.EXACT
    return Proof(
        name=command.name,
        numerics=numerics.value,
        passed=probe.equal and not probe.random_items,
        figure=0.0 if probe.equal else 1.0,
        bound=0.0,
        worst=probe.worst,
        reason=probe.reason,
    )
