"""The model computes in float64.

What it is
    Parameters are float64, often because a numpy array was converted as it was.

Why it costs
    Twice the memory to move and half the width of vector instructions; on most GPUs far
    slower than that.

How it is measured
    Forward and backward of a copy of the model in float32, on recorded inputs, in turns with
    a copy as it is.

What to do
    Convert the inputs with `.float()` and build the model in float32.

Source
    PyTorch documentation, `torch.set_default_dtype`; NVIDIA architecture tables of FP64
    speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, milliseconds

_FASTER = 1.1  # times, at least


class DoublePrecision(Finding):
    """A model in float64 that would be faster in float32."""

    name: ClassVar[str] = "double-precision"
    subject: ClassVar[str] = "compute"

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """A copy in float32 was faster."""
        times = diagnosis.examined.single_precision
        if times is None or len(times) != 2 or times[0] < _FASTER * times[1]:
            return
        own, single = times
        doubles = [r for r in diagnosis.profile.roots if "float64" in r.dtypes]
        calls = max((root.calls for root in doubles), default=1.0)
        # Both were timed alone: no more can be saved than the share of what the loop spends.
        spent = diagnosis.phase("forward") + diagnosis.phase("backward")
        backward = diagnosis.observed.all("backward")
        made = diagnosis.observed.all("double")
        yield Found(
            summary="the model computes in float64",
            todo="build the model in float32 and convert its inputs with .float()",
            evidence=(
                f"forward and backward take {milliseconds(own)}, a copy in float32 "
                f"{milliseconds(single)}",
            ),
            place=(made or backward)[0].place if made or backward else None,
            cost=min((own - single) * calls, (1 - single / own) * spent),
        )
