"""torch computes with one thread although there are more cores, and more are faster.

What it is
    The script, OMP_NUM_THREADS or a launcher such as torchrun holds torch to one thread.

Why it costs
    Large operations could be split over the other cores.

How it is measured
    Blocks with as many threads as cores take turns with blocks as the script is.

What to do
    Set OMP_NUM_THREADS, or `torch.set_num_threads(n)`, to the cores that workers leave.

Source
    PyTorch issue 22260: torchrun sets OMP_NUM_THREADS=1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import (
    Diagnosis,
    Finding,
    Found,
    free_cores,
    gained,
    milliseconds,
)
from hasten.records import Setting

_GAIN = 0.05  # of an iteration


class OneThread(Finding):
    """A model that computes on one of several cores."""

    name: ClassVar[str] = "one-thread"
    subject: ClassVar[str] = "compute"
    fixed_by: ClassVar[tuple[str, ...]] = ("threads",)

    def what_if(self, diagnosis: Diagnosis) -> Setting | None:
        """All free cores, where the model computes on the CPU with one thread."""
        profile, cores = diagnosis.profile, free_cores(diagnosis)
        if profile.device != "cpu" or profile.threads != 1 or cores < 2:
            return None
        return {"threads": cores}

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """That is surely faster."""
        what_if, cores = gained(diagnosis, self.name), free_cores(diagnosis)
        if what_if is None or what_if.gain < _GAIN * what_if.before:
            return
        set_at = diagnosis.observed.all("threads_set")
        variable = diagnosis.environment.omp_threads == 1 and not set_at
        yield Found(
            summary=f"one thread computes, and {cores} cores are free",
            todo=f"OMP_NUM_THREADS={cores}" if variable else f"torch.set_num_threads({cores})",
            evidence=(
                f"{milliseconds(what_if.before)} an iteration, {milliseconds(what_if.after)} with "
                f"{cores} threads",
            ),
            place=set_at[0].place if set_at else None,
            cost=what_if.gain,
        )
