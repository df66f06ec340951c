"""Figures of a diagnosis that both reports show in the same words, as names and values."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from hasten.findings import Diagnosis
from hasten.report.phrases import MIB

#: What parts of the run beside plain iterations are called.
STRETCHES = {
    "epoch border": "between epochs",
    "first batch of an epoch": "first iterations of epochs",
    "another loader is read": "beside validation",
    "saving": "checkpoints",
    "output": "printing and logging",
}
_LEAST = 0.01  # of an iteration: what is shorter is not worth a line


def figures(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """What was measured besides phases, ceilings and findings."""
    yield from _processor(diagnosis)
    yield from _parts(diagnosis)
    yield from _workers(diagnosis)
    yield from _shared_memory(diagnosis)
    yield from _utilisation(diagnosis)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1000 * seconds:.2f} ms"


def _processor(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    seen = diagnosis.observed
    if not seen.processor.mean:
        return
    text = f"{_ms(seen.processor.mean)} an iteration, all threads of the main process"
    delay = seen.facts.get("processor", {}).get("delay")
    if delay is not None and delay >= _LEAST * diagnosis.iteration:
        text += f"; it waited {_ms(delay)} for a core"
    yield "processor time", text


def _parts(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """By root and optimizer, where there are several."""
    parts = diagnosis.observed.facts.get("parts", {})
    for key, noun in (("roots", "forward pass of"), ("optimizers", "step of")):
        several = parts.get(key, ())
        if len(several) > 1:
            for number, part in enumerate(several, 1):
                text = f"{_ms(part['seconds'])} an iteration, {part['calls']:.3g} calls"
                yield f"{noun} {number}, {part['name']}", text


def _workers(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    facts = diagnosis.observed.facts
    workers = facts.get("workers")
    if workers:
        text = f"{_ms(workers['fetch'])}, {_ms(workers['collate'])} of it collating and "
        text += f"{_ms(workers['processor'])} on a processor"
        yield "a batch takes a worker", text
    queue = facts.get("queue")
    if queue and queue["asked"]:
        ready = statistics.fmean(queue["ready"])
        empty = f"none in {100 * queue['empty'] / queue['asked']:.0f} % of the requests"
        yield "batches ready when one was asked for", f"{ready:.1f} on average, {empty}"


def _shared_memory(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    loader, times = diagnosis.profile.loader, diagnosis.examined.loader
    size = diagnosis.environment.shm
    if loader is None or times is None or not loader.workers or not size or not times.batch_bytes:
        return
    need = (loader.in_flight + 1) * times.batch_bytes
    yield "/dev/shm", f"{need / MIB:.1f} MiB needed at most, of {size / MIB:.0f} MiB"


def _utilisation(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    facts = diagnosis.observed.facts.get("utilisation", {})
    if busy := facts.get("busy"):
        yield "GPU busy, by its driver", f"{statistics.fmean(busy):.0f} %"
    if watts := facts.get("watts"):
        yield "GPU power", f"{statistics.fmean(watts):.0f} W"
