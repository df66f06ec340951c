"""A checkpoint is written every iteration, or nearly so.

What it is
    `torch.save` within the training loop, more often than once in fifty iterations.

Why it costs
    Parameters and optimizer state are serialised and written while training waits.

How it is measured
    The time inside `torch.save`, divided by the iterations of the same stretch of the run.

What to do
    Save at the end of an epoch, or every so many minutes.

Source
    Lightning, "Speed up model training", on the frequency of checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, milliseconds

_OFTEN = 1 / 50  # saves an iteration


class CheckpointEveryIteration(Finding):
    """Checkpoints that are written too often."""

    name: ClassVar[str] = "checkpoint-every-iteration"
    subject: ClassVar[str] = "habits"

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Many saves an iteration, that take time."""
        seen = diagnosis.observed
        iterations = seen.trained_iterations
        epoch = diagnosis.profile.iterations_per_epoch
        for event in seen.all("save"):
            rate = event.count / max(1, iterations)
            if rate <= _OFTEN or (epoch is not None and event.count * epoch <= 1.5 * iterations):
                continue
            yield Found(
                summary=f"a checkpoint is saved every {1 / rate:.0f} iterations"
                if rate < 0.9
                else "a checkpoint is saved in every iteration",
                todo="save once an epoch, or every few minutes",
                evidence=(
                    f"{event.count} saves in {iterations} iterations, "
                    f"{milliseconds(event.total_seconds / event.count)} each",
                ),
                place=event.place,
                cost=event.total_seconds / max(1, iterations),
            )
