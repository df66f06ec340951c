"""A line waits for the accelerator in every iteration.

What it is
    `.item()`, `.cpu()`, `print` of a tensor or a branch on one asks for a value of the
    accelerator.

Why it costs
    Python waits until all work is done, and the accelerator is idle until it is given new
    work.

How it is measured
    The time inside such calls, but no more than the accelerator was idle: what is waited
    while it computes costs nothing. (Not yet seen on a GPU.)

What to do
    Keep sums on the accelerator, and read them once in a hundred iterations.

Source
    PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, milliseconds

_OFTEN = 0.5  # times an iteration


class SynchronisesEachIteration(Finding):
    """Reads of values that the accelerator is still computing."""

    name: ClassVar[str] = "synchronises-each-iteration"
    subject: ClassVar[str] = "device"
    needs_gpu: ClassVar[bool] = True

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Lines that wait in each iteration, while the accelerator is idle in others."""
        busy = diagnosis.examined.facts.get("device_busy")
        if busy is None or diagnosis.profile.device == "cpu":
            return
        seen = diagnosis.observed
        left = max(0.0, diagnosis.iteration - busy - diagnosis.phase("data"))
        for event in sorted(seen.all("sync"), key=lambda e: -e.seconds):
            waits = event.seconds / max(1, seen.iterations)
            if seen.per_iteration(event) < _OFTEN or not left:
                continue
            cost, left = min(waits, left), max(0.0, left - waits)
            yield Found(
                summary=f"{event.facts.get('what', 'a read')} waits for the accelerator "
                f"{seen.per_iteration(event):.0f} times an iteration",
                todo="keep the value on the accelerator, and read it every hundred iterations",
                evidence=(
                    f"{milliseconds(waits)} an iteration inside this call; the kernels take "
                    f"{milliseconds(busy)} of {milliseconds(diagnosis.iteration)}",
                ),
                place=event.place,
                cost=cost,
            )
