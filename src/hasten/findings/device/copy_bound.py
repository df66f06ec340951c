"""Copies between host and accelerator take much of an iteration.

What it is
    Batches, or anything else, are moved between devices in every iteration, and the loop
    waits for it.

Why it costs
    The bus between host and accelerator is far slower than the memory of either.

How it is measured
    The time inside copies is a phase of the observed iterations. (Not yet seen on a GPU.)

What to do
    Move less: convert and normalise on the accelerator, make tensors there; pin memory and
    copy with non_blocking=True.

Source
    PyTorch performance tuning guide: avoid unnecessary copies; create tensors on the target
    device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, milliseconds

_SHARE = 0.15  # of an iteration


class CopyBound(Finding):
    """A loop that waits for copies."""

    name: ClassVar[str] = "copy-bound"
    subject: ClassVar[str] = "device"
    needs_gpu: ClassVar[bool] = True

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Copies are a large part of the iteration; the dearest place is named."""
        copying = diagnosis.phase("copy")
        copies = [e for e in diagnosis.observed.all("copy") if e.observed]
        if not copies or copying < _SHARE * diagnosis.iteration:
            return
        dearest = max(copies, key=lambda e: e.seconds)
        yield Found(
            summary="copies between devices take much of an iteration",
            todo="copy smaller formats, pin memory and copy with non_blocking=True",
            evidence=(
                f"{milliseconds(copying)} of {milliseconds(diagnosis.iteration)} in copies",
                f"here {diagnosis.observed.per_iteration(dearest):.1f} an iteration, "
                f"{dearest.facts.get('bytes', 0) / 2**20:.1f} MiB the last time",
            ),
            place=dearest.place,
            cost=copying,
        )
