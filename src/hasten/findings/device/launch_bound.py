"""The accelerator waits for Python to give it work.

What it is
    Kernels are shorter than what it takes to launch them.

Why it costs
    The accelerator is idle between two kernels, while the host is busy starting the next.

How it is measured
    Device time of all kernels of an iteration by torch's profiler; what remains of the
    iteration, without waiting for data and copies, is the cost. (Not yet seen on a GPU.)

What to do
    Larger batches, `torch.compile(mode="reduce-overhead")`, fused optimizers.

Source
    PyTorch blog, accelerating PyTorch with CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, milliseconds, percent

_IDLE = 0.4  # of an iteration


class LaunchBound(Finding):
    """An accelerator that is idle though nothing but the host holds it up."""

    name: ClassVar[str] = "launch-bound"
    subject: ClassVar[str] = "device"
    fixed_by: ClassVar[tuple[str, ...]] = ("compile", "fused-optimizer")
    needs_gpu: ClassVar[bool] = True

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Idle for long, and neither data nor copies are the reason."""
        busy = diagnosis.examined.facts.get("device_busy")  # seconds an iteration
        if busy is None or diagnosis.profile.device == "cpu":
            return
        waiting = diagnosis.phase("data") + diagnosis.phase("copy")
        idle = diagnosis.iteration - busy - waiting
        if idle < _IDLE * diagnosis.iteration:
            return
        backward = diagnosis.observed.all("backward")
        yield Found(
            summary="the accelerator waits for Python to give it work",
            todo='larger batches, or torch.compile(model, mode="reduce-overhead")',
            evidence=(
                f"its kernels take {milliseconds(busy)} of {milliseconds(diagnosis.iteration)}; "
                f"{percent(idle / diagnosis.iteration)} it is idle and neither data nor copies "
                "are the reason",
            ),
            place=backward[0].place if backward else None,
            cost=idle,
        )
