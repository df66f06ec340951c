"""The model runs in float16, and losses aren't scaled.

What it is
    Autocast with `dtype=torch.float16`, or a model turned to float16, and no `GradScaler`.

Why it costs
    float16 ends at 6e-8: smaller gradients become zero on their way through the backward pass,
    and these parameters stop learning, without any message. bfloat16 has the range of float32
    and needs no scaling.

How it is measured
    The calls of the model that lead to backward passes are made in float16, and no enabled
    GradScaler has scaled a loss. A loss that is multiplied by a large number by hand, and
    libraries that scale by themselves, are not that. How many gradient elements are exactly zero
    is counted.

What to do
    `scaler = torch.amp.GradScaler()`, then `scaler.scale(loss).backward()`,
    `scaler.step(optimizer)`, `scaler.update()`; or use bfloat16 where the device has it.

Source
    PyTorch, torch.amp: "Gradient Scaling".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import told

_LEAST = 4  # backward passes that were seen


class Fp16WithoutScaler(Finding):
    """Gradients that become zero."""

    name: ClassVar[str] = "fp16-without-scaler"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Backward passes in float16, none of them scaled."""
        facts = diagnosis.observed.facts.get("scaling", {})
        if facts.get("half", 0) < _LEAST or facts["scaled"] or facts["libraries"]:
            return
        if facts["by_hand"]:
            return
        how = "under autocast" if facts["how"] == "autocast" else "with float16 weights"
        yield Found(
            summary="float16 without a GradScaler: small gradients become zero",
            todo="scale the loss with torch.amp.GradScaler, or use bfloat16",
            evidence=(
                f"{facts['half']} backward passes of calls {how}, none of them scaled",
                f"{100 * facts['zeros']:.0f} % of the gradient elements were exactly zero",
            ),
            place=told(facts["place"]),
        )
