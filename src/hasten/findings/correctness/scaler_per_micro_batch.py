"""Gradients are accumulated over several batches, and the GradScaler unscales at each of them.

What it is
    `scaler.unscale_(optimizer)` (and `scaler.update()`, without which it would raise) is called in
    every batch, where the optimizer steps only once in several.

Why it costs
    What the first batches have left in the gradients is divided by the scale again at each batch
    that follows, until hardly anything of it is there: the update is that of the last batch.

How it is measured
    Between two steps of the optimizer a scaler has unscaled its gradients as often as there were
    batches, again and again.

What to do
    Unscale, clip, step and update only where the optimizer steps.

Source
    PyTorch, "Automatic Mixed Precision examples", gradient accumulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings._windows import accumulating, at_each_batch
from hasten.findings.base import Diagnosis, Finding, Found, Kind


class ScalerPerMicroBatch(Finding):
    """Gradients that are divided by the scale several times."""

    name: ClassVar[str] = "scaler-per-micro-batch"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Several calls of `unscale_` for each step."""
        for optimizer, size in accumulating(diagnosis):
            seen = at_each_batch(optimizer, size, "unscaled")
            if seen is None:
                continue
            events = diagnosis.observed.all("unscale")
            yield Found(
                summary=f"gradients are unscaled at each batch, but {optimizer['name']} steps at "
                f"every {size}th: what came before is divided by the scale again",
                todo="unscale, clip, step and update only where the optimizer steps",
                evidence=(
                    f"{size} calls of unscale_ and {size} batches between two steps, {seen[0]} "
                    f"times of {seen[1]}",
                ),
                place=events[0].place if events else None,
            )
