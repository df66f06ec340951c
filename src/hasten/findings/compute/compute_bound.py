"""The model's own arithmetic takes nearly all of an iteration.

What it is
    Forward and backward are what an iteration consists of; data, copies, optimizer and Python
    are not in the way.

Why it costs
    It costs what it has to; only less arithmetic, a faster format or a faster processor help.

How it is measured
    Forward and backward of the observed iterations; operations by torch's counter against the
    measured speed of a large matmul.

What to do
    `hasten tune` tries lower precision, compilation and threads.

Source
    NVIDIA, GPU performance background: arithmetic intensity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind, milliseconds, percent

_SHARE = 0.75  # of an iteration


class ComputeBound(Finding):
    """Computing holds the loop back, as it should be."""

    name: ClassVar[str] = "compute-bound"
    subject: ClassVar[str] = "compute"
    kind: ClassVar[Kind] = Kind.LIMIT
    fixed_by: ClassVar[tuple[str, ...]] = ("amp-bf16", "compile", "threads")

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Forward and backward are most of the iteration."""
        computing = diagnosis.phase("forward") + diagnosis.phase("backward")
        if computing < _SHARE * diagnosis.iteration or not computing:
            return
        evidence = [
            f"forward and backward take {milliseconds(computing)} of "
            f"{milliseconds(diagnosis.iteration)}"
        ]
        examined = diagnosis.examined
        dtype = next((d for root in diagnosis.profile.roots for d in root.dtypes), "float32")
        peak = examined.peaks.get(dtype)
        if examined.flops and peak:
            speed = examined.flops / diagnosis.iteration
            evidence.append(
                f"{speed / 1e9:.1f} GFLOP/s achieved, {percent(speed / peak)} of what a large "
                f"{dtype} matmul reaches here"
            )
        backward = diagnosis.observed.all("backward")
        yield Found(
            summary="the model's arithmetic takes nearly all of the time",
            todo="hasten tune tries lower precision, compilation and threads",
            evidence=tuple(evidence),
            place=backward[0].place if backward else None,
            cost=computing,
        )
