"""More threads than the cores that may be used, and fewer are faster.

What it is
    torch computes with more threads than this process may use cores.

Why it costs
    Threads meet after each operation, and one that has no core lets all others wait.

How it is measured
    Blocks with as many threads as free cores take turns with blocks as the script is.

What to do
    `torch.set_num_threads(n)` or OMP_NUM_THREADS, with the cores that affinity and quota
    leave.

Source
    PyTorch issues 18183 and 125547; PyTorch, "CPU threading and TorchScript inference".
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


class ThreadsAboveCores(Finding):
    """Threads that have no core to run on."""

    name: ClassVar[str] = "threads-above-cores"
    subject: ClassVar[str] = "compute"
    fixed_by: ClassVar[tuple[str, ...]] = ("threads",)

    def what_if(self, diagnosis: Diagnosis) -> Setting | None:
        """As many threads as free cores."""
        above = diagnosis.profile.threads > diagnosis.environment.cores
        return {"threads": free_cores(diagnosis)} if above else None

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """That is surely faster."""
        what_if, cores = gained(diagnosis, self.name), free_cores(diagnosis)
        if what_if is None:
            return
        set_at = diagnosis.observed.all("threads_set")
        yield Found(
            summary=f"{diagnosis.profile.threads} threads share {cores} "
            f"free core{'s' if cores > 1 else ''}",
            todo=f"torch.set_num_threads({cores})",
            evidence=(
                f"{milliseconds(what_if.before)} an iteration, {milliseconds(what_if.after)} with "
                f"{cores} thread{'s' if cores > 1 else ''}",
            ),
            place=set_at[0].place if set_at else None,
            cost=what_if.gain,
        )
